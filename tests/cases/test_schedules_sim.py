"""The same bits under every schedule: reordered puts, fast and slow ranks, calls back to back."""

import hashlib
import random

import pytest
import torch
from cases import BF16, FP32, SMALL, every_call, links, quiet, step, step_aside, wires
from streams import BF16_WIRE, played

from tricoll import oracle, testing
from tricoll.fabric import sim

pytestmark = quiet


# The same bits on every rank and in every run.


@links
@pytest.mark.parametrize("dtype, wire", [(FP32, FP32), (BF16, BF16), (FP32, BF16)], ids=str)
@pytest.mark.parametrize("n", [3, 4, 8])
def test_one_result(simulate, n, dtype, wire, link):
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
def test_one_result_in_every_call(simulate, call):
    """Other seeds and deliveries, other places: the bits that the oracle has, so the same ones."""
    for link in wires(call):
        for seed in range(4):
            options = SMALL | {"delivery": ("adversarial", "prompt")[seed % 4 == 3]}
            calls = [step(call, 4, 33, 24, op=op, kind="cancelling", dtypes=BF16_WIRE) for op in ("sum", "avg")]
            played(simulate, 4, calls, 2, link=link, seed=seed, **options)


def test_cancellation_probe(simulate):
    """1e8, 1, -1e8, 1 shows the order of additions: it depends on the chunk, and on nothing else."""
    values = (1e8, 1.0, -1e8, 1.0)
    found = {
        tuple(r.tolist())
        for seed in range(20)
        for r in simulate(lambda c: c.all_reduce(torch.full((64,), values[c.rank]), algo="ring"), 4, seed=seed).results
    }
    assert found == {(0.0,) * 16 + (1.0,) * 16 + (0.0,) * 16 + (1.0,) * 16}


# A fast rank overwrites a slot that a slow rank still reads.


@links
@pytest.mark.parametrize("seed, calls", [*((seed, 64) for seed in range(8)), (8, 2000)])
def test_back_to_back(simulate, tally, seed, calls, link):
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
def test_back_to_back_in_every_call(simulate, tally, call):
    """24 calls with other values and sizes each time, two slots, one rank late; results are looked at in the end."""
    for link in wires(call):
        calls = [step(call, 4, (1, 20, 0, 90)[k % 4], k) for k in range(24)]
        tally["sequences without a barrier"] += 1
        played(simulate, 4, calls, 2, link=link, seed=26, slots=2, window=1, slot_bytes=640, block=16)


# A signal is seen before its data, or only counts.


def test_reordered_puts(simulate):
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
def test_reordered_puts_in_every_call(simulate, call):
    """Puts, or words, in any order: several pieces a channel."""
    link = "put" if "put" in wires(call) else "mapped"
    for seed in range(10):
        calls = [step(call, 4, 150, seed + k, dtypes=BF16_WIRE) for k in range(2)]
        options = {"channels": 1 + seed % 2, "slots": 3 + seed % 3, "window": 2, "slot_bytes": 640, "block": 32}
        played(simulate, 4, calls, 2, link=link, seed=seed, **options)


@links
@pytest.mark.parametrize("seed", range(10))
def test_a_rank_that_allocates_late(simulate, monkeypatch, seed, link):
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
