"""Scenarios of simulated ranks. Each raises if anything is wrong; the links that it is played on are its argument."""

import random
from typing import NamedTuple

import pytest
import torch
from streams import FP32, ROWED, Step, callable_in, played

import tricoll
from tricoll import testing
from tricoll.fabric import sim
from tricoll.kernels import link

LINKS = ("mapped", "put")


def stream(kind, seeds=100):
    """Calls of all collectives, back to back under many schedules: the oracle's bits on all ranks."""
    for seed in range(seeds):
        chance = random.Random(seed)
        n = chance.choice((2, 3, 4))
        window = chance.choice((1, 1, 2))
        settings = {
            "link": kind,
            "channels": chance.choice((1, 2)),
            "window": window,
            "slots": window + chance.choice((1, 1, 2)),
            "slot_bytes": 128,
            "block": 16,
        }
        calls = []
        for k in range(chance.choice((2, 3, 4))):
            collective = chance.choice(("all_reduce", "all_reduce", "reduce_scatter", "all_gather"))
            count = chance.choice((5, 40, 90, 200, 600)) // (n if collective == "all_gather" else 1)
            shape = (count // n * n,) if collective == "reduce_scatter" else (count,)
            op = chance.choice(("sum", "avg"))
            calls.append((collective, op, testing.make_inputs(n, shape, torch.float32, "random", 100 * seed + k)))

        def every_call(comm):
            return [
                comm.all_gather(x[comm.rank], wire="bf16", algo="ring")
                if collective == "all_gather"
                else getattr(comm, collective)(x[comm.rank].clone(), op, wire="bf16", algo="ring")
                for collective, op, x in calls
            ]

        results = tricoll.simulate(every_call, n, seed=seed, **settings).results
        for k, (collective, op, inputs) in enumerate(calls):
            outputs = [ranks[k] for ranks in results]
            if collective == "all_gather":
                testing.check_all_gather(outputs, inputs, torch.bfloat16)
            else:
                getattr(testing, f"check_{collective}")(outputs, inputs, op, torch.bfloat16)


def mismatch(kind, seeds=60):
    """Calls that differ are known as such to all ranks, without anybody's timeout; the calls around them work.

    Ranks are late at random, so that some are still in the call before when they are told.
    """
    for seed in range(seeds):
        n, late = 2 + seed % 4, random.Random(seed)
        bad = {1, 3, 4}
        pauses = [[late.choice((0, 0, 50)) for _ in range(n)] for _ in range(6)]
        deadlocks = []

        def calls(comm):
            for k in range(6):
                for _ in range(pauses[k][comm.rank]):
                    comm._fabric.world.scheduler.step_aside()
                x = torch.full((90,), comm.rank + 1.0 + k)
                if k in bad:
                    with pytest.raises(tricoll.CollectiveMismatch, match=r"float32\[(89|90)\].*float32\[(89|90)\]"):
                        comm.all_reduce(x[: 89 if comm.rank == k % n else 90], algo="ring")
                else:
                    assert comm.all_reduce(x, algo="ring").unique().tolist() == [n * (n + 1) / 2 + n * k]
            deadlocks.extend(comm._fabric.world.scheduler.deadlock)

        tricoll.simulate(calls, n, seed=seed, link=kind, slots=2, window=1, slot_bytes=128)
        assert not deadlocks, f"waited for a timeout: {deadlocks}"


def absence(kind, seeds=8):
    """A rank that leaves after the first call: the others learn who waits for whom, and for what."""
    for seed in range(seeds):
        n, absent = 4, seed % 4
        right, left = (absent + 1) % n, (absent - 1) % n
        for rank, (text, _) in left_alone(kind, n, absent, seed).items():
            assert f"rank {rank}, call 2, all_reduce(float32[200]" in text and f"ranks [{absent}] are gone" in text
            assert f"rank {right}: channel 0 waited for data from rank {absent} (message 6, wanted 0x4" in text
            assert f"rank {left}: channel 0 waited for a free slot from rank {absent} (message 8, wanted 0x4" in text
            assert "saw 0x3" in text


def impatience(kind, seeds=20):
    """One rank's timeout comes first: all others are told, on both sides of the rank that is missing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sim, "Scheduler", OneTimesOut)
        for seed in range(seeds):
            n, absent = 3 + seed % 3, seed % 3
            status = {rank: status for rank, (_, status) in left_alone(kind, n, absent, seed).items()}
            first = [rank for rank, words in status.items() if words[0] == link.TIMED_OUT]
            assert len(first) == 1 and [s[0] for s in status.values()].count(link.ABORTED) == n - 2, status
            assert {words[6] for words in status.values()} == {2 << 16 | first[0] + 1}  # in the second call


def left_alone(kind, n, absent, seed):
    """{rank: (what it is told, its status block)} after a call without one of the ranks."""

    def calls(comm):
        comm.all_reduce(torch.ones(8), algo="ring")
        if comm.rank == absent:
            return None
        with pytest.raises(tricoll.PeerFailure) as caught:
            comm.all_reduce(torch.ones(200), algo="ring")
        return str(caught.value), comm._executor.workspace.status[0].tolist()

    results = tricoll.simulate(calls, n, seed=seed, link=kind, slots=2, window=1, slot_bytes=1024).results
    return {rank: result for rank, result in enumerate(results) if rank != absent}


class OneTimesOut(sim.Scheduler):
    """When nobody can go on, the wait of one task times out, and not that of all."""

    def losers(self):
        return [self.random.choice(self.tasks)]


class Calls(NamedTuple):
    """A scenario: streams of the calls of one kernel, among others that use the same links."""

    calls: tuple
    seeds: int = 40

    @property
    def __name__(self):
        return "streams of " + ", ".join(f"{a} {c}" for a, c in self.calls)

    def __call__(self, kind):
        for seed in range(self.seeds):
            chance = random.Random(seed)
            n, node_size = chance.choice(
                [(4, 2), (6, 2), (6, 3)] if self.calls[0][0] == "hierarchical" else [(3, 0), (4, 0)]
            )
            window = chance.choice((1, 2, 3))
            settings = {"channels": chance.choice((1, 2)), "window": window, "slots": window + chance.choice((1, 1, 2))}
            there = [c for c in callable_in(n, node_size, kind == "mapped") if c in self.calls]
            steps = []
            for k in range(chance.choice((2, 3, 4))):
                call = chance.choice(there)
                rows = chance.choice((0, 5, 20, 60, 200))
                shape = (n * rows,) if call[1] in ROWED and call[1] not in ("all_gather", "gather") else (rows,)
                root = chance.randrange(n)
                step = Step(
                    *call, shape, FP32, chance.choice(("sum", "avg")), root=root, kind="random", seed=100 * seed + k
                )
                steps.append(step._replace(peer=(root + 1) % n))
            played(
                tricoll.simulate,
                n,
                steps,
                node_size,
                link=kind,
                seed=seed,
                slot_bytes=128 * (n + 1),
                block=16,
                **settings,
            )


class Impatient(NamedTuple):
    """A scenario: one rank is missing, and one of the others times out first; all are told, nobody else times out."""

    calls: tuple
    seeds: int = 8

    def __call__(self, kind):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sim, "Scheduler", OneTimesOut)
            for seed in range(self.seeds):
                n, absent = 4, seed % 4
                algorithm, collective = self.calls[0]

                def work(comm):
                    if comm.rank == absent:
                        return None
                    options = {} if collective == "all_to_all" else {"algo": algorithm}
                    with pytest.raises(tricoll.PeerFailure):
                        getattr(comm, collective)(torch.ones(8 * n), **options)
                    return comm._executor.workspace.status[0].tolist()

                options = {"node_size": 2, "slots": 2, "window": 1, "slot_bytes": 1024}
                status = [s for s in tricoll.simulate(work, n, seed=seed, link=kind, **options).results if s]
                assert sorted(words[0] for words in status) == [link.TIMED_OUT, link.ABORTED, link.ABORTED], status


class Differ(NamedTuple):
    """A scenario: a call that one rank makes with another size, without anybody's timeout, and one that all make."""

    calls: tuple
    seeds: int = 30

    @property
    def __name__(self):
        return "differing " + ", ".join(f"{a} {c}" for a, c in self.calls)

    def __call__(self, kind):
        for seed in range(self.seeds):
            n, node_size = 4, 2
            algorithm, collective = self.calls[seed % len(self.calls)]
            deadlocks = []

            def work(comm):
                late = random.Random(100 * seed + comm.rank)
                for k in range(6):
                    for _ in range(late.choice((0, 0, 60))):
                        comm._fabric.world.scheduler.step_aside()
                    x = torch.full((4 * n,), comm.rank + 1.0 + k)
                    options = {} if collective == "all_to_all" else {"algo": algorithm}
                    if k in (1, 3, 4):
                        with pytest.raises(tricoll.CollectiveMismatch):
                            odd = torch.cat([x, x]) if comm.rank == (k + seed) % n else x
                            getattr(comm, collective)(odd, **options)
                    else:
                        getattr(comm, collective)(x, **options)
                deadlocks.extend(comm._fabric.world.scheduler.deadlock)

            tricoll.simulate(work, n, seed=seed, link=kind, node_size=node_size, slots=2, window=1, slot_bytes=1024)
            assert not deadlocks, f"waited for a timeout: {deadlocks}"


def unlike(kind):
    """Rank 0 sends rank 1 more rows than it expects, and fewer than a message: both hear of it."""

    def work(comm):
        sends, receives = ([0, 5], [0, 2]) if comm.rank == 0 else ([3, 0], [4, 0])
        with pytest.raises(tricoll.CollectiveMismatch):
            comm.all_to_all(torch.ones(sum(sends)), input_splits=sends, output_splits=receives)

    for seed in range(5):
        tricoll.simulate(work, 2, seed=seed, link=kind)


def nothing(kind):
    """A barrier, and an all-reduce of nothing: nobody leaves before all have come."""

    def work(comm, call):
        for k in range(4):
            came[comm.rank] = k
            for _ in range(30 * (comm.rank == k)):
                comm._fabric.world.scheduler.step_aside()
            call(comm)
            assert min(came) >= k

    calls = (lambda c: c.barrier(), lambda c: c.all_reduce(torch.ones(0), algo="one_shot"))
    for seed in range(10):
        came = [-1] * 3
        tricoll.simulate(work, 3, calls[seed % 2], seed=seed, link=kind)


def kinds_of(scenario):
    """The links on which a scenario can be played."""
    multimem = isinstance(scenario, (Calls, Differ, Impatient)) and scenario.calls[0][0] == "multimem"
    return ("mapped",) if multimem else LINKS
