"""What is built on torch.distributed works on the backend: DDP's own averaging, its hooks, DTensor, ZeRO, pipelines."""

import pytest
import torch
import torch.distributed as dist
from backends import equal, on, ranks_tensor
from torch.nn.parallel import DistributedDataParallel


def train(bucket):
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4)
    )
    model = DistributedDataParallel(module, bucket_cap_mb=bucket)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    random = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(6, 8, generator=random)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in module.parameters()]


def test_ddp_without_a_hook(pool):
    """The gradients of DDP itself go through the backend: as with Gloo, up to the order of additions."""
    ours, gloos = on(pool, 3, train, 1e-4), on(pool, 3, train, 1e-4, backend="gloo")
    assert equal(ours[0], ours[1]) and equal(ours[0], ours[2])
    for a, b in zip(ours[0], gloos[0]):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def functional():
    import torch.distributed._functional_collectives as funcol

    n, r = dist.get_world_size(), dist.get_rank()
    group = list(range(n))
    x = ranks_tensor()
    return [
        t.clone()
        for t in (
            funcol.all_reduce(x, "sum", group),
            funcol.all_gather_tensor(x, 0, group),
            funcol.reduce_scatter_tensor(ranks_tensor((2 * n, 6)), "sum", 0, group),
            funcol.broadcast(x, 1, group),
            funcol.all_to_all_single(ranks_tensor((n, 2)), None, None, group),
        )
    ] + [r]


def test_functional_collectives(pool):
    n = 3
    x = lambda r, shape=(4, 6): torch.arange(torch.Size(shape).numel()).reshape(shape) % 13 + 10.0 * r
    for total, gathered, scattered, broadcast, exchanged, r in on(pool, n, functional):
        assert equal(total, sum(x(k) for k in range(n)))
        assert equal(gathered, torch.cat([x(k) for k in range(n)]))
        assert equal(scattered, sum(x(k, (2 * n, 6)) for k in range(n))[2 * r : 2 * r + 2])
        assert equal(broadcast, x(1))
        assert equal(exchanged, torch.stack([x(k, (n, 2))[r] for k in range(n)]))


def meshes():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    x = torch.arange(32.0).reshape(8, 4)
    sharded = distribute_tensor(x, mesh, [Shard(0), Replicate()])
    product = (sharded @ sharded.t()).full_tensor()
    total = sharded.sum().full_tensor()
    return torch.equal(product, x @ x.t()), total.item() == x.sum().item()


def test_device_mesh_and_dtensor(pool):
    assert on(pool, 4, meshes) == [(True, True)] * 4


def same_everywhere(module):
    mine = torch.cat([p.detach().flatten() for p in module.parameters()])
    everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, mine)
    return all(torch.equal(each, mine) for each in everybody)


def torch_hooks():
    """PyTorch's own hooks: they make collectives in callbacks of others."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    power = powerSGD_hook.PowerSGDState(dist.group.WORLD, matrix_approximation_rank=1, start_powerSGD_iter=2)
    hooks = [
        (None, default_hooks.allreduce_hook),
        (None, default_hooks.fp16_compress_hook),
        (power, powerSGD_hook.powerSGD_hook),
    ]
    same = []
    for state, hook in hooks:
        torch.manual_seed(0)
        module = torch.nn.Sequential(*[torch.nn.Linear(40, 40) for _ in range(5)])
        model = DistributedDataParallel(module, bucket_cap_mb=0.01)
        model.register_comm_hook(state, hook)
        optimizer = torch.optim.SGD(module.parameters(), 0.01)
        random = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 40, generator=random)).square().mean().backward()
            optimizer.step()
        same.append(same_everywhere(module))
    return same


def test_hooks_that_chain_collectives(pool):
    assert on(pool, 3, torch_hooks) == [[True] * 3] * 3


def zero_redundancy():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.Adam, lr=0.01)
    model = DistributedDataParallel(module)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    return same_everywhere(module)


def test_zero_redundancy_optimizer(pool):
    assert on(pool, 3, zero_redundancy) == [True] * 3


def pipeline(schedule):
    from torch.distributed import pipelining

    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 6) for _ in range(size)]
    x, y = torch.randn(8, 6), torch.randn(8, 6)
    loss = torch.nn.MSELoss()
    stage = pipelining.PipelineStage(layers[rank], rank, size, torch.device("cpu"))
    steps = getattr(pipelining, schedule)(stage, 4, loss_fn=loss)
    given = ([x] if rank == 0 else [], {"target": y} if rank == size - 1 else {})
    steps.step(*given[0], **given[1])
    got = layers[rank].weight.grad.clone()
    layers[rank].zero_grad()
    total = loss(torch.nn.Sequential(*layers)(x), y)
    total.backward()
    torch.testing.assert_close(got, layers[rank].weight.grad, rtol=1e-4, atol=1e-6)
    return True


@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B"])
def test_pipelines(pool, schedule):
    assert on(pool, 3, pipeline, schedule) == [True] * 3
