"""How a call is carried out: a pure function of what all ranks agree on.

Which algorithms a call can take, how its data are cut for one, and the slots it uses. Which of them is the fastest, so
what "auto" takes, is decided in :mod:`tricoll.cost.choice`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from . import cost

ALGORITHMS = {  # and the collectives that each has
    "ring": ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"),
    "tree": ("all_reduce", "broadcast", "reduce"),
    "two_shot": ("all_reduce", "reduce_scatter", "all_gather", "reduce"),
    "hierarchical": ("all_reduce", "reduce_scatter", "all_gather"),
    "multimem": ("all_reduce",),
    "one_shot": ("all_reduce", "broadcast", "reduce", "gather", "scatter", "all_to_all", "barrier", "send", "recv"),
}
CHUNKS = {"tree": 2, "one_shot": 1}  # that data are cut into, where it is not one a rank
ROOTED = ("broadcast", "reduce")
COUNTING = ("ring", "tree", "two_shot", "hierarchical")  # whose kernels can keep a tally, see kernels/tally.py


@dataclass(frozen=True)
class Settings:
    """The shape of the links, fixed when a communicator is made and the same on all ranks."""

    mapped: bool
    channels: int
    slots: int  # a link
    slot_bytes: int
    window: int  # pieces that go round a ring together
    block: int  # elements a pass of the bulk loop
    node_size: int = 0  # ranks a node; 0: all are in one
    multicast: bool = False  # whether the heap has an address that stands for all ranks'
    reproducible: bool = False  # whether bits may depend on the ranks' values only


@dataclass(frozen=True)
class Plan:
    """Chunks and pieces, in elements. Each of ``channels`` programs moves ``pieces`` pieces of each chunk.

    Chunk c is ``edges[c]`` to ``edges[c + 1]`` of the data.
    """

    algorithm: str
    edges: tuple[int, ...]
    piece: int
    pieces: int

    @property
    def aligned(self) -> bool:
        """Whether chunks begin where vectors of 16 elements do."""
        return all(edge % 16 == 0 for edge in self.edges[:-1])


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def choose(
    collective: str,
    nbytes: int,
    world_size: int,
    settings: Settings,
    profile: cost.Profile,
    once: bool = False,
    counting: bool = False,
) -> str:
    """The algorithm for "auto": the one that the cost model predicts to be fastest, or the only one.

    Args:
        collective: its name.
        world_size: ranks.
        settings: the links' shape.
        nbytes: on the wire: of the tensor, or of the whole buffer for reduce_scatter and all_gather.
        profile: the constants of the machine.
        once: only algorithms that round a result once. Also if ``settings`` ask for reproducible bits.
        counting: only algorithms that can keep a tally.
    """
    available = [a for a in candidates(collective, world_size, settings) if not counting or a in COUNTING]
    if len(available) == 1 or world_size == 1:
        return available[0]
    topology = topology_of(world_size, settings)
    reproducible = settings.reproducible or once
    return cost.best(collective, nbytes, topology, profile, reproducible=reproducible, available=available).algorithm


def explain(
    collective: str, nbytes: int, world_size: int, settings: Settings, profile: cost.Profile
) -> cost.Explanation:
    """Why :func:`choose` chooses so.

    Args:
        collective: its name.
        world_size: ranks.
        settings: the links' shape.
    """
    return cost.explain(
        collective,
        nbytes,
        topology_of(world_size, settings),
        profile,
        reproducible=settings.reproducible,
        available=candidates(collective, world_size, settings),
    )


def topology_of(world_size: int, settings: Settings) -> cost.Topology:
    """The ranks as the cost model sees them."""
    node_size = settings.node_size if nodes(world_size, settings) else world_size
    return cost.Topology(world_size, node_size, settings.mapped)


def candidates(collective: str, world_size: int, settings: Settings) -> list[str]:
    """The algorithms that a call can take here.

    Args:
        collective: its name.
        world_size: ranks.
        settings: the links' shape.
    """
    missing = {"hierarchical"} if not nodes(world_size, settings) else set()
    return [name for name in having(collective) if name not in missing and (name != "multimem" or settings.multicast)]


def having(collective: str) -> list[str]:
    """The algorithms that a collective has.

    Args:
        collective: its name.
    """
    return [name for name, collectives in ALGORITHMS.items() if collective in collectives]


def plan(
    collective: str,
    numel: int,
    itemsize: int,
    world_size: int,
    settings: Settings,
    algorithm: str,
    sizes: Sequence[int] | None = None,
) -> Plan:
    """Cut ``numel`` elements (of the whole result, or input for reduce_scatter), ``itemsize`` bytes on the wire each.

    An all-reduce may cut anywhere, so its chunks are multiples of 16 elements; reduce-scatter and all-gather cut into
    equal parts, or into ``sizes`` elements a rank.

    Args:
        collective: its name.
        world_size: ranks.
        settings: the links' shape.
        algorithm: its name; not "auto".

    Returns:
        Where chunks begin, and how they are cut.

    Raises:
        ValueError: the algorithm cannot serve the call here.
    """
    if collective not in ALGORITHMS.get(algorithm, ()):
        raise ValueError(f"algo is {algorithm!r}; for {collective} it can be one of {['auto', *having(collective)]}")
    if algorithm == "hierarchical" and not nodes(world_size, settings):
        raise ValueError(
            f"algo='hierarchical' needs several nodes of several ranks each; there are {world_size} ranks, and "
            f"node_size is {settings.node_size} (tricoll.init(node_size=...) or TRICOLL_NODE_SIZE sets it)"
        )
    if algorithm == "multimem" and not settings.multicast:
        raise ValueError("algo='multimem' needs mapped links and a switch with multicast; there is none here")
    if sizes is not None:
        edges = [0]
        for size in sizes:
            edges.append(edges[-1] + size)
    else:
        chunks = CHUNKS.get(algorithm, world_size)
        if collective == "broadcast" or (collective == "reduce" and algorithm != "two_shot"):
            chunks = 1
        chunk = -(-numel // chunks)
        if collective in ("all_reduce", "reduce"):
            chunk = _round_up(chunk, 16)
        edges = [min(c * chunk, numel) for c in range(chunks + 1)]
    chunk = max((b - a for a, b in itertools.pairwise(edges)), default=0)
    part = -(-chunk // settings.channels)
    slot = slot_elements(algorithm, collective, itemsize, world_size, settings)
    # At least a window of pieces, if they are worth a message each; a path through many ranks is worth more. An empty
    # call still says that it is there.
    window = cost.PIPELINE if collective in ROOTED or algorithm == "tree" else settings.window
    pieces = max(1, -(-part // slot), min(window, part * itemsize // cost.WORTH))
    return Plan(algorithm, tuple(edges), _round_up(-(-part // pieces), 16), pieces)


def flagged(algorithm: str, collective: str, itemsize: int, settings: Settings) -> bool:
    """Whether the flag is inside the data: where that can be, a one-shot all-reduce needs no signals."""
    return algorithm == "one_shot" and collective == "all_reduce" and settings.mapped and itemsize in (2, 4)


def family(algorithm: str, collective: str, itemsize: int, settings: Settings) -> str:
    """Which part of the heap a call uses."""
    if flagged(algorithm, collective, itemsize, settings):
        return "flagged"
    own = {("ring", "broadcast"), ("ring", "reduce"), ("tree", "broadcast"), ("tree", "reduce")}
    return (
        algorithm
        if algorithm in ("ring", "tree", "hierarchical", "multimem") and (algorithm, collective) not in own
        else "direct"
    )


def families(world_size: int, settings: Settings) -> list[str]:
    """The parts of the heap."""
    return (
        ["ring", "tree", "direct"]
        + ["flagged"] * settings.mapped
        + ["multimem"] * settings.multicast
        + ["hierarchical"] * nodes(world_size, settings)
    )


def nodes(world_size: int, settings: Settings) -> bool:
    """Whether there are several nodes of several ranks, all of one size."""
    return 1 < settings.node_size < world_size and world_size % settings.node_size == 0


def links(family: str, world_size: int, settings: Settings) -> int:
    """Links into a rank, each with its slots for every channel."""
    return {
        "ring": 1,
        "direct": world_size,
        "flagged": world_size,
        "multimem": world_size,
        "tree": 6,
        "hierarchical": settings.node_size + 1,
    }[family]


def slot_elements(algorithm: str, collective: str, itemsize: int, world_size: int, settings: Settings) -> int:
    """How many elements a slot holds."""
    nbytes = slot_bytes(family(algorithm, collective, itemsize, settings), world_size, settings)
    return nbytes // itemsize // (2 if flagged(algorithm, collective, itemsize, settings) else 1)


def slot_bytes(family: str, world_size: int, settings: Settings) -> int:
    """The size of a slot. All links of a rank together take what one link of a ring takes, if that can be.

    Except those with flags in the data, which are for small messages: they take an eighth.
    """
    whole = settings.slot_bytes // (8 if family == "flagged" else 1)
    return max(128, whole // links(family, world_size, settings) // 128 * 128)
