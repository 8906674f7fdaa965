"""The DDP hooks with unusual models: case 38 (branches, sparse gradients, uneven inputs) and complex parameters."""

import copy
import datetime
import time

import pytest
import torch
import torch.distributed as dist
from hooks import HOOKS
from torch.nn.parallel import DistributedDataParallel

from tricoll import ddp


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.common, self.extra = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x, both):
        return self.common(x) + (self.extra(x) if both else 0.0)


def unused(comm, find):
    dist.init_process_group("tricoll", timeout=datetime.timedelta(seconds=5))
    torch.manual_seed(0)
    module = Branches()
    model = DistributedDataParallel(module, find_unused_parameters=find, bucket_cap_mb=1e-5)
    model.register_comm_hook(None, ddp.fp32_hook)
    for _ in range(3):
        module.zero_grad()
        model(torch.ones(1, 4), comm.rank == 0).sum().backward()
    return module.extra.bias.grad


def test_case_38a_a_branch_used_on_one_rank_only(pool):
    """The absent rank counts as zero."""
    for grad in pool(2).run(unused, True, limit=60):
        assert torch.equal(grad, torch.full((4,), 0.5))


def test_case_38b_not_announced(pool):
    """torch's own error on the rank without the branch, an error of the collectives or torch's on the other."""
    start = time.monotonic()
    outcomes = pool(2).outcomes(unused, False, limit=60)
    assert time.monotonic() - start < 30
    assert "find_unused_parameters" in str(outcomes[1])
    assert isinstance(outcomes[0], RuntimeError)


def sparse(comm, hook):
    dist.init_process_group("tricoll")
    torch.manual_seed(0)
    module = torch.nn.Embedding(10, 3, sparse=True)
    model = DistributedDataParallel(module)
    model.register_comm_hook(None, HOOKS[hook])
    for _ in range(3):
        module.zero_grad()
        model(torch.tensor([0, comm.rank + 1, 0])).sum().backward()
    return module.weight.grad.to_dense()[:, 0].tolist(), module.weight.grad.is_sparse


@pytest.mark.parametrize("hook", HOOKS)
def test_case_38c_sparse_gradients(pool, hook):
    assert pool(2).run(sparse, hook, limit=60) == [([2.0, 0.5, 0.5] + [0.0] * 7, True)] * 2


def uneven(comm):
    dist.init_process_group("tricoll")
    module = torch.nn.Linear(2, 1, bias=False)
    model = DistributedDataParallel(module)
    model.register_comm_hook(None, ddp.fp32_hook)
    grads = []
    with model.join():
        for k in range(5 - 2 * comm.rank):
            module.zero_grad()
            model(torch.full((1, 2), k + 1.0)).sum().backward()
            grads.append(module.weight.grad[0, 0].item())
    return grads


def test_case_38d_uneven_inputs(pool):
    """The rank that has run out counts as zero, and the sum is divided by both."""
    assert pool(2).run(uneven, limit=60) == [[1.0, 2.0, 3.0, 2.0, 2.5], [1.0, 2.0, 3.0]]


def complex_parameters(comm, hook):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    module = torch.nn.Linear(5, 3, dtype=torch.cfloat)
    alone = copy.deepcopy(module)
    model = DistributedDataParallel(module)
    model.register_comm_hook(comm, HOOKS[hook])
    x = torch.randn(4, 5, dtype=torch.cfloat, generator=torch.Generator().manual_seed(comm.rank))
    for each in (model, alone):
        (each(x).abs() ** 2).sum().backward()
    shares = [torch.empty_like(alone.weight.grad) for _ in range(comm.world_size)]
    dist.all_gather(shares, alone.weight.grad)
    return module.weight.grad, sum(shares) / comm.world_size, comm.stats()["payload_bytes"]


@pytest.mark.parametrize("hook", HOOKS)
def test_case_23_complex_parameters(pool, hook):
    results = pool(2).run(complex_parameters, hook, limit=60)
    for grad, mean, _ in results:
        assert grad.dtype == torch.cfloat and grad.imag.abs().max() > 0.1
        torch.testing.assert_close(
            grad, mean, rtol=2**-7 if hook == "bf16" else 1e-6, atol=1e-2 if hook == "bf16" else 0
        )
    assert torch.equal(results[0][0], results[1][0])
    reals = 2 * (5 * 3 + 3)
    assert sum(sent for _, _, sent in results) >= 2 * reals * (2 if hook == "bf16" else 4)
    if hook == "bf16":
        assert sum(sent for _, _, sent in results) < 2 * reals * 4
