"""The DDP hooks: gradients are the mean over the group, in every step, for whatever DDP makes of its buckets."""

import contextlib
import copy
import functools

import pytest
import torch
import torch.distributed as dist
from hooks import HOOKS
from torch.nn.parallel import DistributedDataParallel

import tricoll
from tricoll import ddp

STEPS = 10
FP32, BF16, FP64 = torch.float32, torch.bfloat16, torch.float64


class Net(torch.nn.Module):
    """Two linear layers, each of a dtype."""

    def __init__(self, dtypes=(FP32, FP32), frozen=False):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 33, dtype=dtypes[0]), torch.nn.Linear(33, 5, dtype=dtypes[1])
        self.first.weight.requires_grad_(not frozen)

    def forward(self, x):
        x = torch.relu(self.first(x.to(self.first.bias.dtype)))
        return self.second(x.to(self.second.bias.dtype)).float()


def bound(hook, dtype, n):
    """The largest error of an average, relative to the mean of the ranks' absolute values.

    A value passes n ranks. Each but the first adds to it and the last divides it, in FP32: n roundings. Each rounds it
    to the wire once: n more if that is BF16. A rounding changes a partial sum, which is at most the sum of the absolute
    values, by 2**-24 or 2**-8 of it.
    """
    if dtype == FP64:
        return (1 + 2**-53) ** (2 * n) - 1  # and as many roundings in the mean that it is compared with
    wire = 2**-8 if hook == "bf16" or dtype == BF16 else 0.0
    return ((1 + wire) * (1 + 2**-24)) ** n - 1


def train(comm, hook, members=None, dtypes=(FP32, FP32), frozen=False, accumulate=False, **options):
    """Some steps with DDP, every gradient checked on the way.

    Returns the parameters as bytes, how many elements have gradients, and the communicator's statistics; None on a rank
    that is not a member.
    """
    dist.init_process_group("gloo")
    group = dist.new_group(members)
    if members is None:
        return steps(comm, group, hook, dtypes, frozen, accumulate, options)
    if dist.get_rank() not in members:
        return None
    try:
        return steps(tricoll.init(group=group), group, hook, dtypes, frozen, accumulate, options)
    finally:
        tricoll.destroy()


def steps(comm, group, hook, dtypes, frozen, accumulate, options):
    torch.manual_seed(0)
    module = Net(dtypes, frozen)
    alone = copy.deepcopy(module)
    model = DistributedDataParallel(module, process_group=group, **options)
    model.register_comm_hook(comm, HOOKS[hook])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    random = torch.Generator().manual_seed(100 + comm.rank)
    for step in range(STEPS):
        alone.load_state_dict(module.state_dict())
        optimizer.zero_grad()
        alone.zero_grad()
        for last in (False, True) if accumulate else (True,):
            x = torch.randn(8, 16, generator=random) * 4.0**-comm.rank  # gradients of different sizes
            y = torch.randn(8, 5, generator=random)
            with contextlib.nullcontext() if last else model.no_sync():
                torch.nn.functional.mse_loss(model(x), y).backward()
            torch.nn.functional.mse_loss(alone(x), y).backward()
        for (name, ours), (_, own) in zip(module.named_parameters(), alone.named_parameters()):
            if not ours.requires_grad:
                assert ours.grad is None
                continue
            assert ours.grad.dtype == ours.dtype and ours.grad.shape == ours.shape
            shares = [torch.empty_like(own, dtype=FP64) for _ in range(comm.world_size)]
            dist.all_gather(shares, own.grad.double(), group=group)
            mean, size = sum(shares) / len(shares), sum(share.abs() for share in shares) / len(shares)
            error = (ours.grad.double() - mean).abs()
            assert (error <= bound(hook, ours.dtype, comm.world_size) * size).all(), (step, name, (error / size).max())
            assert mean.any()
        optimizer.step()
    parameters = torch.cat([p.detach().contiguous().view(torch.uint8).flatten() for p in module.parameters()])
    return (
        parameters.numpy().tobytes(),
        sum(p.numel() for p in module.parameters() if p.requires_grad),
        comm.stats(),
    )


def trained(pool, n, hook="bf16", **options):
    """What :func:`train` returned on each rank."""
    return pool(n).run(functools.partial(train, hook=hook, **options), limit=60)


def same_bits(results):
    return len({parameters for parameters, _, _ in results}) == 1


@pytest.mark.parametrize("view", [False, True], ids=["copied", "bucket_view"])
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("n", [2, 3])
def test_gradients_are_the_mean(pool, n, hook, view):
    results = trained(pool, n, hook, gradient_as_bucket_view=view)
    assert same_bits(results)
    _, elements, _ = results[0]
    # In the dtype that was asked for: 2 (n-1)/n of every rank's data, or n - 1 times them in one shot.
    sent = sum(stats["payload_bytes"] for _, _, stats in results)
    once = STEPS * (n - 1) * elements * (2 if hook == "bf16" else 4)
    assert sent in ([2 * once] if hook == "reproducible" else [2 * once, n * once])
    assert [stats["calls"] for _, _, stats in results] == [STEPS] * n


@pytest.mark.parametrize("view", [False, True], ids=["copied", "bucket_view"])
def test_many_small_buckets(pool, view):
    results = trained(pool, 3, bucket_cap_mb=1e-5, gradient_as_bucket_view=view)
    assert same_bits(results)
    # DDP makes the buckets that were asked for after the first step: one a parameter.
    assert all(stats["calls"] >= (STEPS - 1) * 4 for _, _, stats in results)


def test_a_subgroup_divides_by_its_own_size(pool):
    results = trained(pool, 4, members=(1, 3))
    assert results[0] is None and results[2] is None
    assert same_bits([results[1], results[3]])


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("dtypes", [(BF16, BF16), (FP32, BF16)], ids=["bf16", "mixed"])
def test_bf16_parameters(pool, dtypes, hook):
    assert same_bits(trained(pool, 2, hook, dtypes=dtypes))


def test_fp64_goes_as_fp64(pool):
    results = trained(pool, 2, dtypes=(FP64, FP64))
    assert same_bits(results)
    assert sum(stats["payload_bytes"] for _, _, stats in results) == STEPS * 2 * results[0][1] * 8


def test_frozen_parameters(pool):
    results = trained(pool, 2, frozen=True)
    assert same_bits(results)
    _, elements, _ = results[0]
    assert elements == 33 + 33 * 5 + 5
    assert sum(stats["payload_bytes"] for _, _, stats in results) == STEPS * 2 * elements * 2


def test_accumulated_gradients(pool):
    results = trained(pool, 2, accumulate=True)
    assert same_bits(results)
    assert all(stats["calls"] == STEPS for _, _, stats in results)


def large_fp16(comm):
    dist.init_process_group("gloo")
    module = torch.nn.Linear(64, 1, bias=False, dtype=torch.float16)
    model = DistributedDataParallel(module)
    model.register_comm_hook(comm, ddp.bf16_hook)
    (model(torch.full((1, 64), 200.0, dtype=torch.float16)) * 200).sum().backward()
    return module.weight.grad


def test_a_sum_too_large_for_fp16(pool):
    for grad in pool(3).run(large_fp16, limit=60):
        assert grad.dtype == torch.float16
        torch.testing.assert_close(grad, torch.full_like(grad, 40000.0), rtol=3 / 256, atol=0)


def wrong(comm, what):
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Net())
    if what == "registered twice":
        model.register_comm_hook(comm, ddp.bf16_hook)
        model.register_comm_hook(comm, ddp.fp32_hook)
    model.register_comm_hook(None if what == "no communicator" else dist.group.WORLD, ddp.bf16_hook)
    model(torch.ones(2, 16)).sum().backward()


def test_a_second_registration_is_an_error(pool):
    for error in pool(2).outcomes(wrong, "registered twice", limit=60):
        assert isinstance(error, RuntimeError) and "only be called once" in str(error)


@pytest.mark.parametrize("what", ["no communicator", "process group"])
def test_a_state_that_is_no_communicator(pool, what):
    for error in pool(2).outcomes(wrong, what, limit=60):
        assert isinstance(error, TypeError) and "register_comm_hook(comm, tricoll.ddp.bf16_hook)" in str(error)


def too_many_ranks(comm):
    dist.init_process_group("gloo")
    group = dist.new_group([1, 2])
    if comm.rank == 0:
        return
    model = DistributedDataParallel(Net(), process_group=group)
    model.register_comm_hook(comm, ddp.bf16_hook)
    model(torch.ones(2, 16)).sum().backward()


def test_a_communicator_of_more_ranks_than_the_model(pool):
    nothing, *errors = pool(3).outcomes(too_many_ranks, limit=60, timeout=3)
    assert nothing is None
    for error in errors:  # through the backward pass with its type; rank 0 has left by then, or is late
        assert isinstance(error, tricoll.CollectiveError) and "ranks [0]" in str(error)


# What is averaged, bit for bit, and where it goes.


def twenty_steps(comm, hook, state, options):
    """Training with a hook. Returns the parameters, and in how many steps a gradient was not the rank-order mean."""
    dist.init_process_group("gloo" if state == "communicator" else "tricoll")
    torch.manual_seed(0)
    module = Net()
    alone = copy.deepcopy(module)
    model = DistributedDataParallel(module, **options)
    model.register_comm_hook({"communicator": comm, "group": dist.group.WORLD, "default": None}[state], HOOKS[hook])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    random, others = torch.Generator().manual_seed(100 + comm.rank), 0
    for _ in range(20):
        alone.load_state_dict(module.state_dict())
        x, y = torch.randn(8, 16, generator=random), torch.randn(8, 5, generator=random)
        optimizer.zero_grad()
        alone.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        torch.nn.functional.mse_loss(alone(x), y).backward()
        for ours, own in zip(module.parameters(), alone.parameters()):
            shares = [torch.empty_like(own) for _ in range(comm.world_size)]
            dist.all_gather(shares, own.grad)
            mean = functools.reduce(torch.add, shares) / comm.world_size  # in rank order, in FP32
            others += not torch.equal(ours.grad, mean)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()]), others


@pytest.mark.parametrize("options", [{}, {"static_graph": True, "gradient_as_bucket_view": True}], ids=["", "static"])
@pytest.mark.parametrize("state", ["communicator", "group", "default"])
@pytest.mark.parametrize("hook", HOOKS)
def test_twenty_steps(pool, hook, state, options):
    results = pool(3).run(twenty_steps, hook, state, options, limit=60)
    assert all(torch.equal(parameters, results[0][0]) for parameters, _ in results)
    if hook == "reproducible":
        assert [others for _, others in results] == [0] * 3


def test_fp32_on_two_ranks_is_the_rank_order_mean(pool):
    """Two summands have one order."""
    assert [others for _, others in pool(2).run(twenty_steps, "fp32", "communicator", {}, limit=60)] == [0, 0]


def in_a_subgroup(comm):
    dist.init_process_group("tricoll")
    group = dist.new_group([1, 3])
    if comm.rank not in (1, 3):
        return None
    module = torch.nn.Linear(3, 1, bias=False)
    model = DistributedDataParallel(module, process_group=group)
    model.register_comm_hook(group, ddp.bf16_hook)
    model(torch.full((1, 3), float(comm.rank))).sum().backward()
    return module.weight.grad


def test_a_subgroup_of_the_backend(pool):
    results = pool(4).run(in_a_subgroup, limit=60)
    assert results[0] is None and results[2] is None
    assert torch.equal(results[1], torch.full((1, 3), 2.0)) and torch.equal(results[1], results[3])
