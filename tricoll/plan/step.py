"""The plan of a training step: its buckets, the best ones, a GPU's memory, and where plain data parallelism ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import cost
from ..cost import Profile, Topology
from .buckets import Timeline, best_bucket, uniform_timeline

# Bytes a parameter of mixed-precision training with Adam, on every GPU of plain data parallelism.
MEMORY = {
    "weights, BF16": 2,
    "gradients, BF16": 2,
    "master weights, FP32": 4,
    "Adam's first moments, FP32": 4,
    "Adam's second moments, FP32": 4,
}
BYTES_A_PARAMETER = sum(MEMORY.values())
LARGEST_WORLD = 1 << 20  # GPUs, where the search for the end of data parallelism stops
RANKS = (8, 64, 512, 4096)  # of the table of turning points


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
