"""What a run of the simulator did, looked at as lanes: a lane is a rank, or one of its channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .fabric.base import Event
from .units import show_bytes, show_seconds

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
ROOM = 0.3  # of the time, behind the end


@dataclass(frozen=True)
class Recording:
    """What a run did. ``node_size``: ranks a node, if there are several; ``error``: what ended it, if anything did."""

    events: Sequence[Event]
    ranks: int
    title: str = ""
    node_size: int = 0
    links: str = ""  # latency and bandwidth, for people
    error: BaseException | None = field(default=None, repr=False)

    @property
    def channels(self) -> int:
        """How many there are."""
        return 1 + max((e.channel for e in self.events), default=0)

    @property
    def end(self) -> float:
        """Seconds: when the last message arrived and the last wait ended. Flags may still be on their way."""
        return max((max(e.end, e.arrival if e.nbytes else 0.0) for e in self.events), default=0.0)

    @property
    def last(self) -> float:
        """Seconds: where pictures end, with some room for waits that do not."""
        return self.end * (1 + ROOM * bool(self.stuck))

    @property
    def unit(self) -> tuple[float, str]:
        """What seconds are multiplied by to be shown, and the unit that they then have."""
        return next(((1 / size, name) for size, name in UNITS if self.end >= 10 * size), (1e6, "us"))

    @property
    def messages(self) -> list[Event]:
        """What carried data, in the order of their start."""
        return sorted((e for e in self.events if e.nbytes), key=lambda e: (e.start, e.rank, e.channel))

    @property
    def flags(self) -> list[Event]:
        """Flags without data: slots that are given back, calls that are given up."""
        return [e for e in self.events if not e.nbytes and e.kind in ("put", "store", "signal")]

    @property
    def waits(self) -> list[Event]:
        """Waits that ended."""
        return [e for e in self.events if e.kind == "wait"]

    @property
    def stuck(self) -> list[Event]:
        """Waits that never ended."""
        return sorted((e for e in self.events if e.kind == "stuck"), key=lambda e: (e.rank, e.channel))

    def summary(self) -> str:
        """One line: what, how long, how many messages of how many bytes."""
        sizes = sorted({e.nbytes for e in self.messages})
        size = "" if not sizes else f" of {show_bytes(sizes[0])}"
        size += f" to {show_bytes(sizes[-1])}" if len(sizes) > 1 else ""
        counted = lambda n, what: f"{n:,} {what}{'s' * (n != 1)}"
        ended = "" if not self.stuck else f", {counted(len(self.stuck), 'wait')} without end"
        return (
            f"{self.title or counted(self.ranks, 'rank')}: {show_seconds(self.end)}, "
            f"{counted(len(self.messages), 'message')}{size}, {counted(len(self.flags), 'flag')}{ended}"
        )
