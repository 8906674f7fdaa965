"""The chain, entered in the tables for these tests only, against its bits in plain PyTorch."""

import functools

import chain
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tricoll
from tricoll import arguments, dispatch, testing


@pytest.fixture(autouse=True, scope="module")
def entered():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(dispatch.ALGORITHMS, "chain", ("all_reduce",))
        patch.setitem(dispatch.CHUNKS, "chain", 1)
        patch.setitem(arguments.KERNELS, ("chain", "all_reduce"), chain.all_reduce)
        yield


def expected(inputs, wire):
    """What tricoll/oracle/order.py would say: from rank 0 on, rounded wherever it travels."""
    total = functools.reduce(lambda partial, own: partial.to(wire).float() + own, inputs)
    return (total / torch.full_like(total, len(inputs))).to(wire).float()


def work(comm, calls, wire):
    return [comm.all_reduce(inputs[comm.rank].clone(), "avg", wire=wire, algo="chain") for inputs in calls]


def random(n, numel, count=1):
    return [testing.make_inputs(n, (numel,), torch.float32, "random", seed) for seed in range(count)]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(testing.world_sizes(6), st.integers(0, 300), testing.settings(), testing.schedules())
@pytest.mark.parametrize("wire", [torch.float32, torch.bfloat16])
def test_every_rank_has_the_bits(wire, n, numel, links, schedule):
    calls = random(n, numel, 3)
    for results in tricoll.simulate(work, n, calls, wire, **schedule, **links).results:
        for result, inputs in zip(results, calls, strict=True):
            testing.assert_same_bits(result, expected(inputs, wire))


def test_interpreted_it_gives_the_same():
    (inputs,) = calls = random(3, 40)
    run = tricoll.simulate(work, 3, calls, torch.bfloat16, tiles="triton")
    testing.assert_same_bits(run.results[1][0], expected(inputs, torch.bfloat16))


@pytest.mark.parametrize("absent", [0, 2])
def test_who_is_missing_is_named(absent):
    with pytest.raises(tricoll.PeerFailure, match=rf"ranks \[{absent}\] are gone"):
        tricoll.simulate(lambda comm: comm.rank == absent or work(comm, random(4, 100), None), 4)


def test_steps_and_bytes():
    links = tricoll.LinkProfile(alpha=1.0, beta=float("inf"))
    run = tricoll.simulate(work, 4, random(4, 64), torch.float32, profile=links, delivery="prompt")
    assert [s["payload_bytes"] for s in run.stats] == [256, 512, 512, 256]
    assert run.virtual_time == pytest.approx(6.0)
