"""What every fabric offers, and nothing that depends on which one it is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

POLL = 1e-4  # seconds between two looks at whether a stream has come so far


@dataclass
class Heap:
    """This rank's part of the symmetric heap.

    ``words`` is the memory as int64 (zeroed, at a multiple of 128 bytes); ``bases[r]`` is the address at which rank
    r's part is mapped here, or 0 if it is not; for put links of a GPU it is r's PE number instead.
    """

    words: torch.Tensor
    bases: torch.Tensor
    multicast: torch.Tensor | None = None  # the words of all ranks together, where a switch can add them


@dataclass
class Counters:
    """What a rank has sent, counted where it is sent."""

    puts: int = 0  # put-with-signal calls; on mapped links, messages with data
    payload_bytes: int = 0
    signals: int = 0  # flags without data

    def add(self, nbytes: int) -> None:
        if nbytes:
            self.puts += 1
            self.payload_bytes += nbytes
        else:
            self.signals += 1

    def merge(self, other: Counters) -> None:
        """Count what another has counted, too."""
        self.puts += other.puts
        self.payload_bytes += other.payload_bytes
        self.signals += other.signals


class Fabric(Protocol):
    """One rank's view of a fabric.

    The *board* is for what ranks tell each other outside of kernels: every rank has a few numbered slots that only it
    writes and everybody reads.
    """

    name: str
    rank: int
    world_size: int
    device: torch.device
    multicast: bool  # whether heaps have a multicast address
    emulated: bool  # whether that is only there to be tested
    channels: int  # how many programs are worth having
    counters: Counters
    asynchronous: bool  # whether kernels may run in threads of their own, beside the caller
    sequence: int  # of the call that this rank is in; set by whoever counts calls

    def allocate(self, nbytes: int, agreed: Mapping[str, Any]) -> Heap:
        """Symmetric memory, the same size on every rank. Collective. Raises HeapExhausted on all ranks or on none, and
        ValueError on all if one thing in ``agreed``, by its name, is not the same on all of them."""

    def launch(self, kernel: Any, channels: int, arguments: dict[str, Any]) -> None:
        """Run a kernel with one program a channel, on this rank. Returns when it has finished; where the fabric has
        ``streams`` (:class:`Streams`), when it is on the caller's current stream."""

    def quiet(self) -> None:
        """Return when all puts that this rank has started have arrived."""

    def post(self, slot: int, sequence: int, text: str) -> None:
        """Write a board slot: ``text`` under a number that grows from post to post."""

    def peek(self, rank: int, slot: int) -> tuple[int, str]:
        """Read a board slot of a rank: (0, "") before its first post."""

    def pause(self, until: Callable[[], bool], timeout: float) -> bool:
        """Let others run until a condition holds. False if it does not within ``timeout`` seconds."""

    def dead(self) -> list[int]:
        """The ranks that are known to be gone: ended without closing, or closed before the current call."""

    def stop(self) -> None:
        """Have all waits give up, those in kernels too: called by another thread than theirs, before :meth:`close`."""

    def close(self) -> None:
        """Give everything back. May be called twice, and after an error."""


class Streams(Protocol):
    """A device that works off streams of kernels, as the attribute ``streams`` of its fabric. Nothing here waits for it
    but :meth:`read`, which waits for its own copies alone."""

    def current(self) -> Any:
        """The stream that this thread's kernels go to."""

    def own(self, name: Any) -> Any:
        """A stream of the communicator's own: the same for the same name, beside all others."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Kernels of this thread go to a stream."""

    def record(self, stream: Any) -> Any:
        """An event behind what is on a stream by now."""

    def wait(self, stream: Any, event: Any) -> None:
        """What is put on a stream from now on comes after an event."""

    def done(self, event: Any) -> bool:
        """Whether the device has come past an event."""

    def capturing(self) -> bool:
        """Whether what this thread puts on its stream becomes a graph instead."""

    def keep(self, tensors: Sequence[torch.Tensor]) -> None:
        """The memory of these tensors is not used anew before the current stream has come so far."""

    def upload(self, values: torch.Tensor) -> torch.Tensor:
        """A copy of a CPU tensor on the device, there for all streams when this returns. RuntimeError in a graph."""

    def read(self, words: Sequence[torch.Tensor]) -> list[list[list[int]]]:
        """What some of the device's tensors hold now, whatever its streams are doing. From any one thread at a time,
        also while another captures a graph."""

    def write(self, words: Sequence[torch.Tensor], value: int) -> None:
        """Put a number into words of the device now, whatever its streams are doing."""


def poll(until: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition on what streams have come past. False if it does not hold within so many seconds."""
    deadline = time.monotonic() + seconds
    while not until():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL)
    return True


def settle(streams: Streams) -> None:
    """Wait for what is on the caller's stream."""
    event = streams.record(streams.current())
    poll(lambda: streams.done(event), math.inf)


@dataclass
class Event:
    """One thing that a simulated program did, for pictures. Times are virtual seconds.

    ``kind`` is "put" (a put-with-signal), "store" (data or a flag in a mapped peer's memory), "signal" (a flag alone),
    "wait", or "stuck": a wait that gave up, which has no end. A message leaves from ``start`` to ``end`` and is there
    at ``arrival``. ``peer`` is who it goes to, or who was waited for; -1 if that is not known.
    """

    kind: str
    rank: int
    channel: int
    peer: int
    nbytes: int
    start: float
    end: float
    arrival: float = field(default=0.0)
    note: str = ""  # what a stuck program waits for
