"""How a call is carried out: a pure function of what all ranks agree on."""

from __future__ import annotations

from dataclasses import dataclass

ALGORITHMS = {  # and the collectives that each has
    "ring": ("all_reduce", "reduce_scatter", "all_gather"),
    "two_shot": ("all_reduce", "reduce_scatter", "all_gather"),
    "one_shot": ("all_reduce",),
    "tree": ("all_reduce",),
}


@dataclass(frozen=True)
class Settings:
    """The shape of the links, fixed when a communicator is made and the same on all ranks."""

    mapped: bool
    channels: int
    slots: int  # a link
    slot_bytes: int
    window: int  # pieces that go round a ring together
    block: int  # elements a pass of the bulk loop


@dataclass(frozen=True)
class Plan:
    """Chunks and pieces, in elements. Each of ``channels`` programs moves ``pieces`` pieces of each chunk."""

    algorithm: str
    chunk: int
    piece: int
    pieces: int


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def choose(collective: str, itemsize: int, asked: bool) -> str:
    """The algorithm for "auto", until there is a cost model: the ring.

    Except where a tensor of 16-bit floats is reduced and its own dtype travels because nothing else was asked for: a
    ring would round every partial sum, and nobody has said that this is wanted. The direct algorithm rounds once.
    """
    return "two_shot" if itemsize == 2 and not asked and collective != "all_gather" else "ring"


def plan(collective: str, numel: int, itemsize: int, world_size: int, settings: Settings, algorithm: str) -> Plan:
    """Cut ``numel`` elements (of the whole result, or input for reduce_scatter), ``itemsize`` bytes on the wire each.

    An all-reduce may cut anywhere, so its chunks are multiples of 16 elements; the others cut where dimension 0 says.
    """
    if collective not in ALGORITHMS.get(algorithm, ()):
        having = ["auto", *(name for name, collectives in ALGORITHMS.items() if collective in collectives)]
        raise ValueError(f"algo is {algorithm!r}; for {collective} it can be one of {having}")
    chunk = numel // world_size
    if algorithm == "one_shot":
        chunk = _round_up(numel, 16)
    elif algorithm == "tree":
        chunk = _round_up(-(-numel // 2), 16)
    elif collective == "all_reduce":
        chunk = _round_up(-(-numel // world_size), 16)
    part = -(-chunk // settings.channels)
    slot = slot_bytes(algorithm, world_size, settings) // itemsize
    # At least a window of pieces, if they are worth a message each; an empty call still says that it is there.
    pieces = max(1, -(-part // slot), min(settings.window, part * itemsize // 16384))
    return Plan(algorithm, chunk, _round_up(-(-part // pieces), 16), pieces)


def family(algorithm: str) -> str:
    """Which part of the heap an algorithm uses, by the name of its kernels' file."""
    return {"one_shot": "direct", "two_shot": "direct"}.get(algorithm, algorithm)


def links(family: str, world_size: int) -> int:
    """Links into a rank, each with its slots for every channel."""
    return {"ring": 1, "direct": world_size, "tree": 6}[family]


def slot_bytes(algorithm: str, world_size: int, settings: Settings) -> int:
    """The size of a slot. All links of a rank together take what one link of a ring takes, if that can be."""
    return max(128, settings.slot_bytes // links(family(algorithm), world_size) // 128 * 128)
