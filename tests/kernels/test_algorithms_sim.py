"""Tree and direct algorithms in the simulator: the oracle's bits, whatever the cut, the schedule and the place."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tricoll import testing
from tricoll.fabric.base import LinkProfile
from tricoll.testing import Guarded

LINKS = ("mapped", "put")
CALLS = (
    ("two_shot", "all_reduce"),
    ("one_shot", "all_reduce"),
    ("two_shot", "reduce_scatter"),
    ("two_shot", "all_gather"),
    ("tree", "all_reduce"),
)


@st.composite
def streams(draw, tiles="torch"):
    """Settings of a world, and one to four calls back to back."""
    n = draw(testing.world_sizes(8 if tiles == "torch" else 4))
    calls = []
    for _ in range(draw(st.integers(1, 4 if tiles == "torch" else 1))):
        algorithm, collective = draw(st.sampled_from(CALLS))
        dtype, wire, out_dtype = draw(testing.dtype_triples())
        numel = draw(testing.numels(n)) if tiles == "torch" else draw(st.integers(0, 200))
        shape = (numel // n * n,) if collective == "reduce_scatter" else (numel,)
        inputs, op = draw(testing.inputs(n, shape, dtype)), draw(testing.ops(dtype))
        calls.append((algorithm, collective, inputs, op, wire, out_dtype, draw(testing.layouts())))
    return n, draw(testing.settings()), draw(testing.schedules()), calls


def run(comm, calls):
    results = []
    for algorithm, collective, inputs, op, wire, out_dtype, layout in calls:
        n, numel = comm.world_size, inputs[0].numel()
        elements = {"all_reduce": numel, "reduce_scatter": numel // n, "all_gather": numel * n}[collective]
        x, out = Guarded(inputs[comm.rank], layout), Guarded(torch.zeros(elements, dtype=out_dtype), layout)
        options = {} if collective == "all_gather" else {"op": op}
        getattr(comm, collective)(x.view, out=out.view, wire=wire, algo=algorithm, **options)
        x.check()
        out.check()
        testing.assert_same_bits(x.view, inputs[comm.rank], "the input")
        results.append(out.view.clone())
    return results


def check(calls, results):
    for k, (algorithm, collective, inputs, op, wire, _, _) in enumerate(calls):
        outputs = [ranks[k] for ranks in results]
        if collective == "all_gather":
            testing.check_all_gather(outputs, inputs, wire)
        else:
            getattr(testing, f"check_{collective}")(outputs, inputs, op, wire, algorithm)


@given(streams())
@settings(max_examples=200)
def test_any_calls_back_to_back(simulate, stream):
    n, links, schedule, calls = stream
    check(calls, simulate(run, n, calls, **links, **schedule).results)


@given(streams(tiles="triton"))
@settings(max_examples=20)
def test_any_call_interpreted(simulate, stream):
    n, links, schedule, calls = stream
    check(calls, simulate(run, n, calls, tiles="triton", **links, **schedule).results)


@pytest.mark.parametrize("link", LINKS)
def test_bits_depend_on_the_values_only(simulate, link):
    """The same values in other messages: other sizes, places, cuts, channels and alignments; one shot or two."""
    n = 5
    values = testing.make_inputs(n, (64,), torch.float32, "mixed", 1)
    expected = None
    for seed in range(30):
        chance = random.Random(seed)
        before, after = chance.randrange(300), chance.randrange(300)
        window = chance.choice((1, 2))
        links = {"link": link, "channels": chance.choice((1, 2, 3)), "window": window, "slots": window + 1}
        inputs = [torch.cat([torch.randn(before), v, torch.randn(after)]) for v in values]

        def work(comm, algorithm, offset):
            x = torch.empty(inputs[0].numel() + 3)[offset : offset + inputs[0].numel()]
            x.copy_(inputs[comm.rank])
            return comm.all_reduce(x, "avg", wire="bf16", algo=algorithm)[before : before + 64].clone()

        algorithm = chance.choice(("one_shot", "two_shot"))
        slot_bytes = n * 128 * chance.choice((1, 2, 8))
        options = {"seed": seed, "slot_bytes": slot_bytes, "block": chance.choice((16, 64)), **links}
        for result in simulate(work, n, algorithm, chance.randrange(3), **options).results:
            expected = result if expected is None else expected
            testing.assert_same_bits(result, expected)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_bytes_sent(simulate, n, link):
    """Two-shot: 2 (n-1)/n of the data, the minimum. One-shot: n - 1 times the data. In the wire dtype."""
    numel = 16 * n * 11
    for algorithm, expected in (("two_shot", 2 * (n - 1) * numel // n * 2), ("one_shot", (n - 1) * numel * 2)):
        work = lambda comm, algo: comm.all_reduce(torch.ones(numel), wire="bf16", algo=algo)
        for stats in simulate(work, n, algorithm, link=link).stats:
            assert stats["payload_bytes"] == expected


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_bytes_sent_by_a_tree(simulate, n, link):
    """All ranks together send the data n - 1 times up and n - 1 times down; none more than twice, and a bit."""
    numel = 2 * 16 * 5
    sent = [s["payload_bytes"] for s in simulate(tree, n, numel, link=link).stats]
    assert sum(sent) == 2 * (n - 1) * numel * 2
    assert max(sent) <= (2 if n % 2 == 0 else 2.5) * numel * 2


def tree(comm, numel):
    comm.all_reduce(torch.ones(numel), wire="bf16", algo="tree")


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 16, 32])
@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot", "tree"])
def test_steps(simulate, n, algorithm):
    """The critical path with infinite bandwidth, in latencies: 1, 2, and twice the depth of a tree."""
    work = lambda comm: comm.all_reduce(torch.ones(100), algo=algorithm)
    time = simulate(work, n, profile=LinkProfile(alpha=1.0, beta=1e30)).virtual_time
    assert time == pytest.approx({"one_shot": 1, "two_shot": 2, "tree": 2 * (n - 1).bit_length()}[algorithm])


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot", "tree"])
def test_a_missing_rank_is_named(simulate, algorithm, link):
    def work(comm):
        if comm.rank != 2:
            comm.all_reduce(torch.ones(10), algo=algorithm)

    with pytest.raises(RuntimeError, match=r"ranks \[2\] are gone.*waited for data from rank 2"):
        simulate(work, 4, link=link)
