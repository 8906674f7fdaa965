"""What is measured, and measuring it."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .. import cost, dispatch, tuned
from ..cost import Topology
from ..timing import timed
from ..units import show_bytes

if TYPE_CHECKING:
    from ..communicator import Communicator

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
ITEMSIZE = 4  # bytes: FP32 is measured
HOPELESS = 10  # times the best one's time in the warm-up call, and an algorithm is not timed more often at this size
BURST = 10  # calls that are timed together on a GPU: one alone would mostly show when each rank began


@dataclass(frozen=True)
class Grid:
    """``calls`` timed calls of each algorithm at each size (bytes, of the whole buffer), ``passes`` times over all."""

    sizes: tuple[int, ...]
    calls: int = 3
    passes: int = 5
    collectives: tuple[str, ...] = COLLECTIVES

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1 or self.calls < 1 or self.passes < 1:
            raise ValueError("there has to be a size of at least 1 byte, a call and a pass")

    def blocks(self) -> list[tuple[int, str, int]]:
        """(pass, collective, bytes), in the order in which they are measured: another one in each pass, so that what
        changes on the machine meanwhile does not pass for an effect of size."""
        blocks = []
        for number in range(self.passes):
            one = [(number, c, nbytes) for nbytes in self.sizes for c in self.collectives]
            random.Random(number).shuffle(one)
            blocks += one
        return blocks


def sizes(least: int, most: int, factor: float = 2.0) -> tuple[int, ...]:
    """Bytes from ``least`` to ``most``, each ``factor`` times the one before."""
    if not 0 < least <= most or factor <= 1:
        raise ValueError(f"sizes from {least} to {most} by a factor of {factor}: give 0 < least <= most, factor > 1")
    count = int(math.log(most / least) / math.log(factor) + 1e-9) + 1
    return tuple(sorted({round(least * factor**i) for i in range(count)}))


def algorithms(collective: str, topology: Topology, multicast: bool) -> list[str]:
    """Those that the cost model has a prediction for, and that can be run."""
    profile = cost.uniform(1.0, 1.0, multicast=multicast)
    predicted = [c.algorithm for c in cost.candidates(collective, 1.0, topology, profile) if c.steps]
    return [name for name in predicted if name in dispatch.having(collective)]


def elements(nbytes: int, world_size: int) -> int:
    """Of a buffer of about ``nbytes``: as many for each rank."""
    return -(-nbytes // ITEMSIZE // world_size) * world_size


Write = Callable[[dict[str, Any]], None]
Progress = Callable[[int, int, str], None]


def measure(
    comm: Communicator,
    grid: Grid,
    done: Iterable[tuple[int, str, int]] = (),
    write: Write = lambda line: None,
    progress: Progress = lambda done, all, what: None,
) -> None:
    """Time what is not ``done`` yet. Collective: all ranks call it, and only rank 0's other arguments count.

    ``write`` gets a line for each block: {"pass", "collective", "nbytes", "seconds": {algorithm: [s, ...]}}, where a
    call's time is that of its slowest rank, from a barrier on. Algorithms take turns, call by call.
    """
    settings, device = comm._settings, comm.device
    topology = tuned.target(comm.fabric, comm.world_size, settings).topology
    blocks, finished = grid.blocks(), set(done)
    skip = torch.tensor([int(block in finished) for block in blocks], device=device)
    comm.broadcast(skip)
    todo = [block for block, there in zip(blocks, skip.tolist()) if not there]
    for place, (number, collective, nbytes) in enumerate(todo):
        progress(len(blocks) - len(todo) + place, len(blocks), f"{collective}, {show_bytes(nbytes)}")
        names = algorithms(collective, topology, settings.multicast)
        numel = elements(nbytes, comm.world_size)
        x = torch.zeros(numel if collective != "all_gather" else numel // comm.world_size, device=device)
        if device.type == "cuda":
            _times(comm, collective, x, names, 1)  # a first call compiles
        warm = _times(comm, collective, x, names, 1)
        keep = [name for name in names if warm[name][0] <= HOPELESS * min(warm.values())[0]]
        seconds = {**warm, **_times(comm, collective, x, keep, grid.calls)}
        write({"pass": number, "collective": collective, "nbytes": numel * ITEMSIZE, "seconds": seconds})


def _times(comm: Communicator, collective: str, x: torch.Tensor, names: list[str], calls: int) -> dict[str, Any]:
    """Seconds of each call, by algorithm: the same on all ranks, those of the slowest one."""
    together = BURST if x.is_cuda else 1
    times = torch.zeros(calls, len(names), dtype=torch.float64)
    for call in range(calls):
        for i, name in enumerate(names):
            comm.barrier()
            times[call, i] = timed(functools.partial(getattr(comm, collective), x, algo=name), together, x.device)
    slowest = times.to(x.device)
    comm.all_reduce(slowest, op="max", algo="ring")
    return {name: slowest[:, i].tolist() for i, name in enumerate(names)}
