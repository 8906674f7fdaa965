"""Every probe notices the mistake that it is there for: a backend of threads that is right, and then is not."""

import threading

import pytest
import torch

from tricoll import verify
from tricoll.verify.backends import Api
from tricoll.verify.outcome import Outcome
from tricoll.verify.probes import absence

WAIT = 20.0  # seconds, of threads for each other


class Meeting:
    """Where the ranks put what they bring, and see what the others have brought."""

    def __init__(self, size):
        self.size, self.barrier, self.places = size, threading.Barrier(size, timeout=WAIT), [None] * size

    def exchange(self, rank, mine):
        self.places[rank] = mine
        self.barrier.wait()
        everything = list(self.places)
        self.barrier.wait()
        return everything


class Right(Api):
    """A backend without a mistake: adds in rank order, in FP32 at least, and rounds once."""

    def __init__(self, meeting, rank):
        self.meeting, self.rank, self.size, self.device = meeting, rank, meeting.size, torch.device("cpu")
        self.calls = 0

    def all_reduce(self, x, op="sum", reproducible=False):
        self.check_target(x)
        shares = self.shares("all_reduce", x, op)
        self.store(x, self.reduced(shares, op, reproducible))

    def reduce_scatter(self, out, x, op="sum"):
        shares = self.shares("reduce_scatter", x, op)
        out.copy_(self.reduced(shares, op, False).chunk(self.size)[self.part()])

    def all_gather(self, out, x):
        out.copy_(torch.cat(self.shares("all_gather", x)))

    def broadcast(self, x, root=0):
        self.store(x, self.shares("broadcast", x, root)[root])

    # What a mistake is made in.

    def shares(self, *call):
        name, x, *more = call
        self.calls += 1
        brought = self.meeting.exchange(self.rank, (name, x.dtype, x.numel(), more, x.clone()))
        self.agree([share[:-1] for share in brought])
        return [share[-1] for share in brought]

    def agree(self, calls):
        if any(call != calls[0] for call in calls):
            raise ValueError("the ranks make different calls")

    def check_target(self, x):
        if x.numel() > 1 and 0 in x.stride():
            raise ValueError("elements share memory")

    def reduced(self, shares, op, reproducible):
        dtype = shares[0].dtype
        if dtype == torch.bool:
            return torch.stack(shares).any(0)
        wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        total = shares[0].to(wide)
        for share in shares[1:]:
            total = self.combined(total, share.to(wide), op)
        return (self.divided(total) if op == "avg" else total).to(dtype)

    def combined(self, a, b, op):
        return {"min": torch.minimum, "max": torch.maximum, "prod": torch.mul}.get(op, torch.add)(a, b)

    def divided(self, total):
        return total / self.size

    def store(self, x, result):
        x.copy_(result)

    def part(self):
        return self.rank


class Threads(verify.Session):
    """In place of processes: ranks are threads, with an Api of this class."""

    def __init__(self, api, **options):
        super().__init__("threads", **options)
        self.api = api

    def ask(self, fn, *args, ranks=None):
        meeting = Meeting(ranks or self.ranks)
        outcomes = [None] * meeting.size

        def rank(me):
            try:
                outcomes[me] = Outcome("value", fn(self.api(meeting, me), *args))
            except Exception as error:
                outcomes[me] = Outcome("error", text=str(error))
                meeting.barrier.abort()

        threads = [threading.Thread(target=rank, args=(me,)) for me in range(meeting.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return outcomes


# Mistakes.


class OwnDtype(Right):
    def reduced(self, shares, op, reproducible):
        total = shares[0]
        for share in shares[1:]:
            total = self.combined(total, share, op)
        return self.divided(total) if op == "avg" else total


class Integers(Right):
    def combined(self, a, b, op):
        return super().combined(a.float(), b.float(), op).to(a.dtype) if not a.is_floating_point() else a + b


class NanIsIgnored(Right):
    def combined(self, a, b, op):
        return {"min": torch.fmin, "max": torch.fmax}.get(op, torch.add)(a, b)


class ZeroIsAdded(Right):
    def reduced(self, shares, op, reproducible):
        return super().reduced(shares, op, reproducible) + 0.0


class Flushed(Right):
    def reduced(self, shares, op, reproducible):
        total = super().reduced(shares, op, reproducible)
        return total.where(total.abs() >= torch.finfo(total.dtype).tiny, 0.0)


class OneLessThanAll(Right):
    def reduced(self, shares, op, reproducible):
        return super().reduced(shares[:-1] if len(shares) > 1 else shares, op, reproducible)


class OwnOrder(Right):
    def reduced(self, shares, op, reproducible):
        return super().reduced(shares[self.rank :] + shares[: self.rank], op, reproducible)


class AnotherOrderEachTime(Right):
    def reduced(self, shares, op, reproducible):
        turn = self.calls % self.size
        return super().reduced(shares[turn:] + shares[:turn], op, reproducible)


class OrderBySize(Right):
    def reduced(self, shares, op, reproducible):
        turn = shares[0].numel() % self.size
        return super().reduced(shares[turn:] + shares[:turn], op, reproducible)


class AHundredthMore(Right):
    def reduced(self, shares, op, reproducible):
        return super().reduced(shares, op, reproducible) * 1.02


class NextPart(Right):
    def part(self):
        return (self.rank + 1) % self.size


class TurnedRound(Right):
    def all_gather(self, out, x):
        out.copy_(torch.cat(self.shares("all_gather", x)[::-1]))


class RootIsZero(Right):
    def broadcast(self, x, root=0):
        super().broadcast(x, 0)


class NothingIsSkipped(Right):
    """An empty call leaves what it has brought to the next one."""

    def shares(self, *call):
        shares = super().shares(*call)
        self.missing = getattr(self, "missing", 0) + (call[1].numel() == 0)
        return shares

    def store(self, x, result):
        x.copy_(result - self.missing if x.is_floating_point() else result)


class OneMore(Right):
    """Writes the element behind the tensor, where there is one."""

    def store(self, x, result):
        x.copy_(result)
        whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
        last = x.storage_offset() + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride())) + 1
        if x.numel() and last < whole.numel():
            whole[last] = 1


class MemoryOrder(Right):
    """Elements go by their places in memory, not by their indices."""

    def in_memory(self, x):
        return x.as_strided((x.numel(),), (1,)) if x.numel() else x.view(-1)

    def all_reduce(self, x, op="sum", reproducible=False):
        super().all_reduce(self.in_memory(x), op, reproducible)

    def broadcast(self, x, root=0):
        super().broadcast(self.in_memory(x), root)


class AnyTarget(Right):
    def check_target(self, x):
        pass

    def store(self, x, result):
        memory = x.as_strided((x.numel(),), (1,)) if 0 in x.stride() else x
        memory.copy_(result)


class WhateverComes(Right):
    """Ranks that disagree get something."""

    def agree(self, calls):
        pass

    def shares(self, *call):
        x = call[1]
        found = super().shares(*call)
        line = [torch.cat([share.reshape(-1), torch.zeros(x.numel())])[: x.numel()] for share in found]
        return [share.to(x.dtype).view(x.shape) for share in line]


NOTICED = [
    (OneLessThanAll, "exact: all_reduce", "wrong"),
    (NextPart, "exact: reduce_scatter", "wrong"),
    (TurnedRound, "exact: all_gather", "wrong"),
    (RootIsZero, "exact: broadcast", "wrong"),
    (Integers, "exact: integers and bool", "wrong"),
    (NothingIsSkipped, "exact: empty and small tensors", "wrong"),
    (OwnOrder, "bits: same on all ranks", "wrong"),
    (AnotherOrderEachTime, "bits: same run after run", "no"),
    (OrderBySize, "bits: independent of the size", "no"),
    (AHundredthMore, "accuracy: within the bound", "wrong"),
    (OneLessThanAll, "accuracy: measured", "wrong"),
    (OwnDtype, "accuracy: BF16 is added in FP32", "no"),
    (NanIsIgnored, "values: NaN", "wrong"),
    (ZeroIsAdded, "values: -0.0", "wrong"),
    (Flushed, "values: subnormal numbers", "wrong"),
    (OwnDtype, "values: averages at the ends of the range", "wrong"),
    (OneMore, "memory: unaligned tensors", "wrong"),
    (MemoryOrder, "memory: non-contiguous tensors", "wrong"),
    (MemoryOrder, "memory: channels-last on one rank", "wrong"),
    (AnyTarget, "memory: overlapping elements", "wrong"),
    *((WhateverComes, probe.name, "garbage") for probe in verify.PROBES if probe.name.startswith("mismatch:")),
]


def ask(api, name, **options):
    ((_, verdict),) = verify.run(Threads(api, **{"examples": 25} | options), name)
    return verdict


PROCESSES = ("time: a dead rank", "time: a stopped rank")  # whose probes end the process that they run in


@pytest.mark.parametrize("name", [probe.name for probe in verify.PROBES if probe.name not in PROCESSES])
def test_what_is_right_is_found_right(name):
    assert ask(Right, name).mark in ("right", "yes")


@pytest.mark.parametrize(("api", "name", "mark"), NOTICED, ids=lambda v: getattr(v, "__name__", v))
def test_a_mistake_is_noticed(api, name, mark):
    verdict = ask(api, name)
    assert verdict.mark == mark and verdict.text, verdict


def test_every_probe_has_a_mistake():
    assert {name for _, name, _ in NOTICED} == {p.name for p in verify.PROBES if not p.name.startswith("time:")}


class NoBf16(Right):
    def shares(self, *call):
        if call[1].dtype == torch.bfloat16:
            raise TypeError("no BF16")
        return super().shares(*call)


class NothingAtAll(Right):
    def shares(self, *call):
        raise TypeError("no such call")


@pytest.mark.parametrize("name", ["values: -0.0", "exact: broadcast"])
def test_what_is_refused_is_told(name):
    """One dtype beside the others that are right; or all, and then that is the answer."""
    verdict = ask(NoBf16, name, examples=100)
    assert verdict.mark == "right" and "bfloat16" in verdict.text.partition("refused: ")[2]
    assert ask(NothingAtAll, name).mark == "refused"


class Told(verify.Session):
    """Gives these outcomes, whatever is asked."""

    def __init__(self, *outcomes):
        super().__init__("told", ranks=len(outcomes), timeout=3.0)
        self.outcomes = outcomes

    def ask(self, fn, *args, ranks=None):
        return list(self.outcomes)


DEAD = Outcome("crash", text="was killed by signal 9")
RAISED, RETURNED = Outcome("value", 1.5), Outcome("value", -1.0)
EARLY = Outcome("error", text="RuntimeError: connection closed", seconds=2.0)
HUNG = Outcome("hang", text="had not returned after 13 s")


@pytest.mark.parametrize(
    ("others", "mark", "text"),
    [
        ((RAISED, RAISED), "right", "within 1.5 s"),
        ((RAISED, RETURNED), "garbage", "without rank 1 returned"),
        ((RAISED, HUNG), "hang", "had not returned"),
        ((RAISED, DEAD), "crash", "signal 9"),
        ((RAISED, EARLY), "wrong", "an error: RuntimeError: connection closed"),
    ],
)
def test_what_the_others_do_without_a_rank(others, mark, text):
    """Their errors count in the call that it misses, not in the one before, of which it has done its part."""
    verdict = absence.dead(absence.signal.SIGKILL, Told(others[0], DEAD, others[1]))
    assert verdict.mark == mark and text in verdict.text
