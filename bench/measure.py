"""One row of the table, on the ranks: check the results, then time them, backend by backend and sample by sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tricoll.communicator import Communicator
from tricoll.numerics import ulp
from tricoll.timing import timed

from . import data
from .backends import Backend, Call, Unavailable, open_mpi, open_torch, open_tricoll
from .collective import Collective, named

FAR = -77  # what outputs hold before a call that is checked: no data set has it where a dtype is signed
BLOCK = 1 << 20  # elements that are compared at a time


@dataclass(frozen=True)
class Case:
    """One row: what is called, and how it is measured. Sizes are nccl-tests': ``elements`` of the larger buffer."""

    collective: str
    elements: int
    dtype: torch.dtype
    op: str  # "none" for a collective that only moves
    root: int  # -1 for one without a root
    backends: tuple[tuple[str, str], ...] = (("tricoll", "auto"),)  # names, and algorithms ("" for PyTorch's)
    wire: torch.dtype | None = None  # of tricoll
    iters: int = 20
    samples: int = 10
    agg: int = 1
    warmup: int = 5
    check: int = 1  # data sets to check
    accuracy: bool = True
    blocking: bool = False
    graph: int = 0
    cpu_time: bool = False
    timeout: float = 60.0
    wrap: Any = None  # for tests: called with every backend, returns what is measured


@dataclass
class Side:
    """Out of place, or in place, as one rank saw it."""

    seconds: list[float] = field(default_factory=list)  # a call, one a sample
    wrong: int = 0  # elements, over all data sets


@dataclass
class Seen:
    """What one rank saw of one backend."""

    label: str
    failure: str = ""  # why there is no more
    sides: tuple[Side, Side] = field(default_factory=lambda: (Side(), Side()))
    sent: int | None = None  # bytes of payload, an out-of-place call
    ulps: float | None = None  # largest error, of sums of positive numbers
    error: float = 0.0  # sums of squares, of errors and of exact results
    scale: float = 0.0
    choice: str | None = None  # of the dispatcher, for tricoll


def measure(comm: Communicator, case: Case) -> list[Seen]:
    """Measure one row on this rank, all backends in turn. Collective."""
    collective = named(case.collective)
    # For barriers, whatever is measured. A rank whose backend gives up comes here by then.
    control = open_torch("gloo", 2 * case.timeout).group
    opened = [_open(comm, name, algo, case) for name, algo in case.backends]
    seen = [Seen(label if isinstance(b, Unavailable) else b.label) for (label, _), b in zip(case.backends, opened)]
    tried = []
    for backend, found in zip(opened, seen, strict=True):
        if isinstance(backend, Unavailable):
            found.failure = str(backend)
            continue
        try:
            tried.append((_Run(comm, collective, backend, case), found))
            tried[-1][0].prepare(found)
        except Exception as error:  # whatever a backend says of a call that it does not have
            found.failure = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    _agree(control, seen)
    able = [(run, found) for run, found in tried if not found.failure]
    for sample in range(case.samples):
        count = case.agg * (case.iters // case.samples + (sample < case.iters % case.samples))
        turn = sample % max(1, len(able))
        for run, found in able[turn:] + able[:turn]:  # whoever comes after whom, each does as often
            for side, where in zip(found.sides, run.places, strict=True):
                where.ready()
                side.seconds.append(run.time(where, count))
    for run, _ in able:
        run.backend.finish()
    return seen


def _agree(control: Any, seen: list[Seen]) -> None:
    """What one rank cannot measure, none does."""
    ranks: list[list[str]] = [[]] * dist.get_world_size(control)
    dist.all_gather_object(ranks, [found.failure for found in seen], control)
    for found, failures in zip(seen, zip(*ranks, strict=True), strict=True):
        told = next((f"rank {rank}: {failure}" for rank, failure in enumerate(failures) if failure), "")
        found.failure = found.failure or told


def _open(comm: Communicator, name: str, algo: str, case: Case) -> Backend | Unavailable:
    try:
        if name == "tricoll":
            found: Backend = open_tricoll(comm, algo, case.wire)
        elif name == "mpi":
            found = open_mpi(comm.world_size)
        else:
            found = open_torch(name, case.timeout)
    except Unavailable as reason:
        return reason
    return case.wrap(found) if case.wrap else found


@dataclass
class _Place:
    """Buffers, out of place or in place, and the call on them."""

    x: Tensor
    out: Tensor
    call: Call

    def ready(self) -> None:
        """Numbers that the last calls have not made large or small."""
        self.x.fill_(1)
        self.out.fill_(1)


class _Run:
    """A backend with its buffers."""

    def __init__(self, comm: Communicator, collective: Collective, backend: Backend, case: Case) -> None:
        self.rank, self.n = comm.rank, comm.world_size
        self.collective, self.backend, self.case, self.device = collective, backend, case, backend.device
        self.count, x_numel, out_numel = collective.counts(case.elements, self.n)
        options: Any = {"dtype": case.dtype, "device": self.device}
        apart = torch.empty(x_numel, **options), torch.empty(out_numel, **options)
        same = collective.buffers(self.count, self.n, self.rank, x_numel, out_numel, **options)
        self.places = tuple(
            _Place(x, out, backend.call(collective, x, out, case.op, max(case.root, 0))) for x, out in (apart, same)
        )

    def prepare(self, found: Seen) -> None:
        """Warm up, check, and see how accurate it is."""
        case = self.case
        for place in self.places:
            place.ready()
            for _ in range(max(1, case.warmup)):  # the first call also shows whether there is such a call
                place.call()
        place = self.places[0]
        place.ready()
        before = self.backend.sent()
        place.call()
        after = self.backend.sent()
        found.sent = after - before if after is not None and before is not None else None
        found.choice = self.backend.choice(self.collective, place.x, case.op, max(case.root, 0))
        self.backend.finish()
        for seed in range(case.check):
            part = data.exact(case.dtype, case.wire or case.dtype, case.op, self.n, seed)
            for side, where in zip(found.sides, self.places, strict=True):
                expected = self._after(where, part)
                if expected is not None:
                    side.wrong += _wrong(where.out, expected)
        if case.accuracy and case.check and case.dtype.is_floating_point and self.collective.reduces:
            self._accuracy(found)

    def time(self, place: _Place, count: int) -> float:
        """Seconds a call, of ``count`` calls from a barrier on. Collective."""
        call, launches, case = place.call, count, self.case
        if case.graph:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(count):
                    place.call()
            call, launches = graph.replay, case.graph
        self._meet()
        seconds = timed(call, launches, self.device, case.cpu_time, self._meet if case.blocking else None)
        return seconds / count if case.graph else seconds

    def _meet(self) -> None:
        """Wait for this rank's work, and for the other ranks."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        dist.barrier()

    def _after(self, place: _Place, part: data.Part) -> Tensor | None:
        """Call with this rank's part of some data; what must have come out."""
        numel = place.x.numel()
        if place.out is not place.x:
            place.out.fill_(FAR if place.out.dtype.is_signed else 77)
        place.x.copy_(part(self.rank, 0, numel))
        place.call()
        root = max(self.case.root, 0)
        return self.collective.exact(part, self.count, self.n, self.rank, self.case.op, root)

    def _accuracy(self, found: Seen) -> None:
        place = self.places[0]
        for positive in (False, True):
            expected = self._after(place, data.normal(self.case.dtype, positive, self.n, seed=1))
            if expected is None:
                continue
            for out, right in zip(place.out.cpu().split(BLOCK), expected.split(BLOCK), strict=True):
                error = (out.double() - right).abs()
                if positive:
                    if right.numel():
                        found.ulps = max(found.ulps or 0.0, float((error / ulp(right, out.dtype)).max()))
                else:
                    found.error += float(error.square().sum())
                    found.scale += float(right.square().sum())


def _wrong(out: Tensor, expected: Tensor) -> int:
    """How many elements of ``out`` are not the expected ones. NaN is always wrong."""
    found = 0
    for block, right in zip(out.cpu().split(BLOCK), expected.split(BLOCK), strict=True):
        right = right.to(block.dtype)
        if block.is_floating_point():  # float8 cannot be compared as it is
            block, right = block.double(), right.double()
        found += int((block != right).sum())
    return found
