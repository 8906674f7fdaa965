"""Views, transposed and unaligned tensors, offsets beyond 32 bits, and memory that is freed early."""

import gc
import itertools

import pytest
import torch
from cases import BF16, FP16, FP32, SMALL, both_tiles, every_call, links, quiet, step, wires
from streams import CALLS, ROWED, played

from tricoll import oracle, testing
from tricoll.fabric import cpu
from tricoll.kernels import ring
from tricoll.testing import Layout

pytestmark = quiet


# Tensors that are not contiguous are not reduced, or their neighbours are overwritten.


def views():
    """name: (the whole, the part of it that is reduced)"""
    return {
        "transposed": lambda: (base := torch.arange(12.0), base.view(3, 4).t()),
        "column": lambda: (base := torch.arange(4.0), base.view(2, 2)[:, 0]),
        "every second": lambda: (base := torch.arange(9.0), base[::2]),
        "the only one of two": lambda: (base := torch.arange(2.0), base[::2]),
        "none of two": lambda: (base := torch.arange(2.0), base[2::2]),
        "scalar": lambda: (base := torch.arange(3.0), base[1]),
        "reversed dimensions": lambda: (base := torch.arange(24.0), base.view(2, 3, 4).permute(2, 1, 0)),
    }


IN_PLACE = [(c, link) for c in CALLS if c[1] in ("all_reduce", "broadcast", "reduce") for link in wires(c)]


@pytest.mark.parametrize("call, link", IN_PLACE, ids=lambda v: v if isinstance(v, str) else " ".join(v))
@pytest.mark.parametrize("name", views())
def test_in_place_on_a_view(simulate, name, call, link):
    n, node_size, (algo, collective) = 4, 2, call
    root = {} if collective == "all_reduce" else {"root": 3}

    def reduce_part(comm):
        base, part = views()[name]()
        part.copy_(part * (comm.rank + 1))
        before = base.clone()
        assert getattr(comm, collective)(part, algo=algo, **root) is part
        return base, before, part

    original, part = views()[name]()
    inside = torch.zeros_like(original)
    inside.as_strided(part.shape, part.stride(), part.storage_offset()).fill_(1.0)
    for rank, (base, before, reduced) in enumerate(simulate(reduce_part, n, link=link, node_size=node_size).results):
        factor = {"all_reduce": 10, "broadcast": 4, "reduce": 10 if rank == 3 else rank + 1}[collective]
        assert reduced.tolist() == (part * factor).tolist()
        assert torch.equal(base.where(inside == 0, torch.tensor(0.0)), before.where(inside == 0, torch.tensor(0.0)))


@pytest.mark.parametrize("check", [False, True])
def test_a_target_whose_elements_are_one(simulate, check):
    """expand() makes four elements of one: there is nowhere to write four results."""

    def refused(comm):
        x = torch.tensor([comm.rank + 1.0])
        with pytest.raises(ValueError, match="share memory"):
            comm.all_reduce(x.expand(4))
        with pytest.raises(ValueError, match="share memory"):
            comm.all_reduce(torch.ones(4), out=torch.zeros(1).expand(4))
        assert x.item() == comm.rank + 1
        source = x.expand(4)  # to read from it is fine
        return comm.all_reduce(source, out=torch.empty(4)).tolist()

    assert simulate(refused, 3, check=check).results == [[6.0] * 4] * 3


# Reduce-scatter of a transposed tensor takes its memory for its values.


@links
@pytest.mark.parametrize("algo", ["ring", "two_shot", "hierarchical"])
def test_reduce_scatter_of_a_transposed_tensor(simulate, algo, link):
    x = torch.arange(24.0).reshape(4, 3, 2).transpose(1, 2)
    results = simulate(lambda comm: comm.reduce_scatter(x, algo=algo), 4, link=link, node_size=2).results
    assert results[0].tolist() == [[[0, 8, 16], [4, 12, 20]]]
    for r, result in enumerate(results):
        assert result.shape == (1, 2, 3) and torch.equal(result[0], 4 * x[r])
    gathered = simulate(lambda comm: comm.all_gather(x * (comm.rank + 1)), 3, link=link).results
    assert all(torch.equal(g, torch.cat([x, 2 * x, 3 * x])) for g in gathered)


# Storage that does not begin at a multiple of 16 bytes.


@links
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32, torch.uint8], ids=str)
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_unaligned(simulate, k, dtype, link):
    n, numel = 4, 4096
    inputs = testing.make_inputs(n, (numel,), dtype, seed=k)
    algorithm = "two_shot" if dtype.itemsize == 2 else "ring"

    def all_three(comm):
        base = torch.full((numel + 8,), 7).to(dtype)
        view = base[k : k + numel]
        view.copy_(inputs[comm.rank])
        gathered, scattered = comm.all_gather(view), comm.reduce_scatter(view, algo=algorithm)
        out = torch.full((numel + 8,), 7).to(dtype)
        comm.all_reduce(view, out=out[k : k + numel], algo=algorithm)
        comm.all_reduce(view, algo=algorithm)
        testing.assert_same_bits(base, out)
        assert base[:k].tolist() + base[k + numel :].tolist() == [7] * 8
        return view, scattered, gathered

    results = simulate(all_three, n, link=link, slot_bytes=1024).results
    testing.check_all_reduce([r[0] for r in results], inputs, algorithm=algorithm)
    testing.check_reduce_scatter([r[1] for r in results], inputs, algorithm=algorithm)
    testing.check_all_gather([r[2] for r in results], inputs)


@every_call
def test_unaligned_in_every_call(simulate, call):
    """Offsets of 1, 2, 3 and 5 elements, and neighbours that are two apart; Guarded looks at what is around them."""
    n, dtypes = 4, [(d, d, d) for d in (BF16, FP16, FP32, torch.uint8)]
    for link in wires(call):
        calls = []
        for k, ((offset, stride), types) in enumerate(itertools.product([(1, 1), (2, 1), (3, 1), (5, 2)], dtypes)):
            if call[0] == "multimem" and types[0] == torch.uint8:
                continue
            place = ("out", "in place")[k % 2] if stride == 1 or call[1] not in ROWED else "out"
            layouts = {"layout": Layout(offset, stride), "out_layout": Layout(5 - offset, stride)}
            calls.append(step(call, n, 65, k, dtypes=types, place=place, kind="mixed", **layouts))
        played(simulate, n, calls, 2, link=link, seed=1, **SMALL)


# Offsets that do not fit 32 bits.


@both_tiles
@pytest.mark.parametrize("dtype, collective", [(FP32, "all_reduce"), (torch.int64, "all_reduce"), (FP32, "all_gather")])
def test_offsets_beyond_32_bits(simulate, monkeypatch, dtype, collective, tiles):
    """The kernel's own offsets for 2^31 + 8 elements and more; nothing is as large, because nothing is touched."""
    n, numel, pieces, size = 8, 2**31 + 8, 2, dtype.itemsize
    chunk = oracle.chunk_size(numel, n)
    piece = chunk // 2 // 16 * 16 + 16
    seen = {r: [] for r in range(n)}
    whole = n * chunk if collective == "all_gather" else numel
    edges = [min(c * chunk, whole) for c in range(n + 1)]

    def record(own, recv, out, send, count, red, OWN, RECV, KEEP, SEND, LAST, OP, BLOCK):
        from tricoll.kernels import jit

        places = [cpu.address(p) if used else None for p, used in ((own, OWN), (out, KEEP))]
        seen[jit.program().rank].append((*places, cpu.integer(count)))

    monkeypatch.setattr(ring, "transfer", record)

    def launch(comm):
        x, out, memory = torch.empty(1, dtype=dtype), torch.empty(1, dtype=dtype), comm._executor.workspace
        arguments = {
            "x": x, "out": out, "heap": memory.heap.words, "bases": memory.heap.bases, "counters": memory.counters,
            "status": memory.status, "edges": torch.tensor(edges), "tally": None,
            "piece": piece, "pieces": pieces, "me": comm.rank, "world": n, "channels": 1, "fingerprint": 1,
            "timeout": 10**9, "WIRE": ring.tl.float32 if dtype == FP32 else ring.tl.int64, "OP": "sum",
            "MAPPED": True, "SLOTS": 3, "SLOT": 32, "WINDOW": 1, "ALIGNED": True, "BLOCK": 128, "scale": 1.0,
        }  # fmt: skip
        comm._fabric.launch(getattr(ring, collective), 1, arguments)
        assert memory.status.eq(0).all()
        return x.data_ptr(), out.data_ptr()

    settings = {"channels": 1, "slots": 3, "window": 1, "slot_bytes": 128}
    starts = simulate(launch, n, tiles=tiles, **settings).results
    for me, (x, out) in enumerate(starts):
        expected = []
        for at in range(0, pieces * piece, piece):
            own = [(me - 1 - hop) % n for hop in range(n)]  # chunks in the order in which they are sent
            kept = [(me - hop) % n for hop in range(n)]
            count = lambda c: max(min(piece, chunk - at, whole - c * chunk - at), 0)
            if collective == "all_reduce":
                reads = [((x + (c * chunk + at) * size), None, count(c)) for c in own[:-1]]
                last = (x + (me * chunk + at) * size, out + (me * chunk + at) * size, count(me))
                expected += [*reads, last, *((None, out + (c * chunk + at) * size, count(c)) for c in kept[1:])]
            else:
                expected.append((x + at * size, out + (me * chunk + at) * size, count(me)))
                expected += [(None, out + (c * chunk + at) * size, count(c)) for c in kept[1:]]
        assert seen[me] == expected
    assert max(place - out for _, place, _ in seen[7] if place) > 2**32 * size // 4


# Results are used after what they were made of is gone.


@links
def test_temporaries(simulate, link):
    """Every input is a temporary; memory is freed and used for other things before the results are looked at."""
    n = 4

    def work(comm):
        results = []
        for k in range(5):
            value = comm.rank + 1.0 + k
            results.append(comm.all_reduce(torch.full((50,), value)))
            results.append(comm.reduce_scatter(torch.full((50 * n,), value)))
            results.append(comm.all_to_all(torch.full((50 * n,), value)).view(n, 50).sum(0))
            results.append(comm.all_gather(torch.full((50,), value)).view(n, 50).sum(0))
            if k == 2:
                gc.collect()
            junk = [torch.full((50,), -1.0) for _ in range(20)]
            comm.barrier()
        del junk
        return results

    for results in simulate(work, n, link=link, **SMALL).results:
        for k, result in enumerate(results):
            assert result.tolist() == [10.0 + 4 * (k // 4)] * 50
