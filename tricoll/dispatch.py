"""How a call is carried out: a pure function of what all ranks agree on."""

from __future__ import annotations

from dataclasses import dataclass

ALGORITHMS = ("ring",)


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


def plan(
    collective: str, numel: int, itemsize: int, world_size: int, settings: Settings, algorithm: str = "auto"
) -> Plan:
    """Cut ``numel`` elements (of the whole result, or input for reduce_scatter), ``itemsize`` bytes on the wire each.

    An all-reduce may cut anywhere, so its chunks are multiples of 16 elements; the others cut where dimension 0 says.
    """
    if algorithm not in ("auto", *ALGORITHMS):
        raise ValueError(f"algo is {algorithm!r}; it can be one of {('auto', *ALGORITHMS)}")
    chunk = numel // world_size
    if collective == "all_reduce":
        chunk = _round_up(-(-numel // world_size), 16)
    part = -(-chunk // settings.channels)
    slot = settings.slot_bytes // itemsize
    # At least a window of pieces, if they are worth a message each; an empty call still says that it is there.
    pieces = max(1, -(-part // slot), min(settings.window, part * itemsize // 16384))
    return Plan("ring", chunk, _round_up(-(-part // pieces), 16), pieces)
