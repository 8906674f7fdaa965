"""Every algorithm and collective in the simulator: the oracle's bits, whatever is called before and after."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from streams import BF16_WIRE, CALLS, FP32, ROOTED, ROWED, Played, Step, callable_in, examples, played, streams

import tricoll
from tricoll import testing
from tricoll.testing import Layout

pytestmark = [
    # Infinities and NaN are among the values; NumPy, which is under Triton's interpreter, warns of them.
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),  # Triton 3.6
]
LINKS = ("mapped", "put")
SMALL = {"channels": 2, "slots": 3, "window": 2, "slot_bytes": 1024, "block": 32}
HIERARCHICAL = [call for call in CALLS if call[0] == "hierarchical"]
each_call = pytest.mark.parametrize("call", CALLS, ids=" ".join)


@examples(2)
@given(stream=streams())
def test_any_calls_back_to_back(simulate, tally, stream):
    """All collectives on one communicator, with nothing between them: links are shared among them."""
    n, calls, options = stream
    tally["sequences without a barrier"] += 1
    played(simulate, n, calls, **options)


@examples(0.3)
@given(stream=streams(most=3, worlds=st.sampled_from((4, 6, 8, 12)), calls=[*HIERARCHICAL, ("one_shot", "barrier")]))
def test_any_nodes(simulate, stream):
    n, calls, options = stream
    played(simulate, n, calls, **options)


@examples(0.3)
@given(stream=streams(most=2, worlds=testing.world_sizes(4), largest=100))
def test_any_call_interpreted(simulate, stream):
    n, calls, options = stream
    played(simulate, n, calls, tiles="triton", **options)


@pytest.mark.parametrize("n, node_size, link", [(16, 4, "mapped"), (16, 8, "put"), (32, 8, "mapped")])
def test_many_ranks(simulate, n, node_size, link):
    """Every call once, one after another."""
    steps = [
        step_of(algorithm, collective, n, 1, seed, root=(5 * seed) % n, peer=(5 * seed + 3) % n)
        for seed, (algorithm, collective) in enumerate(callable_in(n, node_size, link == "mapped"))
    ]
    options = {"slots": 2, "window": 1, "slot_bytes": 128, "block": 16}
    played(simulate, n, steps, node_size, link=link, seed=n, **options)


@each_call
def test_every_call_alone(simulate, call):
    """What the streams draw from: nothing of it is forgotten. A BF16 wire, two nodes, no piece to several a channel."""
    for link in LINKS:
        if call in callable_in(6, 3, link == "mapped"):
            places = ("out", "new", "in place")
            steps = [
                step_of(*call, 6, rows, seed, places[seed % 3]) for seed, rows in enumerate((0, 1, 7, 50, 130, 33))
            ]
            played(simulate, 6, steps, 3, link=link, **SMALL)


def step_of(algorithm, collective, n, rows, seed, place="out", root=1, peer=3, dtypes=BF16_WIRE):
    """A call with so many rows a rank, where that means anything."""
    if place == "new" and collective not in ROWED:
        place = "in place"
    shape = (rows, 2) if collective in ("all_gather", "gather") else (n * rows, 2)
    op = "sum" if seed % 2 else "avg"
    layout = Layout(seed % 3) if place == "in place" and collective in ROWED else Layout(seed % 3, 1 + seed % 2)
    return Step(
        algorithm, collective, shape, dtypes, op, None, root, peer, None, None, place, layout, Layout(1), seed=seed
    )


# What is shared.


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("seed", range(6))
def test_sends_among_collectives(simulate, seed, link):
    """Messages of pairs and collectives of all use the same links; a rank that has nothing to send goes ahead."""
    n, chance = 4, random.Random(seed)
    steps = []
    for k in range(14):
        a = chance.randrange(n)
        b = (a + chance.randrange(1, n)) % n
        kind = chance.choice(["send", "send", "send", "all_to_all", "gather", "broadcast", "all_reduce"])
        algorithm = {
            "all_reduce": chance.choice(("two_shot", "one_shot")),
            "broadcast": chance.choice(("tree", "ring")),
        }
        steps.append(step_of(algorithm.get(kind, "one_shot"), kind, n, chance.choice((0, 1, 30)), k, root=a, peer=b))
    played(simulate, n, steps, link=link, seed=seed, slots=2, window=1, slot_bytes=512, block=16)


@pytest.mark.parametrize("link", LINKS)
def test_calls_of_other_sizes_of_elements_share_slots(simulate, link):
    """A slot that held 8-byte elements holds bytes next: its place does not depend on the type."""
    dtypes = (torch.float64, torch.uint8, torch.float32, torch.bool, torch.complex128, torch.float8_e5m2)
    steps = [
        step_of(algorithm, collective, 4, 20, k, dtypes=(dtypes[k % 6],) * 3)._replace(op="sum")
        for k, (algorithm, collective) in enumerate(callable_in(4, 2, False) * 2)
    ]
    for seed in range(4):
        played(simulate, 4, steps, 2, link=link, seed=seed, slots=2, window=1, slot_bytes=640, block=16)


def test_both_tile_implementations_give_the_same_bits(simulate):
    for seed, (algorithm, collective) in enumerate(callable_in(4, 2, True)):
        for dtypes in (FP32, BF16_WIRE):
            step = step_of(algorithm, collective, 4, 9, seed, dtypes=dtypes)
            for tiles in ("torch", "triton"):
                played(simulate, 4, [step], 2, link="mapped", tiles=tiles, seed=seed, **SMALL)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("link", LINKS)
def test_only_the_root_needs_to_know_its_output(simulate, link, check):
    """Where only one rank gets something, its dtype is its own business; so is each rank's in a scatter."""
    bf16, half = torch.bfloat16, torch.float16

    def work(comm):
        x, root = torch.full((4,), 1.0 + comm.rank), comm.rank == 2
        out = torch.zeros(4, dtype=half) if root else None
        comm.reduce(x.clone() if root else x, 2, out=out, wire="bf16")
        gathered = comm.gather(x, 2, out=torch.zeros(12, dtype=half) if root else None)
        part = torch.zeros(4, dtype=(bf16, half, torch.float32)[comm.rank])
        comm.scatter(torch.arange(12.0) if root else None, 2, out=part, wire="fp32")
        return out, gathered, part

    results = simulate(work, 3, link=link, check=check).results
    assert [r[0] is None for r in results] == [r[1] is None for r in results] == [True, True, False]
    assert results[2][0].tolist() == [6.0] * 4 and results[2][0].dtype == half
    assert results[2][1].tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 4
    assert [r[2].tolist() for r in results] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


# After trouble.


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("link", LINKS)
def test_a_mismatch_among_any_calls(simulate, link, check):
    """A call that one rank makes with another size, again and again: what comes after has the oracle's bits.

    Without the check, where some ranks only send, they go on without an error: not here, see below.
    """
    n, node_size = 4, 2
    calls = [c for c in callable_in(n, node_size, link == "mapped") if c[1] not in ("send", "barrier")]
    calls = [c for c in calls if check or c[1] not in ROOTED]
    random.Random(check).shuffle(calls)

    def work(comm):
        results = []
        for k, call in enumerate(good):
            results.append(call.on(comm))
            more = n if comm.rank == k % n else 0
            bad = call.step._replace(shape=(call.step.shape[0] + more, 2), place="out")
            with pytest.raises(tricoll.CollectiveMismatch, match="the ranks make different calls"):
                Played(bad, n, node_size).on(comm)
            results.append(call.on(comm))
        return results

    good = [Played(step_of(*call, n, 8, k), n, node_size) for k, call in enumerate(calls)]
    options = {"node_size": node_size, "link": link, "slots": 2, "window": 1, "slot_bytes": 640}
    results = simulate(work, n, check=check, **options).results
    for k, call in enumerate(good):
        for i in (2 * k, 2 * k + 1):
            call.check([ranks[i] for ranks in results])


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("call", [c for c in CALLS if c[1] in ROOTED], ids=" ".join)
def test_a_mismatch_where_some_only_send(simulate, call, link):
    """Without the check, a rank that only sends cannot know; nobody takes a wrong value, and all hear in the end."""
    n = 4

    def work(comm):
        outcomes = []
        for k in range(3):
            rows = 8 + (n if comm.rank == odd and k == 0 else 0)
            step = Played(step_of(*call, n, rows, k), n)
            try:
                outcomes.append(step.on(comm) if k == 0 else comm.barrier())
            except tricoll.CollectiveError as error:
                outcomes.append(error)
        return outcomes

    root = 1
    for odd in range(n):
        results = simulate(work, n, link=link, seed=odd, slots=2, window=1, slot_bytes=2048).results
        firsts = [outcomes[0] for outcomes in results]
        assert any(isinstance(first, tricoll.CollectiveMismatch) for first in firsts)
        deceived = {root} if call[1] in ("reduce", "gather") else {0, 2, 3} if odd == root else {odd}
        assert all(isinstance(firsts[rank], tricoll.CollectiveError) for rank in deceived)
        for outcomes in results:
            assert any(isinstance(outcome, tricoll.CollectiveError) for outcome in outcomes)
