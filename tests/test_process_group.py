"""The backend: every call of torch.distributed gives what it gives with Gloo, for groups and ranks, too."""

import datetime
import os
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tricoll
from tricoll import backend, process_group

warnings.filterwarnings("ignore", category=FutureWarning)


def with_backend(comm, backend, fn, *args):
    """What fn returns, in a world of that backend."""
    dist.init_process_group(backend)
    try:
        return fn(*args)
    finally:
        dist.destroy_process_group()


def on(pool, n, fn, *args, backend="tricoll", limit=60):
    return pool(n).run(with_backend, backend, fn, *args, limit=limit)


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    return a == b


def ranks_tensor(shape=(4, 6), dtype=torch.float32, k=0):
    r = dist.get_rank()
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) % 13 + 10 * r + k).to(dtype)


# Small integers, so that the order of additions does not matter: every backend has the same bits.


def reductions():
    got = {}
    R = dist.ReduceOp
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8):
        for op in (R.SUM, R.MIN, R.MAX, R.PRODUCT):
            x = ranks_tensor(dtype=dtype)
            if op == R.PRODUCT:
                x = x % 3
            dist.all_reduce(x, op)
            got[f"all_reduce {dtype} {op}"] = x
            y = ranks_tensor(dtype=dtype)
            dist.reduce(y, 1, op) if op != R.PRODUCT else None
            got[f"reduce {dtype} {op}"] = y if dist.get_rank() == 1 else None
    for op in (R.BAND, R.BOR, R.BXOR):
        x = ranks_tensor(dtype=torch.int32)
        dist.all_reduce(x, op)
        got[f"all_reduce {op}"] = x
    z = torch.complex(ranks_tensor(), -ranks_tensor(k=1))
    dist.all_reduce(z)
    got["complex"] = z
    x = ranks_tensor()
    work = dist.all_reduce(x, async_op=True)
    value = work.get_future().wait()
    got["async"] = x, value[0] if isinstance(value, list) else value, work.wait()
    tensors = [ranks_tensor((3,)), ranks_tensor((2, 2), k=1)]
    dist.all_reduce_coalesced(tensors)
    got["coalesced"] = tensors
    transposed = ranks_tensor().t()
    dist.all_reduce(transposed)
    got["transposed"] = transposed
    return got


def moves():
    n, r, got = dist.get_world_size(), dist.get_rank(), {}
    x = ranks_tensor()
    dist.broadcast(x, 1)
    got["broadcast"] = x
    parts = [torch.empty(4, 6) for _ in range(n)]
    dist.all_gather(parts, ranks_tensor())
    got["all_gather"] = parts
    bools = [torch.empty(3, dtype=torch.bool) for _ in range(n)]
    dist.all_gather(bools, torch.tensor([True, False, r == 1]))
    got["all_gather bool"] = bools
    together, stacked = torch.empty(4 * n, 6), torch.empty(n, 4, 6)
    dist.all_gather_into_tensor(together, ranks_tensor())
    dist.all_gather_into_tensor(stacked, ranks_tensor())
    got["all_gather_into_tensor"] = together, stacked
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(n)]
    dist.all_gather_coalesced(lists, [ranks_tensor((2,)), ranks_tensor((3,))])
    got["all_gather_coalesced"] = lists
    gathered = [torch.empty(4, 6) for _ in range(n)] if r == 2 else None
    dist.gather(ranks_tensor(), gathered, dst=2)
    got["gather"] = gathered
    mine = torch.empty(5)
    dist.scatter(mine, [ranks_tensor((5,), k=100 * k) for k in range(n)] if r == 1 else None, src=1)
    got["scatter"] = mine
    out = torch.empty(2, 6)
    dist.reduce_scatter(out, [ranks_tensor((2, 6), k=k) for k in range(n)])
    got["reduce_scatter"] = out.clone()
    dist.reduce_scatter_tensor(out, ranks_tensor((2 * n, 6)))
    got["reduce_scatter_tensor"] = out
    out = torch.empty(n, 3)
    dist.all_to_all_single(out, ranks_tensor((n, 3)))
    got["all_to_all_single"] = out.clone()
    sends, receives = [k + r for k in range(n)], [r + k for k in range(n)]
    out = torch.empty(sum(receives), 2)
    dist.all_to_all_single(out, ranks_tensor((sum(sends), 2)), receives, sends)
    got["all_to_all_single uneven"] = out
    dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    return got


def messages():
    n, r, got = dist.get_world_size(), dist.get_rank(), {}
    if r == 0:
        dist.send(ranks_tensor(), 1)
    elif r == 1:
        got["recv"] = x = torch.empty(4, 6)
        dist.recv(x, 0)
    right, left = (r + 1) % n, (r - 1) % n
    into, out = torch.empty(100_000), ranks_tensor((100_000,))
    for order in ("send first", "receive first"):
        operations = [dist.P2POp(dist.isend, out, right), dist.P2POp(dist.irecv, into, left)]
        for work in dist.batch_isend_irecv(operations if order == "send first" else operations[::-1]):
            work.wait()
        got[order] = into.clone()
    request = dist.irecv(into, left, tag=7)
    dist.send(out, right, tag=7)
    request.wait()
    got["tag"] = into.clone()
    if r == 0:
        seen = {}
        for _ in range(n - 1):
            x = torch.empty(3)
            source = dist.recv(x)
            seen[source] = x
        got["from anybody"] = seen
    else:
        time.sleep(0.1 * (n - r))
        dist.send(ranks_tensor((3,)), 0)
    return got


def objects():
    n, r, got = dist.get_world_size(), dist.get_rank(), {}
    everybody = [None] * n
    dist.all_gather_object(everybody, {"rank": r, "text": "x" * (1000 * r)})
    got["all_gather_object"] = everybody
    some = ["a", {1, 2}, None] if r == 1 else [None] * 3
    dist.broadcast_object_list(some, 1)
    got["broadcast_object_list"] = some
    gathered = [None] * n if r == 0 else None
    dist.gather_object(("rank", r), gathered, 0)
    got["gather_object"] = gathered
    mine = [None]
    dist.scatter_object_list(mine, [f"for {k}" for k in range(n)] if r == 2 else None, src=2)
    got["scatter_object_list"] = mine
    return got


def groups():
    """Sub-groups, by global rank and by rank in the group."""
    r, got = dist.get_rank(), {}
    group, others = dist.new_group([3, 1]), dist.new_group([0, 2])
    mine = group if r in (1, 3) else others
    x = ranks_tensor()
    dist.all_reduce(x, group=mine)
    got["all_reduce"] = x
    y = ranks_tensor()
    dist.broadcast(y, src=3 if mine is group else 2, group=mine)
    got["broadcast"] = y
    z = ranks_tensor()
    dist.broadcast(z, group_src=0, group=mine)
    got["group_src"] = z
    got["ranks"] = dist.get_process_group_ranks(mine), dist.get_rank(mine), dist.get_world_size(mine)
    if r == 1:
        dist.send(ranks_tensor(), 3, group=group)
    if r == 3:
        got["recv"] = w = torch.empty(4, 6)
        dist.recv(w, 1, group=group)
    if mine is others:  # not a member
        got["not in the group"] = dist.get_rank(group)
    dist.barrier()
    dist.destroy_process_group(group if mine is group else others)
    return got


def coalesced():
    n, got = dist.get_world_size(), {}
    a, b = ranks_tensor(), ranks_tensor(k=1)
    with dist.distributed_c10d._coalescing_manager():
        dist.all_reduce(a)
        dist.all_reduce(b)
    got["all_reduce"] = a, b
    a, b = torch.empty(4 * n, 6), torch.empty(2 * n)
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        dist.all_gather_into_tensor(a, ranks_tensor())
        dist.all_gather_into_tensor(b, ranks_tensor((2,)))
    manager.wait()
    got["all_gather"] = a, b
    a, b = torch.empty(2, 6), torch.empty(3)
    with dist.distributed_c10d._coalescing_manager():
        dist.reduce_scatter_tensor(a, ranks_tensor((2 * n, 6)))
        dist.reduce_scatter_tensor(b, ranks_tensor((3 * n,)))
    got["reduce_scatter"] = a, b
    return got


@pytest.mark.parametrize("fn, n", [(reductions, 3), (messages, 3), (objects, 3), (groups, 4)])
def test_the_same_as_gloo(pool, fn, n):
    ours, gloos = on(pool, n, fn), on(pool, n, fn, backend="gloo")
    for r in range(n):
        assert ours[r].keys() == gloos[r].keys()
        wrong = [what for what in ours[r] if not equal(ours[r][what], gloos[r][what])]
        assert not wrong, (r, [(ours[r][w], gloos[r][w]) for w in wrong[:3]])


def test_moving_data(pool):
    """Against a plain computation: Gloo has not all of these calls."""
    n = 3
    results = on(pool, n, moves)
    x = lambda r, shape=(4, 6), k=0: torch.arange(torch.Size(shape).numel()).reshape(shape) % 13 + 10.0 * r + k
    everybody = [x(r) for r in range(n)]
    for r, got in enumerate(results):
        assert equal(got["broadcast"], x(1))
        assert equal(got["all_gather"], everybody)
        assert equal(got["all_gather bool"], [torch.tensor([True, False, k == 1]) for k in range(n)])
        assert equal(got["all_gather_into_tensor"], (torch.cat(everybody), torch.stack(everybody)))
        assert equal(got["all_gather_coalesced"], [[x(k, (2,)), x(k, (3,))] for k in range(n)])
        assert equal(got["gather"], everybody if r == 2 else None)
        assert equal(got["scatter"], x(1, (5,), 100 * r))
        assert equal(got["reduce_scatter"], sum(x(k, (2, 6), r) for k in range(n)))
        assert equal(got["reduce_scatter_tensor"], sum(x(k, (2 * n, 6)) for k in range(n))[2 * r : 2 * r + 2])
        assert equal(got["all_to_all_single"], torch.stack([x(k, (n, 3))[r] for k in range(n)]))
        begins = lambda k: sum(j + k for j in range(r))
        parts = [x(k, (sum(j + k for j in range(n)), 2))[begins(k) : begins(k) + r + k] for k in range(n)]
        assert equal(got["all_to_all_single uneven"], torch.cat(parts))


def test_coalesced(pool):
    n = 3
    x = lambda r, shape=(4, 6), k=0: torch.arange(torch.Size(shape).numel()).reshape(shape) % 13 + 10.0 * r + k
    for r, got in enumerate(on(pool, n, coalesced)):
        assert equal(got["all_reduce"], tuple(sum(x(j, k=k) for j in range(n)) for k in (0, 1)))
        assert equal(got["all_gather"], tuple(torch.cat([x(j, s) for j in range(n)]) for s in ((4, 6), (2,))))
        assert equal(got["reduce_scatter"][0], sum(x(j, (2 * n, 6)) for j in range(n))[2 * r : 2 * r + 2])
        assert equal(got["reduce_scatter"][1], sum(x(j, (3 * n,)) for j in range(n))[3 * r : 3 * r + 3])


def more_ops():
    r, n = dist.get_rank(), dist.get_world_size()
    a, p, b = torch.full((3,), r + 1.0), torch.full((3,), r + 1.0), torch.tensor([r == 0, False, True])
    dist.all_reduce(a, dist.ReduceOp.AVG)
    dist.all_reduce(p, dist._make_nccl_premul_sum(0.5))
    dist.all_reduce(b)
    outs = [torch.empty(k + 1) for k in range(n)]
    dist.all_gather(outs, torch.full((r + 1,), float(r)))  # of different sizes
    half = torch.full((5,), r + 1.0, dtype=torch.bfloat16)
    dist.all_reduce(half)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, r + 1, 0]]), torch.ones(3, 2), (6, 2))
    dist.all_reduce(sparse)
    parts = [torch.empty(r + 1) for _ in range(n)]
    dist.all_to_all(parts, [torch.full((k + 1,), 10.0 * r + k) for k in range(n)])
    return a, p, b, outs, half, sparse.to_dense(), parts


def test_what_gloo_has_not(pool):
    for r, (a, p, b, outs, half, sparse, parts) in enumerate(on(pool, 3, more_ops)):
        assert equal((a, p, b), (torch.full((3,), 2.0), torch.full((3,), 3.0), torch.tensor([True, False, True])))
        assert equal(outs, [torch.full((k + 1,), float(k)) for k in range(3)])
        assert equal(half, torch.full((5,), 6.0, dtype=torch.bfloat16))
        assert sparse[:, 0].tolist() == [6.0, 1.0, 1.0, 1.0, 0.0, 0.0]
        assert equal(parts, [torch.full((r + 1,), 10.0 * k + r) for k in range(3)])


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


# Errors.


def errors():
    r, seen = dist.get_rank(), []

    def expect(kinds, fn):
        with pytest.raises(kinds) as caught:
            fn()
        seen.append(str(caught.value))

    expect(TypeError, lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND))
    expect(tricoll.CollectiveMismatch, lambda: dist.all_reduce(torch.ones(3 + r)))
    expect(ValueError, lambda: dist.broadcast(torch.ones(3), 17))
    expect(ValueError, lambda: process_group.communicator().broadcast(torch.ones(3), 17))
    x = torch.ones(3)
    dist.all_reduce(x)
    return seen, x[0].item()


def test_errors_and_the_call_after_them(pool):
    for seen, total in on(pool, 2, errors):
        assert total == 2.0 and "float32[3" in seen[1] and "float32[4" in seen[1]


def late(comm):
    dist.init_process_group("tricoll", timeout=datetime.timedelta(seconds=60))
    if comm.rank == 2:
        time.sleep(3)
        return None
    start = time.monotonic()
    with pytest.raises(tricoll.CollectiveTimeout, match=r"\[2\]"):
        dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=1))
    took = time.monotonic() - start
    with pytest.raises(tricoll.CollectiveError, match="cannot be used"):
        dist.barrier()
    return took


def test_a_timeout_of_one_call_names_who_is_late(pool):
    first, second, _ = pool(3).run(late, limit=60)
    assert first < 2.5 and second < 2.5


def late_async(comm):
    dist.init_process_group("tricoll", timeout=datetime.timedelta(seconds=3))
    if comm.rank == 1:
        time.sleep(4.5)
        return None
    work = dist.all_reduce(torch.ones(2), async_op=True)
    with pytest.raises(tricoll.CollectiveTimeout, match=r"within 0\.5 s"):
        work.wait(datetime.timedelta(seconds=0.5))
    with pytest.raises(tricoll.CollectiveError):
        work.wait()
    return True


def test_a_timeout_of_wait(pool):
    assert pool(2).run(late_async, limit=60) == [True, None]


def ddp_error(comm):
    """An error reaches DDP through the future of a Work, with its text."""
    dist.init_process_group("tricoll", timeout=datetime.timedelta(seconds=3))
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    loss = model(torch.ones(1, 4)).sum()
    if comm.rank == 1:
        return None
    with pytest.raises(RuntimeError, match=r"ranks \[1\]"):
        loss.backward()
    return True


def test_an_error_in_ddp(pool):
    assert pool(2).run(ddp_error, limit=60) == [True, None]


def mixed(comm):
    dist.init_process_group("cpu:gloo,cuda:tricoll")
    x = torch.full((3,), comm.rank + 1.0)
    dist.all_reduce(x)
    dist.barrier()
    objects = [None] * comm.world_size
    dist.all_gather_object(objects, comm.rank)
    group = dist.new_group([0, 1])
    if comm.rank < 2:
        dist.all_reduce(x, group=group)
    with pytest.raises(RuntimeError, match=r"cannot serve CUDA tensors here: .*CUDA"):
        process_group.communicator()
    dist.destroy_process_group()
    return x[0].item(), objects


def test_gloo_for_cpu_tensors(pool):
    assert pool(3).run(mixed, limit=60) == [(12.0, [0, 1, 2])] * 2 + [(6.0, [0, 1, 2])]


def again(comm):
    """Case 32: groups come and go, in the same store."""
    totals = []
    for k in range(8):
        dist.init_process_group("tricoll", pg_options={"slot_bytes": 1 << 14})
        x = torch.full((100,), float(k + comm.rank))
        dist.all_reduce(x)
        totals.append(x[0].item())
        dist.destroy_process_group()
    with pytest.raises(ValueError, match="initialized"):
        dist.all_reduce(torch.ones(1))
    return totals


def test_init_and_destroy_again_and_again(pool):
    assert pool(3).run(again, limit=100) == [[3.0 * k + 3 for k in range(8)]] * 3


def other_ranks(comm):
    """In one store, a group with a name that another one had, which had other ranks."""
    for members in ([0, 2], [0, 1, 2], [1, 2], [0, 1]):
        dist.init_process_group("tricoll", pg_options={"slot_bytes": 1 << 14})
        group = dist.new_group(members, pg_options={"slot_bytes": 1 << 14})
        x = torch.ones(5)
        if comm.rank in members:
            dist.all_reduce(x, group=group)
            assert x[0] == len(members)
        dist.destroy_process_group()


def test_a_group_is_not_taken_for_an_earlier_one_of_its_name(pool):
    pool(3).run(other_ranks, limit=60)


def late_for_a_group(comm):
    dist.init_process_group("tricoll")
    if comm.rank == 0:
        with pytest.raises(tricoll.CollectiveTimeout, match=r"rank 0: ranks \[1\] of 2 did not come to make the group"):
            dist.new_group([0, 1], timeout=datetime.timedelta(seconds=1))
    comm.barrier()


def test_a_group_that_a_rank_does_not_make(pool):
    pool(3).run(late_for_a_group, limit=60)


def sub_groups(comm):
    dist.init_process_group("tricoll")
    count = lambda: (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))
    seen = []
    for _ in range(20):
        group = dist.new_group([0, 1], pg_options={"slot_bytes": 1 << 14})
        x = torch.ones(10)
        work = dist.all_reduce(x, group=group, async_op=True)
        work.wait()
        assert x[0] == 2
        del work
        dist.destroy_process_group(group)
        seen.append(count())
    dist.destroy_process_group()
    return seen


def test_nothing_grows_with_groups(pool):
    for seen in pool(2).run(sub_groups, limit=100):
        (files, threads), (files_early, threads_early) = seen[-1], seen[4]  # PyTorch's own come and stay
        # A thread may be on its way out, or PyTorch's next one have come; 15 groups would leave 15.
        assert files <= files_early and threads <= threads_early + 3, seen


def wrong_options(comm):
    dist.init_process_group("tricoll", pg_options=3)


def test_options_that_are_none(pool):
    for error in pool(2).outcomes(wrong_options, limit=60):
        assert isinstance(error, TypeError) and "slot_bytes" in str(error)


def name_of_the_default_group():
    return dist.group.WORLD.group_name


def test_a_group_that_could_not_be_made_has_used_up_no_name(pool):
    """DTensor remembers the names of groups by their ranks: those of a pool's next run must be the same."""
    before = on(pool, 2, name_of_the_default_group)
    pool(2).outcomes(wrong_options, limit=60)
    assert on(pool, 2, name_of_the_default_group) == before


def test_registered_once():
    backend.register()
    assert dist.Backend.backend_capability["tricoll"] == ["cpu", "cuda"]
    assert dist.Backend.default_device_backend_map["cpu"] == "gloo"  # who asks for no backend gets what torch gives
    with pytest.raises(TypeError, match=r"tricoll\.init"):
        process_group.communicator(dist.ProcessGroup(dist.HashStore(), 0, 1))


# What is built on torch.distributed.


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


def same_everywhere(module):
    mine = torch.cat([p.detach().flatten() for p in module.parameters()])
    everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, mine)
    return all(torch.equal(each, mine) for each in everybody)


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
