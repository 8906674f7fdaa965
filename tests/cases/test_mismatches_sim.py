"""Ranks that make different calls: told on every rank, and what comes after works."""

import random

import pytest
import torch
from cases import BF16, SMALL, links, quiet, step_aside, wires
from streams import CALLS, ROOTED

import tricoll

pytestmark = quiet


# Ranks that make different calls: hangs, or garbage.


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
def test_other_sizes(simulate, name, collective, check, link):
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


# Without the check, those who only send cannot know: see test_collectives_sim.py.
NOTICED = [
    (call, check)
    for call in CALLS
    if call[1] not in ("send", "barrier")
    for check in ((True,) if call[1] in ROOTED else (False, True))
]


@pytest.mark.parametrize("call, check", NOTICED, ids=lambda v: str(v) if isinstance(v, bool) else " ".join(v))
def test_other_sizes_in_every_call(simulate, call, check):
    """n against n + 1 rows, and none, for whatever is the same on all ranks; with the check, for every collective."""
    algo, collective = call
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


def test_with_the_check_nothing_is_written(simulate):
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
def test_same_size_in_another_shape(simulate, check):
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
def test_anything_else_that_differs(simulate, name, check, link):
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
def test_another_root(simulate, algo, link):
    for collective in ("broadcast",) if algo == "one_shot" else ("broadcast", "reduce"):
        calls = [lambda c: getattr(c, collective)(torch.ones(9), int(c.rank == 2), algo=algo)]
        texts = mismatched(simulate, 3, calls, check=True, link=link)
        assert len(texts) == 3 and all("root=0" in t and "root=1" in t for t in texts)


@links
@pytest.mark.parametrize("check", [False, True])
def test_ranks_that_are_off_by_one_call(simulate, check, link):
    """1025 elements meet 262144, and the other way round in the next call."""
    sizes = (1025, 262144)
    calls = [lambda c, k=k: c.all_reduce(torch.ones(sizes[(k + (c.rank == 1)) % 2])) for k in range(2)]
    texts = mismatched(simulate, 3, calls, check=check, link=link)
    assert len(texts) == 6 and all("float32[1025]" in t and "float32[262144]" in t for t in texts)


@links
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("times", [1, 3])
def test_calls_that_one_rank_refuses(simulate, times, check, link):
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
def test_in_the_middle_of_a_stream(simulate, seed, link):
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


@links
@pytest.mark.parametrize("check", [False, True])
def test_empty_on_one_rank_only(simulate, check, link):
    calls = [lambda c: c.all_reduce(torch.ones(0 if c.rank == 0 else 8))]
    texts = mismatched(simulate, 3, calls, link=link, check=check)
    assert all("float32[0]" in t and "float32[8]" in t for t in texts)


@links
@pytest.mark.parametrize("seed", range(10))
def test_a_rank_that_zeroes_its_flags_late(simulate, monkeypatch, seed, link):
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
