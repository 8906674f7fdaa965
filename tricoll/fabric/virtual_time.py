"""Time in a simulation: the clock of each channel, the ports through which a rank's messages leave, and the trace.

A rank has a port to its node and one to other nodes. Messages leave through a port one after the other, to arrive
``bytes / beta + alpha`` later, whatever else arrives there.
"""

from __future__ import annotations

from collections.abc import Mapping

from tricoll.cost.machines import LinkProfile

from .base import Event

MAX_EVENTS = 1_000_000


class VirtualTime:
    """What each message and each wait of a simulated world does to the clocks."""

    def __init__(self, size: int, profile: LinkProfile | Mapping[str, LinkProfile] | None, node_size: int | None):
        links = profile if isinstance(profile, Mapping) else {"intra": profile or LinkProfile()}
        self._intra, self._inter = links["intra"], links.get("inter", links["intra"])
        self._node_size = node_size or size
        self._busy: dict[tuple[int, bool], float] = {}  # when a rank's port, inside its node or out, is free again
        self._arrival: dict[int, tuple[float, int]] = {}  # when the last flag in a word arrived, and from whom
        self._clock: dict[tuple[int, int], float] = {}  # of a rank's channel
        self._gave_up: set[tuple[int, int]] = set()  # ranks and channels
        self.trace: list[Event] = []

    def of(self, rank: int, channel: int) -> float:
        """A channel's clock, in seconds."""
        return self._clock.get((rank, channel), 0.0)

    def latest(self, rank: int | None = None) -> float:
        """The slowest channel's clock, of a rank or of all."""
        return max((at for (r, _), at in self._clock.items() if rank in (None, r)), default=0.0)

    def meet(self, rank: int, channels: int) -> None:
        """A kernel starts or ends: its channels go on together."""
        now = max(self.of(rank, c) for c in range(channels))
        for c in range(channels):
            self._clock[rank, c] = now

    def send(self, kind: str, rank: int, channel: int, peer: int, nbytes: int, flag: int, shown: bool = True) -> float:
        """Account for a message; returns when the sender is through with it. ``shown``: in the trace."""
        now, inside = self.of(rank, channel), rank // self._node_size == peer // self._node_size
        link, port = self._intra if inside else self._inter, (rank, inside)
        start = max(now, self._busy.get(port, 0.0)) if nbytes else now
        end = start + nbytes / link.beta
        if nbytes:
            self._busy[port] = end
        self._arrival[flag] = end + link.alpha, rank
        if shown:
            self._record(Event(kind, rank, channel, peer, nbytes, start, end, end + link.alpha))
        return end

    def store(self, rank: int, channel: int, peer: int, nbytes: int, flag: int, shown: bool = True) -> None:
        """Account for a message that the sender itself writes: it is busy until that has left."""
        self._clock[rank, channel] = self.send("store", rank, channel, peer, nbytes, flag, shown)

    def wait(self, rank: int, channel: int, flag: int) -> None:
        """A channel has waited for the flag in a word."""
        now, (arrival, sender) = self.of(rank, channel), self._arrival.get(flag, (0.0, -1))
        if arrival > now:
            self._clock[rank, channel] = arrival
            self._record(Event("wait", rank, channel, sender, 0, now, arrival, arrival))

    def stuck(self, rank: int, channel: int, peer: int, note: str) -> None:
        """A program has given up waiting. What that brings about, on the same rank, is not recorded."""
        if (rank, channel) not in self._gave_up:
            self._gave_up.add((rank, channel))
            now = self.of(rank, channel)
            self._record(Event("stuck", rank, channel, peer, 0, now, now, now, note))

    def gave_up(self, rank: int) -> bool:
        """Whether a channel of this rank has given up waiting."""
        return any(r == rank for r, _ in self._gave_up)

    def _record(self, event: Event) -> None:
        if len(self.trace) < MAX_EVENTS:
            self.trace.append(event)
