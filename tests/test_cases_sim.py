"""Failures that users of such libraries have reported, on the simulator. Numbers are those of the project's case list.

Each test says what kind of mistake it guards against.
"""

import gc
import hashlib
import itertools
import random

import pytest
import torch
from streams import BF16_WIRE, CALLS, ROOTED, ROWED, Step, callable_in, played
from streams import FP32 as PLAIN

import tricoll
from tricoll import oracle, testing
from tricoll.fabric import cpu, sim
from tricoll.kernels import ring
from tricoll.testing import Guarded, Layout

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
SMALL = {"channels": 2, "slots": 3, "window": 2, "slot_bytes": 256, "block": 32}  # 64 FP32 a slot
BLOCK = 1 << 14  # elements, of the default settings

links = pytest.mark.parametrize("link", ["mapped", "put"])
tiles_ = pytest.mark.parametrize("tiles", ["torch", "triton"])
every_call = pytest.mark.parametrize("call", CALLS, ids=" ".join)
every_all_reduce = pytest.mark.parametrize("algo", [a for a, c in CALLS if c == "all_reduce"])


def wires(call, n=4, node_size=2):
    """The kinds of links on which a call can be made."""
    return [link for link in ("mapped", "put") if call in callable_in(n, node_size, link == "mapped")]


def step(call, n, rows, seed=0, **changes):
    """A call with so many rows a rank, where that means anything."""
    shape = (rows,) if call[1] in ("all_gather", "gather") or call[1] not in ROWED else (n * rows,)
    return Step(*call, shape, peer=(1 + seed) % n, root=seed % n, seed=seed, kind="random")._replace(**changes)


def step_aside(comm, times):
    """Let the others run for a while, as a rank that is late does."""
    for _ in range(times):
        comm._fabric.world.scheduler.step_aside()


def ramp(n, numel):
    """Element i of rank r is (r + 1) (i % 251): sums are exact, and no two ranks or places are alike."""
    return [(r + 1) * (torch.arange(numel) % 251).float() for r in range(n)]


# Infinities and NaN are among the values; NumPy, which is under Triton's interpreter, warns of them.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")


# 1: chunking and tails. A length that ranks, vectors or blocks do not divide.


@links
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_case_1_lengths_that_nothing_divides(simulate, n, link):
    lengths = [1, 2, 3, 5, 7, 8, 9, 15, 17, 31, 32, 33, 63, 64, 65, 127, 129, 1023, 1025, 4099]
    for seed, numel in enumerate([*lengths, n * BLOCK - 1, n * BLOCK, n * BLOCK + 1]):
        inputs = ramp(n, numel)
        exact = (torch.arange(numel) % 251).float() * (n * (n + 1) // 2)
        settings = SMALL if numel <= 4099 else {}

        def both_wires(comm):
            fp32 = Guarded(inputs[comm.rank], Layout(1))
            bf16 = Guarded(torch.zeros(numel, dtype=BF16), Layout(1))
            comm.all_reduce(inputs[comm.rank], out=bf16.view, wire="bf16", algo="ring")
            comm.all_reduce(fp32.view)
            return fp32, bf16

        results = simulate(both_wires, n, link=link, seed=seed, **settings).results
        for fp32, bf16 in results:
            testing.assert_same_bits(fp32.view, exact)
            fp32.check()
            bf16.check()
        testing.check_all_reduce([bf16.view for _, bf16 in results], inputs, wire=BF16)


@pytest.mark.parametrize("numel", [9_999_999, 10_556_587])
def test_case_1_ten_million(simulate, numel):
    n = 8
    inputs = ramp(n, numel)
    results = simulate(lambda comm: comm.all_reduce(inputs[comm.rank]), n).results
    exact = (torch.arange(numel) % 251).float() * (n * (n + 1) // 2)
    assert all(torch.equal(r, exact) for r in results)


@every_call
def test_case_1_every_call(simulate, call):
    lengths = [1, 2, 3, 5, 7, 15, 17, 31, 33, 65, 129, 1025]
    for n, node_size in [(4, 2) if call[0] == "hierarchical" else (3, 0)]:
        for link in wires(call, n, node_size):
            calls = [step(call, n, rows, k, dtypes=(PLAIN, BF16_WIRE)[k % 2]) for k, rows in enumerate(lengths)]
            played(simulate, n, calls, node_size, link=link, seed=n, **SMALL)


# 2: hangs. Some ranks own no element at all.


@links
@pytest.mark.parametrize("numel", [1, 2, 3, 7])
def test_case_2_fewer_elements_than_ranks(simulate, numel, link):
    n = 8

    def two_calls(comm):
        few = [torch.full((numel,), 2.0**comm.rank), torch.full((100,), 3.0**comm.rank)]
        return [(comm.all_reduce(x.clone()), comm.all_gather(x), comm.reduce_scatter(x.repeat(n))) for x in few]

    for seed in range(5):
        for first, second in simulate(two_calls, n, link=link, seed=seed, **SMALL).results:
            for (total, gathered, scattered), count, base in ((first, numel, 2.0), (second, 100, 3.0)):
                powers = torch.tensor([base**r for r in range(n)])
                assert total.tolist() == scattered.tolist() == [powers.sum().item()] * count
                assert gathered.tolist() == powers.repeat_interleave(count).tolist()


@every_call
def test_case_2_every_call(simulate, call):
    n, node_size = 8, 4
    for link in wires(call, n, node_size):
        for numel in (1, 7):
            shape = (n * numel,) if call[1] in ("reduce_scatter", "scatter", "all_to_all") else (numel,)
            calls = [step(call, n, 0, numel, shape=shape), step(call, n, 100, 1)]
            if call[1] in ("reduce_scatter", "all_gather"):  # all of it on one rank
                sizes = tuple(numel if r == numel else 0 for r in range(n))
                total = numel if call[1] == "reduce_scatter" else 0
                calls.insert(1, step(call, n, 0, 5, shape=(total,), sizes=sizes))
            played(simulate, n, calls, node_size, link=link, seed=numel, **SMALL)


# 3: crashes. Tensors without elements.


@links
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("shape", [(0,), (1, 0, 2), (0, 8)])
def test_case_3_no_elements(simulate, shape, n, check, link):
    def all_three(comm):
        x = torch.empty(shape)
        total, gathered = comm.all_reduce(x), comm.all_gather(x)
        scattered = comm.reduce_scatter(torch.empty(n * shape[0], *shape[1:]))
        assert total is x
        after = comm.all_reduce(torch.tensor([1.0 + comm.rank]))
        return total.shape, gathered.shape, scattered.shape, after.item()

    rest = shape[1:]
    expected = (shape, (n * shape[0], *rest), shape, n * (n + 1) / 2)
    assert simulate(all_three, n, link=link, check=check).results == [expected] * n


@every_call
@pytest.mark.parametrize("n", [1, 2, 4])
def test_case_3_every_call(simulate, n, call):
    for link in wires(call, n, 2):
        shapes = [(0,), (n, 0, 2), (0, 8)]
        calls = [step(call, n, 0, k, shape=shape, place=("out", "in place")[k % 2]) for k, shape in enumerate(shapes)]
        for check in (False, True):
            played(simulate, n, [*calls, step(call, n, 3)], 2, link=link, check=check)


@links
@pytest.mark.parametrize("check", [False, True])
def test_case_3_empty_on_one_rank_only(simulate, check, link):
    calls = [lambda c: c.all_reduce(torch.ones(0 if c.rank == 0 else 8))]
    texts = mismatched(simulate, 3, calls, link=link, check=check)
    assert all("float32[0]" in t and "float32[8]" in t for t in texts)


# 4: world size 1, and sizes that are no power of two.


@links
@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 7, 8])
def test_case_4_every_world_size(simulate, n, link):
    def constants(comm):
        x = torch.full((3 * n,), comm.rank + 1.0)
        before = x.clone()
        out = torch.empty(3 * n)
        assert comm.all_reduce(x, out=out) is out and torch.equal(x, before)
        scattered, gathered = comm.reduce_scatter(x), comm.all_gather(x)
        average = comm.all_reduce(x.clone(), op="avg")
        assert comm.all_reduce(x) is x
        assert torch.equal(x, out)
        return x, scattered, gathered, average

    total = float(n * (n + 1) // 2)
    assert total == {1: 1, 2: 3, 3: 6, 5: 15, 6: 21, 7: 28, 8: 36}[n]
    for x, scattered, gathered, average in simulate(constants, n, link=link).results:
        assert x.tolist() == [total] * 3 * n
        assert scattered.tolist() == [total] * 3
        assert gathered.tolist() == [r + 1.0 for r in range(n) for _ in range(3 * n)]
        assert average.tolist() == [torch.tensor(total / n).item()] * 3 * n


@every_call
@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 7, 8])
def test_case_4_every_call(simulate, n, call):
    """Rooted ones from the first rank, the second and the last."""
    node_size = {6: 3, 8: 2}.get(n, 0)
    roots = sorted({0, min(1, n - 1), n - 1}) if call[1] in ROOTED else [0]
    for link in wires(call, n, node_size):
        calls = [step(call, n, 3, n, root=root, op=("sum", "avg")[root % 2]) for root in roots]
        played(simulate, n, [*calls, step(call, n, 3, n, place="in place")], node_size, link=link)


def test_case_4_a_world_of_one_copies(simulate):
    def alone(comm):
        x = torch.tensor([-0.0, 1e-40, torch.inf, 1 / 3])
        out = torch.empty(4)
        comm.all_reduce(x, "avg", out=out)
        testing.assert_same_bits(out, x)
        testing.assert_same_bits(comm.all_gather(x), x)
        testing.assert_same_bits(comm.reduce_scatter(x, "avg"), x)
        same = x.clone()
        testing.assert_same_bits(comm.all_reduce(same, wire="bf16"), x.to(BF16).float())  # rounded as elsewhere
        return comm.stats()

    stats = simulate(alone, 1).results[0]
    assert (stats["calls"], stats["puts"], stats["signals"]) == (4, 0, 0)


# 6: tensors that are not contiguous are not reduced, or their neighbours are overwritten.


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


@links
@pytest.mark.parametrize("call", [c for c in CALLS if c[1] in ("all_reduce", "broadcast", "reduce")], ids=" ".join)
@pytest.mark.parametrize("name", views())
def test_case_6_in_place_on_a_view(simulate, name, call, link):
    n, node_size, (algo, collective) = 4, 2, call
    if link not in wires(call):
        pytest.skip("no multicast")
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
def test_case_6_a_target_whose_elements_are_one(simulate, check):
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


# 7: reduce-scatter of a transposed tensor takes its memory for its values.


@links
@pytest.mark.parametrize("algo", ["ring", "two_shot", "hierarchical"])
def test_case_7_reduce_scatter_of_a_transposed_tensor(simulate, algo, link):
    x = torch.arange(24.0).reshape(4, 3, 2).transpose(1, 2)
    results = simulate(lambda comm: comm.reduce_scatter(x, algo=algo), 4, link=link, node_size=2).results
    assert results[0].tolist() == [[[0, 8, 16], [4, 12, 20]]]
    for r, result in enumerate(results):
        assert result.shape == (1, 2, 3) and torch.equal(result[0], 4 * x[r])
    gathered = simulate(lambda comm: comm.all_gather(x * (comm.rank + 1)), 3, link=link).results
    assert all(torch.equal(g, torch.cat([x, 2 * x, 3 * x])) for g in gathered)


# 9: storage that does not begin at a multiple of 16 bytes.


@links
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32, torch.uint8], ids=str)
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_case_9_unaligned(simulate, k, dtype, link):
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
def test_case_9_every_call(simulate, call):
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


# 11: offsets that do not fit 32 bits.


@tiles_
@pytest.mark.parametrize("dtype, collective", [(FP32, "all_reduce"), (torch.int64, "all_reduce"), (FP32, "all_gather")])
def test_case_11_offsets_beyond_32_bits(simulate, monkeypatch, dtype, collective, tiles):
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


# 13 and 14: ranks that make different calls: hangs, or garbage.


def mismatched(simulate, n, calls, after=True, **options):
    """Run calls that differ from rank to rank, and one that does not. Returns what the ranks were told, in one list."""

    def tell(comm):
        texts = []
        for call in calls:
            with pytest.raises(tricoll.CollectiveMismatch) as caught:
                call(comm)
            texts.append(str(caught.value))
            assert f"rank {comm.rank}, call {len(texts)}: the ranks make different calls" in texts[-1]
        for k in range(3):
            total = comm.all_reduce(torch.full((65,), comm.rank + 1.0 + k))
            assert total.tolist() == [n * (n + 1) / 2 + n * k] * 65
        return texts

    return [text for texts in simulate(tell, n, **options).results for text in texts]


SHAPES = {
    "409600 and 409598": ((409600,), (409598,)),
    "twice as many rows": ((100, 2560), (200, 2560)),
    "one row and two": ((1, 64), (2, 64)),
    "one more": ((1000,), (1001,)),
    "none": ((12,), (0,)),
}


@links
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("name", SHAPES)
def test_case_13_sizes(simulate, name, collective, check, link):
    n = 4
    one, other = ((4 * s[0], *s[1:]) if collective == "reduce_scatter" else s for s in SHAPES[name])
    sizes = [f"{collective}(float32[{torch.Size(s).numel()}]" for s in (one, other)]
    for odd in (0, 2):
        texts = mismatched(
            simulate,
            n,
            [lambda c: getattr(c, collective)(torch.ones(other if c.rank == odd else one))],
            check=check,
            link=link,
        )
        assert len(texts) == n and all(s in t for t in texts for s in sizes)
        assert all(
            f"rank [{odd}]: {sizes[1]}" in t and f"ranks {[r for r in range(n) if r != odd]}: " in t for t in texts
        )


SYMMETRIC = [c for c in CALLS if c[1] not in (*ROOTED, "send", "barrier")]


@every_call
@pytest.mark.parametrize("check", [False, True])
def test_case_13_every_call(simulate, call, check):
    """n against n + 1 rows, and none, for whatever is the same on all ranks; with the check, for every collective."""
    algo, collective = call
    if collective in ("send", "barrier") or (call not in SYMMETRIC and not check):
        pytest.skip("see test_collectives_sim.py for those that only send")
    n = 4
    rows = lambda size: size if collective in ("all_gather", "gather") else n * size
    options = {"algo": algo} if collective in ROOTED[:2] or collective.startswith(("all_r", "all_g", "reduce")) else {}

    def one(comm, size):
        x = torch.ones(rows(size))
        if collective == "scatter" and comm.rank:
            x, options["out"] = None, torch.ones(size)
        elif collective == "scatter":
            options.pop("out", None)
        getattr(comm, collective)(x, **options)

    for link in wires(call):
        for one_size, other in ((10, 11), (3, 0)):
            for odd in (1, 2):
                calls = [lambda c: one(c, other if c.rank == odd else one_size)]
                texts = mismatched(simulate, n, calls, check=check, link=link, node_size=2)
                found = f"rank [{odd}]: {collective}(float32[{other if collective == 'scatter' else rows(other)}]"
                assert len(texts) == n and all(found in text for text in texts)


def test_case_13_with_the_check_nothing_is_written(simulate):
    def untouched(comm):
        x = torch.full((10 + comm.rank,), float(comm.rank))
        with pytest.raises(tricoll.CollectiveMismatch):
            comm.all_reduce(x)
        out = torch.full((10,), 5.0)
        with pytest.raises(tricoll.CollectiveMismatch):
            comm.all_reduce(torch.ones(10), out=out, wire="bf16" if comm.rank else "fp16")
        return x.eq(comm.rank).all() and out.eq(5.0).all()

    assert all(simulate(untouched, 3, check=True).results)


@pytest.mark.parametrize("check", [False, True])
def test_case_13_same_size_in_another_shape(simulate, check):
    """Allowed, as in torch: elements are matched in logical order, and each rank keeps its shape."""

    def shapes(comm):
        x = torch.arange(6.0).view((2, 3) if comm.rank else (3, 2))
        return comm.all_reduce(x)

    results = simulate(shapes, 3, check=check).results
    assert [r.shape for r in results] == [(3, 2), (2, 3), (2, 3)]
    assert all(r.reshape(-1).tolist() == [0, 3, 6, 9, 12, 15] for r in results)


DIFFERENT = {
    "dtype, with as many bytes": (
        lambda c: c.all_reduce(torch.ones(4, dtype=BF16)),
        lambda c: c.all_reduce(torch.ones(2)),
        ("bfloat16[4]", "float32[2]"),
    ),
    "dtype, with as many elements": (
        lambda c: c.all_reduce(torch.ones(64, dtype=torch.int32)),
        lambda c: c.all_reduce(torch.ones(64)),
        ("int32[64]", "float32[64]"),
    ),
    "op": (
        lambda c: c.all_reduce(torch.ones(64)),
        lambda c: c.all_reduce(torch.ones(64), "avg"),
        ("op=sum", "op=avg"),
    ),
    "wire": (
        lambda c: c.all_reduce(torch.ones(64), wire="bf16"),
        lambda c: c.all_reduce(torch.ones(64), wire="fp16"),
        ("wire=bfloat16", "wire=float16"),
    ),
    "output": (
        lambda c: c.all_reduce(torch.ones(64), wire="bf16"),
        lambda c: c.all_reduce(torch.ones(64), out=torch.ones(64, dtype=BF16), wire="bf16"),
        ("out=float32", "out=bfloat16"),
    ),
    "factor": (
        lambda c: c.all_reduce(torch.ones(64), tricoll.premul_sum(0.5)),
        lambda c: c.all_reduce(torch.ones(64), tricoll.premul_sum(0.25)),
        ("premul_sum(0.5)", "premul_sum(0.25)"),
    ),
    "algorithm": (
        lambda c: c.all_reduce(torch.ones(64), algo="two_shot"),
        lambda c: c.all_reduce(torch.ones(64), algo="ring"),
        ("algo=two_shot", "algo=ring"),
    ),
    "rows a rank": (
        lambda c: c.all_gather(torch.ones(2 + (c.rank == 0)), sizes=[3, 2, 2]),
        lambda c: c.all_gather(torch.ones(2), sizes=[2, 2, 2]),
        ("sizes=[3, 2, 2]", "sizes=[2, 2, 2]"),
    ),
    "all_to_all, with as many elements": (
        lambda c: c.all_gather(torch.ones(66), algo="two_shot"),
        lambda c: c.all_to_all(torch.ones(66)),
        ("all_gather(float32[66]", "all_to_all(float32[66]"),
    ),
    "collective": (
        lambda c: c.all_reduce(torch.ones(64)),
        lambda c: c.reduce_scatter(torch.ones(66)),
        ("all_reduce(float32[64]", "reduce_scatter(float32[66]"),
    ),
    "collective, with as many elements": (
        lambda c: c.all_gather(torch.ones(66)),
        lambda c: c.reduce_scatter(torch.ones(66)),
        ("all_gather(float32[66]", "reduce_scatter(float32[66]"),
    ),
}


@links
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("name", DIFFERENT)
def test_case_14_anything_else_that_differs(simulate, name, check, link):
    one, other, words = DIFFERENT[name]
    for odd in range(3):
        for seed in range(3):
            texts = mismatched(
                simulate,
                3,
                [lambda c: (other if c.rank == odd else one)(c)],
                check=check,
                link=link,
                seed=seed,
                **SMALL,
            )
            assert all(word in t for t in texts for word in words)


@links
@pytest.mark.parametrize("algo", ["ring", "tree", "one_shot"])
def test_case_14_another_root(simulate, algo, link):
    for collective in ("broadcast",) if algo == "one_shot" else ("broadcast", "reduce"):
        calls = [lambda c: getattr(c, collective)(torch.ones(9), int(c.rank == 2), algo=algo)]
        texts = mismatched(simulate, 3, calls, check=True, link=link)
        assert len(texts) == 3 and all("root=0" in t and "root=1" in t for t in texts)


@links
@pytest.mark.parametrize("check", [False, True])
def test_case_14_ranks_that_are_off_by_one_call(simulate, check, link):
    """1025 elements meet 262144, and the other way round in the next call."""
    sizes = (1025, 262144)
    calls = [lambda c, k=k: c.all_reduce(torch.ones(sizes[(k + (c.rank == 1)) % 2])) for k in range(2)]
    texts = mismatched(simulate, 3, calls, check=check, link=link)
    assert len(texts) == 6 and all("float32[1025]" in t and "float32[262144]" in t for t in texts)


@links
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("times", [1, 3])
def test_case_14_calls_that_one_rank_refuses(simulate, times, check, link):
    """Wrong arguments on one rank are its own ValueError or TypeError, and no riddle for the others."""

    def refused(comm):
        for wrong in ({"op": "and"}, {"wire": "int8"}, {"algo": "star"})[:times]:
            if comm.rank == 1:
                with pytest.raises((ValueError, TypeError)):
                    comm.all_reduce(torch.ones(8), **wrong)
            else:
                with pytest.raises(tricoll.CollectiveMismatch, match=r"rank \[1\]: all_reduce: refused"):
                    comm.all_reduce(torch.ones(8))
        return comm.all_reduce(torch.ones(8)).tolist()

    for seed in range(5):
        assert simulate(refused, 4, check=check, link=link, seed=seed).results == [[4.0] * 8] * 4


@links
@pytest.mark.parametrize("seed", range(25))
def test_case_14_in_the_middle_of_a_stream(simulate, seed, link):
    """Good and bad calls in turn, without anything between them and with one rank behind the others."""
    n = 2 + seed % 4
    bad = {2, 4, 5, 9}

    def stream(comm):
        chance, results = random.Random(comm.rank + 100 * seed), []
        for k in range(11):
            if comm.rank == n - 1:
                step_aside(comm, chance.randrange(60))
            x = torch.full((150,), comm.rank + 1.0 + k)
            if k not in bad:
                results.append(comm.all_reduce(x))
            else:
                with pytest.raises(tricoll.CollectiveMismatch, match=f"call {k + 1}: the ranks make different calls"):
                    comm.all_reduce(x[: 149 if comm.rank == k % n else 150])
        return results

    for results in simulate(stream, n, link=link, seed=seed, **SMALL).results:
        good = [k for k in range(11) if k not in bad]
        assert [r.unique().tolist() for r in results] == [[n * (n + 1) / 2 + n * k] for k in good]


# 16: FP32 to BF16. See also tests/kernels/test_numerics.py.


def bits(*patterns):
    return torch.tensor(patterns, dtype=torch.int64).to(torch.int32).view(FP32)


@links
@tiles_
@pytest.mark.parametrize("n", [1, 2])
def test_case_16_casts(simulate, n, tiles, link):
    values = torch.cat(
        [
            torch.tensor([3.14, 1e-8, 0.2691408770292272, 1e-40]),
            bits(0x3F808000, 0x3F818000, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0x7F800000, 0xFF800000),
            bits(0x7F800001, 0x7FFF8C22, 0x80000000, 0x00008000, 0x00008001),
        ]
    )
    words = [0x4049, 0x322C, 0x3E8A, 0x0001, 0x3F80, 0x3F82, 0x7F7F, 0x7F80, 0x7F80, 0x7F80, 0xFF80]
    expected = bits(*(w << 16 for w in [*words, 0x7FC0, 0x7FC0, 0x8000, 0x0000, 0x0001])).to(BF16)
    assert len(values) == 16  # so that each of two ranks owns all of them once
    zeros = torch.where(values.eq(0) & values.signbit(), -0.0, 0.0)

    def cast(comm):
        x = (zeros if comm.rank else values).repeat(2)
        summed = comm.all_reduce(x, out=torch.empty(32, dtype=BF16), wire="bf16")
        gathered = comm.all_gather(x, out=torch.empty(n * 32, dtype=BF16), wire="bf16")
        return summed, gathered[:32], comm.all_reduce(x.clone(), wire="bf16").to(BF16)

    for result in simulate(cast, n, tiles=tiles, link=link).results:
        for one in result:
            testing.assert_same_bits(one, expected.repeat(2))


@tiles_
@pytest.mark.parametrize("wire", [BF16, FP16], ids=str)
def test_case_16_random_bits(simulate, wire, tiles):
    """100,000 random bit patterns are cast as torch casts them."""
    random_bits = torch.randint(-(2**31), 2**31, (100_000,), generator=torch.Generator().manual_seed(16))
    x = random_bits.to(torch.int32).view(FP32)

    def cast(comm):
        mine = x if comm.rank == 0 else torch.full_like(x, -0.0)  # adds nothing, not even to -0.0
        return comm.all_reduce(mine, out=torch.empty(x.shape, dtype=wire), wire=wire)

    for n in (1, 2):
        for result in simulate(cast, n, tiles=tiles).results:
            testing.assert_same_bits(result, x.to(wire))


# 17: NaN and infinities in min, max and sum: whose they are does not matter.


@every_all_reduce
@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=str)
def test_case_17_not_a_number(simulate, algo, dtype):
    """1, NaN, 3, 4 on four ranks, in all 24 orders; infinities of both signs; two NaN."""
    orders = list(itertools.permutations((1.0, torch.nan, 3.0, 4.0)))
    orders += set(itertools.permutations((torch.inf, -torch.inf, 1.0, 1.0)))
    orders += set(itertools.permutations((torch.nan, torch.nan, 1.0, 2.0)))
    values = torch.tensor(orders).T.contiguous().to(dtype)
    infinite = torch.zeros(len(orders), dtype=torch.bool)
    infinite[24:36] = True
    ops = ("sum",) if algo == "multimem" else ("min", "max", "sum")

    def work(comm):
        return [comm.all_reduce(values[comm.rank].clone(), op, algo=algo) for op in ops]

    for link in wires((algo, "all_reduce")):
        for results in simulate(work, 4, link=link, node_size=2).results:
            for op, result in zip(ops, results, strict=True):
                expected = torch.full_like(result, torch.nan)
                if op != "sum":
                    expected[infinite] = -torch.inf if op == "min" else torch.inf
                testing.assert_same_bits(result, expected)


# 20: partial sums in BF16, or another type on the wire than was asked for.


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_case_20_partial_sums(simulate, dtype):
    """256 + 7 x 1 is 264 in BF16 if it is added in FP32: in every element, unless a BF16 ring is asked for."""
    n, numel = 8, 4096
    inputs = [torch.full((numel,), 256.0 if r == 0 else 1.0, dtype=dtype) for r in range(n)]

    choices = ((None, "auto"), ("fp32", "ring"), ("bf16", "two_shot"), ("bf16", "one_shot"), ("bf16", "ring"))

    def add(comm):
        out = [torch.empty(numel, dtype=BF16) for _ in choices]
        return [
            comm.all_reduce(inputs[comm.rank], out=o, wire=wire, algo=algo)
            for o, (wire, algo) in zip(out, choices, strict=True)
        ]

    results = [(torch.stack(right), ring) for *right, ring in simulate(add, n).results]
    assert all(right.eq(264.0).all() for right, _ in results)
    # With BF16 on the wire a ring rounds at every hop, and what is lost depends on where the chunk started: documented,
    # the same on all ranks, and what the oracle says.
    testing.check_all_reduce([bf16 for _, bf16 in results], inputs, wire=BF16)
    testing.check_all_reduce([bf16 for _, bf16 in results], inputs, wire=BF16, algorithm=None)
    assert set(results[0][1].unique().tolist()) == {256.0, 260.0, 264.0}


@every_all_reduce
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_case_20_every_algorithm(simulate, algo, dtype):
    """With an FP32 wire, 264; with a BF16 wire where there is one rounding, too. Elsewhere what the oracle says."""
    n, numel = 8, 512
    inputs = [torch.full((numel,), 256.0 if r == 0 else 1.0, dtype=dtype) for r in range(n)]

    def add(comm, wire):
        return comm.all_reduce(inputs[comm.rank], out=torch.empty(numel, dtype=BF16), wire=wire, algo=algo)

    for link in wires((algo, "all_reduce"), n, 4):
        assert all(r.eq(264).all() for r in simulate(add, n, "fp32", link=link, node_size=4).results)
        results = simulate(add, n, "bf16", link=link, node_size=4).results
        testing.check_all_reduce(results, inputs, "sum", BF16, algo, node_size=4)
        if algo in ("one_shot", "two_shot", "multimem"):
            assert all(r.eq(264).all() for r in results)


def test_case_20_fp16_is_not_sent_for_bf16(simulate):
    """1e5 overflows FP16."""
    x = torch.full((64,), 1e5)
    for result in simulate(lambda c: c.all_reduce(x if c.rank == 2 else x * 0, out=x.clone(), wire="bf16"), 4).results:
        assert result.eq(99840.0).all()


# 22: bool, small integers and float8.


def small_types(algo):
    """What three ranks give, the op, and the right result."""
    integer = lambda dtype, *values: [torch.full((40,), v, dtype=dtype) for v in values]
    large = 2**60 + 1
    table = {
        "bool": (integer(torch.bool, True, True, False), "sum", True),
        "uint8": (integer(torch.uint8, 200, 100, 0), "sum", 44),
        "int8": (integer(torch.int8, 120, 100, 0), "sum", -36),
        "int64": (integer(torch.int64, large, large, 0), "sum", 2**61 + 2),
    }
    more = algo_ranks(algo) - 3
    return {name: (x + x[-1:] * more, op, right) for name, (x, op, right) in table.items()}


def algo_ranks(algo):
    return 4 if algo == "hierarchical" else 3


@pytest.mark.parametrize("algo", ["ring", "tree", "two_shot", "one_shot", "hierarchical"])
@links
def test_case_22_small_types_are_reduced_in_themselves(simulate, algo, link):
    for inputs, op, right in small_types(algo).values():
        n = algo_ranks(algo)

        def work(comm):
            return comm.all_reduce(inputs[comm.rank].clone(), op, algo=algo)

        for result in simulate(work, n, link=link, node_size=2).results:
            assert result.dtype == inputs[0].dtype and result.tolist() == [right] * 40
            assert result.dtype != torch.bool or result.view(torch.uint8).tolist() == [1] * 40  # not 2


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@every_call
def test_case_22_float8(simulate, call, dtype):
    """All 256 bit patterns, moved as they are; reductions as the oracle says."""
    for link in wires(call):
        kind = "bits" if call[1] not in ("all_reduce", "reduce", "reduce_scatter") else "mixed"
        wire = torch.bfloat16 if call[0] == "multimem" else dtype
        calls = [step(call, 4, 256, k, dtypes=(dtype, wire, dtype), kind=kind) for k in range(3)]
        played(simulate, 4, calls, 2, link=link, **SMALL)
    if call == ("ring", "all_gather"):
        x = torch.arange(256, dtype=torch.uint8).view(dtype)
        for result in simulate(lambda c: c.all_gather(x), 2).results:
            assert torch.equal(result.view(torch.uint8), x.view(torch.uint8).repeat(2))


# 23: complex numbers, and tensors that are conjugated or negated only on paper.


@pytest.mark.parametrize("algo", ["ring", "tree", "two_shot", "one_shot", "hierarchical"])
@links
def test_case_23_complex(simulate, algo, link):
    n = 4

    def work(comm):
        z = torch.full((5,), 1 + 2j if comm.rank % 2 == 0 else 3 + 4j)
        conjugated, imaginary, negative = z.clone().conj(), z.clone().imag, torch._neg_view(z.clone())
        options = {"algo": algo}
        return (
            comm.all_reduce(z.clone(), **options).tolist(),
            comm.all_reduce(conjugated, **options).tolist(),
            comm.all_reduce(imaginary, **options).tolist(),
            comm.all_reduce(negative, **options).tolist(),
            comm.all_reduce(z.conj(), out=torch.zeros(5, dtype=z.dtype), **options).tolist(),
            comm.all_reduce(z.clone(), "avg", **options).tolist(),
        )

    for plain, conjugated, imaginary, negative, out, average in simulate(work, n, link=link, node_size=2).results:
        assert plain == [8 + 12j] * 5 and conjugated == out == [8 - 12j] * 5
        assert imaginary == [12.0] * 5 and negative == [-8 - 12j] * 5 and average == [2 + 3j] * 5


@every_call
def test_case_23_every_call(simulate, call):
    """Random complex numbers of both sizes, or a TypeError that says what can be done."""
    if call[0] == "multimem":
        with pytest.raises(TypeError, match="multimem sends"):
            simulate(lambda c: c.all_reduce(torch.ones(3, dtype=torch.complex64), algo="multimem"), 2)
        return
    for link in wires(call):
        types = (torch.complex64, torch.complex128)
        calls = [step(call, 4, 9, k, dtypes=(types[k % 2],) * 3, op=("sum", "avg")[k // 2 % 2]) for k in range(4)]
        played(simulate, 4, calls, 2, link=link, **SMALL)


def test_case_23_no_largest_complex_number(simulate):
    def work(comm):
        for op in ("max", "min", "prod", tricoll.premul_sum(2.0)):
            with pytest.raises(TypeError, match=r"complex64 cannot be reduced with .*sum.*avg"):
                comm.all_reduce(torch.ones(3, dtype=torch.complex64), op)
        return comm.all_reduce(torch.ones(1)).item()

    assert simulate(work, 2).results == [2.0, 2.0]


# 24: the same bits on every rank and in every run.


@links
@pytest.mark.parametrize("dtype, wire", [(FP32, FP32), (BF16, BF16), (FP32, BF16)], ids=str)
@pytest.mark.parametrize("n", [3, 4, 8])
def test_case_24_one_result(simulate, n, dtype, wire, link):
    inputs = testing.make_inputs(n, (130,), dtype, "cancelling", n)

    def digests(comm, junk):
        torch.empty(junk)  # allocations move
        calls = [comm.all_reduce(inputs[comm.rank].clone(), op, wire=wire, algo="ring") for op in ("sum", "avg")]
        return [hashlib.sha256(oracle.bits(r).numpy().tobytes()).hexdigest() for r in calls]

    found = set()
    for seed in range(200 // n):
        settings = SMALL | {"delivery": ("adversarial", "prompt")[seed % 5 == 4]}
        found |= {tuple(r) for r in simulate(digests, n, 1000 * seed, link=link, seed=seed, **settings).results}
    assert len(found) == 1


@every_call
def test_case_24_every_call(simulate, call):
    """Other seeds and deliveries, other places: the bits that the oracle has, so the same ones."""
    for link in wires(call):
        for seed in range(4):
            options = SMALL | {"delivery": ("adversarial", "prompt")[seed % 4 == 3]}
            calls = [step(call, 4, 33, 24, op=op, kind="cancelling", dtypes=BF16_WIRE) for op in ("sum", "avg")]
            played(simulate, 4, calls, 2, link=link, seed=seed, **options)


def test_case_24_cancellation_probe(simulate):
    """1e8, 1, -1e8, 1 shows the order of additions: it depends on the chunk, and on nothing else."""
    values = (1e8, 1.0, -1e8, 1.0)
    found = {
        tuple(r.tolist())
        for seed in range(20)
        for r in simulate(lambda c: c.all_reduce(torch.full((64,), values[c.rank]), algo="ring"), 4, seed=seed).results
    }
    assert found == {(0.0,) * 16 + (1.0,) * 16 + (0.0,) * 16 + (1.0,) * 16}


# 26: a fast rank overwrites a slot that a slow rank still reads.


@links
@pytest.mark.parametrize("seed, calls", [*((seed, 64) for seed in range(8)), (8, 2000)])
def test_case_26_back_to_back(simulate, tally, seed, calls, link):
    n = 4

    def queue(comm):
        chance, results = random.Random(seed), []
        for k in range(calls):
            if comm.rank == 3:
                step_aside(comm, chance.choice((0, 0, 1, 30)))
            results.append(comm.all_reduce(torch.full((20,), float(comm.rank + 1 + k))))
        return results

    tally["sequences without a barrier"] += 1
    for results in simulate(queue, n, link=link, seed=seed, slots=2 + seed % 3, window=1, slot_bytes=128).results:
        assert torch.equal(torch.stack(results), (10.0 + 4 * torch.arange(calls))[:, None].expand(-1, 20))


@every_call
def test_case_26_every_call(simulate, tally, call):
    """24 calls with other values and sizes each time, two slots, one rank late; results are looked at in the end."""
    for link in wires(call):
        calls = [step(call, 4, (1, 20, 0, 90)[k % 4], k) for k in range(24)]
        tally["sequences without a barrier"] += 1
        played(simulate, 4, calls, 2, link=link, seed=26, slots=2, window=1, slot_bytes=640, block=16)


# 28: a signal is seen before its data, or only counts.


def test_case_28_reordered_puts(simulate):
    """Multi-piece rings, 200 seeds: nothing may rely on the order of two puts."""
    n = 4
    for seed in range(200):
        inputs = testing.make_inputs(n, (700,), FP32, seed=seed)
        settings = SMALL | {"channels": 1 + seed % 2, "slots": 3 + seed % 3}
        results = simulate(
            lambda c: c.all_reduce(inputs[c.rank].clone(), wire="bf16", algo="ring"),
            n,
            link="put",
            seed=seed,
            **settings,
        ).results
        testing.check_all_reduce(results, inputs, wire=BF16)


@every_call
def test_case_28_every_call(simulate, call):
    """Puts, or words, in any order: several pieces a channel."""
    link = "put" if "put" in wires(call) else "mapped"
    for seed in range(10):
        calls = [step(call, 4, 150, seed + k, dtypes=BF16_WIRE) for k in range(2)]
        options = {"channels": 1 + seed % 2, "slots": 3 + seed % 3, "window": 2, "slot_bytes": 640, "block": 32}
        played(simulate, 4, calls, 2, link=link, seed=seed, **options)


@links
@pytest.mark.parametrize("seed", range(10))
def test_case_28_a_rank_that_allocates_late(simulate, monkeypatch, seed, link):
    """Nobody may write to a rank's flags before that rank has zeroed them: at the start, ..."""
    allocate = sim.SimFabric.allocate

    def late(fabric, *arguments):
        if fabric.rank == 1:
            for _ in range(200):
                fabric.world.scheduler.step_aside()
        return allocate(fabric, *arguments)

    monkeypatch.setattr(sim.SimFabric, "allocate", late)
    results = simulate(
        lambda c: c.all_reduce(torch.full((300,), c.rank + 1.0)), 3, link=link, seed=seed, **SMALL
    ).results
    assert all(r.eq(6.0).all() for r in results)


@links
@pytest.mark.parametrize("seed", range(10))
def test_case_28_a_rank_that_zeroes_its_flags_late(simulate, monkeypatch, seed, link):
    """... nor in the fresh start after a mismatch."""
    meet = tricoll.control.Control.meet

    def late(control):
        meet(control)
        if control.fabric.rank == 1:
            for _ in range(200):
                control.fabric.world.scheduler.step_aside()

    monkeypatch.setattr(tricoll.control.Control, "meet", late)
    calls = [lambda c: c.all_reduce(torch.ones(300 + (c.rank == 2)))] * 2
    assert len(mismatched(simulate, 3, calls, link=link, seed=seed, **SMALL)) == 6


# 29: results are used after what they were made of is gone.


@links
def test_case_29_temporaries(simulate, link):
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
