"""The backend: every call of torch.distributed gives what it gives with Gloo, for groups and ranks, too."""

import time

import pytest
import torch
import torch.distributed as dist
from backends import equal, on, ranks_tensor

from tricoll import backend, process_group

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


def test_registered_once():
    backend.register()
    assert dist.Backend.backend_capability["tricoll"] == ["cpu", "cuda"]
    assert dist.Backend.default_device_backend_map["cpu"] == "gloo"  # who asks for no backend gets what torch gives
    with pytest.raises(TypeError, match=r"tricoll\.init"):
        process_group.communicator(dist.ProcessGroup(dist.HashStore(), 0, 1))
