"""What data parallelism costs a training step: a timeline of gradient buckets, and the memory of a GPU.

Backward produces the gradients of the last layers first. They are collected in buckets; when a bucket is full, its
all-reduce is started, on one communication stream, so that buckets wait for each other. What is still running when
backward ends is *exposed*: the step waits for it. Li et al., "PyTorch Distributed", 2020.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import cost
from .cost import Profile, Topology
from .units import show_bytes, show_rate, show_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console
    from rich.table import Table

    from .schedule import Point

# Bytes a parameter of mixed-precision training with Adam, on every GPU of plain data parallelism.
MEMORY = {
    "weights, BF16": 2,
    "gradients, BF16": 2,
    "master weights, FP32": 4,
    "Adam's first moments, FP32": 4,
    "Adam's second moments, FP32": 4,
}
BYTES_A_PARAMETER = sum(MEMORY.values())
MOST_BUCKETS = 10_000_000  # of a timeline: more would only take memory
LARGEST_WORLD = 1 << 20  # GPUs, where the search for the end of data parallelism stops
RANKS = (8, 64, 512, 4096)  # of the table of turning points


# The timeline.


@dataclass(frozen=True)
class Timeline:
    """Buckets in the order in which they are sent. Float64 arrays, one element a bucket: bytes, and seconds since
    backward began at which the bucket is ready, and its all-reduce starts and ends. ``backward``: seconds."""

    sizes: NDArray[np.float64]
    ready: NDArray[np.float64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    backward: float

    @property
    def communication(self) -> float:
        """Seconds in which the communication stream works."""
        return float((self.end - self.start).sum())

    @property
    def exposed(self) -> float:
        """Seconds from the end of backward to the end of the last all-reduce."""
        return max(0.0, float(self.end[-1]) - self.backward)

    @property
    def hidden(self) -> float:
        """Seconds of communication during backward."""
        return float(np.minimum(self.end, self.backward).sum() - np.minimum(self.start, self.backward).sum())

    @property
    def last_buckets(self) -> float:
        """When the last three buckets begin to be filled: since then it is worth a closer look."""
        return float(self.ready[-4]) if len(self.ready) > 3 else 0.0

    @property
    def total(self) -> float:
        """Seconds from the start of backward until gradients are there."""
        return max(self.backward, float(self.end[-1]))


def bucket_sizes(total: float, bucket: float) -> NDArray[np.float64]:
    """``total`` bytes cut into buckets in reverse order of the layers: full ones, then what is left.

    Args:
        bucket: bytes of a bucket.

    Raises:
        ValueError: a size is not positive, or there would be more than ``MOST_BUCKETS``.
    """
    if not (bucket > 0 and total > 0):
        raise ValueError(f"cannot cut {total:.0f} bytes into buckets of {bucket:.0f}: both have to be more than 0")
    full, rest = divmod(total, bucket)
    if full > MOST_BUCKETS:
        raise ValueError(f"buckets of {show_bytes(bucket)} are {full:.3g}: take larger ones, at most {MOST_BUCKETS:,}")
    sizes = np.full(int(full) + (rest > 0), bucket, np.float64)
    if rest:
        sizes[-1] = rest
    return sizes


def ready_times(sizes: NDArray[np.float64], backward: float) -> NDArray[np.float64]:
    """When each bucket is full if backward produces gradients at a constant rate, over ``backward`` seconds.

    Args:
        sizes: bytes of each bucket.
    """
    return backward * np.cumsum(sizes) / sizes.sum()


def timeline(
    sizes: NDArray[np.float64], ready: NDArray[np.float64], seconds: NDArray[np.float64], backward: float
) -> Timeline:
    """One stream: a bucket starts when it is ready and the one before it has ended.

    All arrays have one element a bucket; ``ready`` may be any times, such as measured ones.

    Args:
        sizes: bytes of each bucket.
        ready: when each is full, in seconds since backward began.
        seconds: that its all-reduce takes.
        backward: seconds that backward takes.
    """
    # end[i] = max over j <= i of ready[j] + the seconds of j..i
    done = np.cumsum(seconds)
    end = done + np.maximum.accumulate(ready - (done - seconds))
    return Timeline(sizes, ready, end - seconds, end, backward)


def uniform_timeline(total: float, bucket: float, backward: float, seconds: Callable[[float], float]) -> Timeline:
    """``total`` bytes in buckets of ``bucket``, ready at a constant rate; ``seconds(size)`` is an all-reduce's time.

    Args:
        backward: seconds that backward takes.
    """
    sizes = bucket_sizes(total, bucket)
    times = np.full(len(sizes), seconds(float(sizes[0])))
    times[-1] = seconds(float(sizes[-1]))
    return timeline(sizes, ready_times(sizes, backward), times, backward)


def best_bucket(total: float, backward: float, seconds: Callable[[float], float]) -> Timeline:
    """The timeline that ends first, over bucket sizes from 64 KiB to everything, a tenth of a factor of 2 apart.

    Small buckets leave little exposed, until their latencies add up to more than backward.

    Args:
        total: bytes of gradients.
        backward: seconds that backward takes.
        seconds: the time of an all-reduce of so many bytes, in seconds.

    Returns:
        That of the bucket size that exposes least.
    """
    smallest = max(2.0**16, total / MOST_BUCKETS)
    steps = max(0, math.ceil(10 * math.log2(total / smallest)))
    sizes = [float(round(smallest * 2 ** (i / 10))) for i in range(steps)] + [total]
    # From the largest on: of equal ones, the fewer buckets.
    return min((uniform_timeline(total, s, backward, seconds) for s in reversed(sizes)), key=lambda t: t.total)


# The plan.


@dataclass(frozen=True)
class Ending:
    """Where plain data parallelism ends: the parameters that fit, and the GPUs from which on communication takes
    longer than backward (None: not up to ``searched``)."""

    memory: float  # bytes that a GPU needs
    parameters: float  # that fit into a GPU's memory
    fits: bool
    gpus: int | None
    searched: int


@dataclass(frozen=True)
class Turning:
    """For one number of ranks on one kind of link: bytes at which a ring's latency and bandwidth terms are equal, and
    below which a tree that is not pipelined beats a ring."""

    ranks: int
    balanced: float
    tree_below: float


@dataclass(frozen=True)
class Plan:
    """What ``tricoll plan`` answers. Seconds and bytes."""

    parameters: float
    topology: Topology
    profile: Profile
    algorithm: str
    gradient_bytes: int  # a parameter, on the wire
    bucket: float
    timeline: Timeline
    best: Timeline
    others: dict[str, Timeline]  # by algorithm, with the same buckets
    ending: Ending
    turning: list[Turning]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: seconds and bytes."""

        def summary(line: Timeline) -> dict[str, Any]:
            return {
                "bucket": float(line.sizes[0]),
                "buckets": len(line.sizes),
                "a_bucket": float(line.end[0] - line.start[0]),
                "communication": line.communication,
                "hidden": line.hidden,
                "exposed": line.exposed,
                "total": line.total,
            }

        return {
            "parameters": self.parameters,
            "gpus": self.topology.world_size,
            "node_size": self.topology.node_size,
            "profile": self.profile.name,
            "algorithm": self.algorithm,
            "gradient_bytes": self.gradient_bytes * self.parameters,
            "backward": self.timeline.backward,
            **summary(self.timeline),
            "best_bucket": summary(self.best),
            "algorithms": {name: summary(line) for name, line in self.others.items()},
            "memory": {name: each * self.parameters for name, each in MEMORY.items()},
            "ends": dataclasses.asdict(self.ending),
            "turning_points": [dataclasses.asdict(each) for each in self.turning],
        }


def make(
    parameters: float,
    topology: Topology,
    profile: Profile,
    *,
    bucket: float,
    backward: float,
    algorithm: str = "ring",
    gradient_bytes: int = 2,
    gpu_memory: float = 80e9,
) -> Plan:
    """The plan for ``parameters`` whose gradients are all-reduced during ``backward`` seconds in buckets of ``bucket``
    bytes. ``algorithm`` may be "auto": the fastest for each bucket. Raises ValueError for what cannot be.

    Args:
        topology: the GPUs.
        profile: the machine's constants.
        gradient_bytes: of a gradient on the wire: 2 for BF16.
        gpu_memory: bytes of a GPU.
    """
    if parameters < 1 or topology.world_size < 2 or backward < 0 or gpu_memory <= 0:
        raise ValueError("a plan needs a parameter, two GPUs and their memory, and a backward of at least 0 s")
    total = parameters * gradient_bytes

    def line(name: str, where: Topology = topology) -> Timeline:
        return uniform_timeline(total, bucket, backward, lambda size: seconds(name, size, where, profile))

    chosen = line(algorithm)
    allowed = [c.algorithm for c in cost.candidates("all_reduce", bucket, topology, profile) if not c.excluded]
    link = profile.link("signal", "inter" if topology.nodes > 1 else "mapped")
    memory = BYTES_A_PARAMETER * parameters
    return Plan(
        parameters,
        topology,
        profile,
        algorithm,
        gradient_bytes,
        bucket,
        chosen,
        best_bucket(total, backward, lambda size: seconds(algorithm, size, topology, profile)),
        {name: line(name) for name in allowed if name != algorithm},
        Ending(
            memory,
            gpu_memory / BYTES_A_PARAMETER,
            memory <= gpu_memory,
            *_outgrown(topology, lambda where: line(algorithm, where).communication > backward),
        ),
        [
            Turning(n, cost.balanced_bytes(n, link.alpha, link.beta), cost.tree_below(n, link.alpha, link.beta))
            for n in sorted({*RANKS, topology.world_size})
        ],
    )


def seconds(algorithm: str, nbytes: float, topology: Topology, profile: Profile) -> float:
    """Of an all-reduce. Raises ValueError, with the reason, if the algorithm cannot be used there."""
    if algorithm == "auto":
        return cost.best("all_reduce", nbytes, topology, profile).time
    found = {c.algorithm: c for c in cost.candidates("all_reduce", nbytes, topology, profile)}
    if algorithm not in found:
        raise ValueError(f"{algorithm!r} is not one of auto, {', '.join(found)}")
    if reason := found[algorithm].excluded:
        raise ValueError(f"{algorithm} cannot be used on {topology}: {reason}")
    return found[algorithm].time


def _outgrown(topology: Topology, outgrown: Callable[[Topology], bool]) -> tuple[int | None, int]:
    """The smallest number of GPUs, in nodes of this size, from which on communication takes too long, and up to how
    many it was looked for: LARGEST_WORLD, or fewer where the algorithm does not go further."""

    def at(nodes: int) -> bool:
        return outgrown(Topology(nodes * topology.node_size, topology.node_size, topology.mapped))

    low, high = 1, 2  # nodes; at low it is not known to be too long
    try:
        while not at(high):
            low, high = high, 2 * high
            if high * topology.node_size > LARGEST_WORLD:
                return None, low * topology.node_size
    except ValueError:
        return None, low * topology.node_size
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle) else (middle, high)
    return high * topology.node_size, LARGEST_WORLD


# On the terminal.

SHADES = " ░▒▓█"


def lanes(line: Timeline, since: float, until: float, width: int = 64) -> tuple[str, str]:
    """Two rows of characters: backward, and the communication stream, whose cells are as dark as it is busy.

    ``#`` is communication after backward, which the step waits for.
    """
    edges = np.linspace(since, until, width + 1)
    moments = np.stack([line.start, line.end], 1).ravel()
    worked = np.repeat(np.cumsum(line.end - line.start), 2)
    worked[::2] -= line.end - line.start
    busy = np.diff(np.interp(edges, moments, worked)) / np.diff(edges)
    exposed = edges[:-1] >= line.backward - 1e-9 * until
    compute = np.clip((line.backward - edges[:-1]) / np.diff(edges), 0, 1)
    shade = lambda share: SHADES[math.ceil(share * 4 - 1e-6)] if share > 0 else " "
    communication = ["#" if out and share > 1e-6 else shade(share) for share, out in zip(busy.tolist(), exposed)]
    return "".join(map(shade, compute.tolist())), "".join(communication)


def show(plan: Plan, console: Console) -> None:
    """Print a plan for people."""
    line, t = plan.timeline, plan.topology
    console.print(
        f"{plan.parameters:.4g} parameters on {t}; all-reduce by {plan.algorithm}, profile {plan.profile.name}; "
        f"{show_bytes(plan.parameters * plan.gradient_bytes)} of gradients in {len(line.sizes)} buckets of "
        f"{show_bytes(plan.bucket)}; backward takes {show_seconds(line.backward)}.\n"
    )
    for title, since in (("the step", 0.0), ("its last buckets", line.last_buckets)):
        compute, communication = lanes(line, since, line.total)
        console.print(f"{title}: {show_seconds(since)} to {show_seconds(line.total)}", markup=False)
        console.print(f"  backward       |{compute}|", markup=False)
        console.print(f"  communication  |{communication}|", markup=False)
    console.print("  (the darker, the busier; # is exposed: the step waits for it)\n")
    console.print(_times(plan))
    console.print(_advice(plan) + "\n")
    console.print(_memory(plan))
    for sentence in _ends(plan):
        console.print(sentence)
    console.print()
    console.print(_turning(plan))


def show_sweep(points: list[Point], console: Console) -> None:
    """Print simulated times over the number of ranks, without and with noise."""
    names = list(dict.fromkeys(p.algorithm for p in points))
    columns = [name + noise for name in names for noise in ("", ", noise")]
    table = _table("ranks", *columns, title="An all-reduce of a bucket, simulated")
    seconds = {(p.ranks, p.algorithm, p.noisy): show_seconds(p.seconds) for p in points}
    for n in sorted({p.ranks for p in points}):
        table.add_row(f"{n:,}", *(seconds.get((n, name, noisy), "") for name in names for noisy in (False, True)))
    console.print(table)


def _table(*columns: str, title: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def _times(plan: Plan) -> Table:
    table = _table(
        "all-reduce", "bucket", "number", "each", "together", "hidden", "exposed", "+ step", title="Communication"
    )
    rows = [(plan.algorithm, plan.timeline), *plan.others.items(), (f"best for {plan.algorithm}", plan.best)]
    for name, line in rows:
        times = (line.end[0] - line.start[0], line.communication, line.hidden, line.exposed)
        share = f"{line.exposed / line.backward:.3%}" if line.backward else ""
        table.add_row(name, show_bytes(line.sizes[0]), str(len(line.sizes)), *map(show_seconds, times), share)
    return table


def _advice(plan: Plan) -> str:
    line, best = plan.timeline, plan.best
    said = f"{show_seconds(line.exposed)} of {show_seconds(line.communication)} is exposed. "
    if best.exposed < 0.95 * line.exposed:
        said += f"The best bucket size is {show_bytes(best.sizes[0])}: {show_seconds(best.exposed)} exposed. "
    else:
        said += "No other bucket size is better by more than 5 %. "
    if plan.others:
        name, other = min(plan.others.items(), key=lambda item: item[1].exposed)
        if other.exposed < line.exposed:
            said += f"With this bucket size, {name} exposes {show_seconds(other.exposed)}: --algo {name}."
    return said


def _memory(plan: Plan) -> Table:
    table = _table("memory of a GPU", "bytes a parameter", "bytes", title="Memory, without activations")
    for name, each in MEMORY.items():
        table.add_row(name, str(each), show_bytes(each * plan.parameters))
    table.add_section()
    table.add_row("together", str(BYTES_A_PARAMETER), show_bytes(plan.ending.memory))
    return table


def _ends(plan: Plan) -> list[str]:
    """Sentences: when plain data parallelism ends, by memory and by communication."""
    ending, line = plan.ending, plan.timeline
    limit = f"a GPU of {show_bytes(ending.parameters * BYTES_A_PARAMETER)} holds {ending.parameters:.3g} parameters"
    if ending.fits:
        memory = f"Memory: this model fits; {limit}, less what activations need."
    else:
        memory = (
            f"Memory: plain data parallelism has ended: {limit}, and more GPUs do not help. Shard the optimiser's "
            "state, the gradients or the weights (ZeRO, FSDP), or split the model."
        )
    rest = f"it takes {show_seconds(line.communication)}, and backward {show_seconds(line.backward)}"
    if line.communication > line.backward:
        communication = f"Communication: it cannot be hidden any more: {rest}."
    elif ending.gpus is None:
        communication = f"Communication: {rest}; up to {ending.searched:,} GPUs it stays below that."
    else:
        communication = f"Communication: {rest}; with these buckets it takes longer from {ending.gpus:,} GPUs on."
    return [memory, communication]


def _turning(plan: Plan) -> Table:
    link = plan.profile.link("signal", "inter" if plan.topology.nodes > 1 else "mapped")
    title = f"Sizes at which things change, one kind of link ({show_seconds(link.alpha)}, {show_rate(link.beta)})"
    table = _table(
        "ranks", "a ring's latency equals its bandwidth term at", "a plain tree is faster below", title=title
    )
    for each in plan.turning:
        table.add_row(f"{each.ranks:,}", show_bytes(each.balanced), show_bytes(each.tree_below))
    return table
