"""Several ranks on one GPU, a thread and a stream each: the compiled kernels and mapped links, without a second GPU.

Kernels of all ranks must run at the same time, since they wait for each other. So the ranks meet before each
collective; the last to come compiles and loads what is new (which may have to wait for the GPU, so nobody's kernel must
be waiting for it), looks whether all of them fit on the GPU together, and launches them one behind the other, each on
its rank's stream. A send does not meet its receive, which may be made much later: what both have in common, and that is
the kernel, is loaded by then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from tricoll import gpu
from tricoll.dispatch import Settings
from tricoll.errors import CollectiveError, CollectiveTimeout, PeerFailure

from . import cuda
from .agree import check_same
from .base import Counters, Heap, Streams, settle
from .board import LEFT, gone, pause
from .cuda import unavailable as unavailable

NAP = 0.0005  # seconds between two looks at the board


@dataclass
class Launch:
    """A rank's part in a launch."""

    stream: Any
    kernel: Any
    channels: int
    arguments: dict[str, Any]


class Device(Protocol):
    """What the ranks share: a GPU, or a stand-in."""

    device: torch.device

    def stream(self) -> Any:
        """A new stream."""

    def streams(self) -> Streams:
        """A rank's streams."""

    def memory(self, words: int) -> torch.Tensor:
        """Memory for a heap, zeroed."""

    def start(self, launches: Sequence[Launch], ranks: int) -> None:
        """Put each on its stream. ValueError if as many ``ranks`` could not run at the same time."""


class Gpu:
    """The current GPU."""

    def __init__(self) -> None:
        if reason := unavailable():
            raise CollectiveError(f"tricoll.loopback cannot be used: {reason}")
        self.device = cuda.current_device()
        # Cooperative kernels of one GPU may be made to wait for each other.
        self._launcher = cuda.Launcher(self.device, "mapped", cooperative=False)
        self._lock = threading.Lock()  # Triton compiles and loads for one thread at a time

    def stream(self) -> Any:
        return torch.cuda.Stream(self.device)

    def streams(self) -> Streams:
        return cuda.CudaStreams(self.device)

    def memory(self, words: int) -> torch.Tensor:
        return torch.zeros(words, dtype=torch.int64, device=self.device)

    def start(self, launches: Sequence[Launch], ranks: int) -> None:
        with self._lock:
            with torch.cuda.stream(launches[0].stream):
                if not torch.cuda.is_current_stream_capturing():  # else the launch says what is missing
                    self._prepare(launches, ranks)
            for launch in launches:
                with torch.cuda.stream(launch.stream):
                    self._launcher(launch.kernel, launch.channels, launch.arguments)

    def _prepare(self, launches: Sequence[Launch], ranks: int) -> None:
        compiled = [self._launcher.load(launch.kernel, launch.arguments) for launch in launches]
        properties = torch.cuda.get_device_properties(self.device)
        shared = getattr(properties, "shared_memory_per_multiprocessor", 100 << 10)
        each = min(programs_per_sm(c.n_regs, c.metadata.shared, shared) for c in compiled)
        check_fits(ranks, launches[0].channels, properties.multi_processor_count, each)


def programs_per_sm(registers: int, shared: int, most_shared: int) -> int:
    """How many programs of a kernel an SM holds: at least 1, since one fits by how kernels are compiled.

    ``registers`` a thread, ``shared`` bytes a program, ``most_shared`` bytes an SM. All SMs since sm_80 have 65536
    registers; a program reserves 1 KB of shared memory, and registers in units of 8 a thread.
    """
    threads = 32 * gpu.WARPS
    by_registers = 65536 // (-(-registers // 8) * 8 * threads)
    return max(1, min(by_registers, most_shared // (shared + 1024), 1024 // threads))


def check_fits(ranks: int, channels: int, sms: int, each: int) -> None:
    """ValueError unless all programs of all ranks can be on the GPU at once."""
    if ranks * channels > sms * each:
        raise ValueError(
            f"{ranks} ranks of {channels} channels are {ranks * channels} programs, and this GPU holds {sms * each} of "
            f"this kernel at once ({sms} SMs of {each}). They wait for each other, so all have to run: take fewer "
            "ranks or channels"
        )


class Meeting:
    """The ranks of a loopback: how their threads meet and hear from each other."""

    def __init__(self, world_size: int, timeout: float) -> None:
        self.world_size, self.timeout = world_size, timeout
        self._turn = threading.Condition()
        self._here: dict[tuple[str, int], dict[int, Any]] = {}
        self._done: dict[tuple[str, int], tuple[Any, Exception | None]] = {}
        self._visits: dict[tuple[int, str], int] = {}
        self._broken = ""  # why nobody waits any more
        self.ended: set[int] = set()
        self.board: dict[tuple[int, int], tuple[int, str]] = {}
        self.heaps: list[torch.Tensor] = []  # until all ranks have ended: the last to do so may still write to others'

    def meet(self, rank: int, what: str, mine: Any, last: Callable[[dict[int, Any]], Any]) -> Any:
        """Wait until all ranks are at their k-th ``what``. ``last`` gets what each has brought; all get its result.

        CollectiveTimeout, PeerFailure if some do not come; what ``last`` raises, on all.
        """
        deadline = time.monotonic() + self.timeout
        with self._turn:
            self._visits[rank, what] = visit = self._visits.get((rank, what), 0) + 1
            key = (what, visit)
            brought = self._here.setdefault(key, {})
            brought[rank] = mine
            if len(brought) == self.world_size and not self._broken:
                try:
                    self._done[key] = (last(dict(brought)), None)
                except Exception as trouble:
                    self._done[key] = (None, trouble)
                self._turn.notify_all()
            came = True
            while key not in self._done:
                missing = [r for r in range(self.world_size) if r not in brought]
                gone = [r for r in missing if r in self.ended]
                if gone or not came or self._broken:
                    # Who comes now must not do anything for a rank that has given up.
                    absent = f"ranks {missing} did not come within {self.timeout:g} s (tricoll.loopback(timeout=...))"
                    self._broken = self._broken or (f"ranks {gone} have ended" if gone else absent)
                    self._turn.notify_all()
                    kind = PeerFailure if gone else CollectiveTimeout
                    raise kind(f"rank {rank}, {what} {visit}: {self._broken}")
                came = self._turn.wait(max(0.0, deadline - time.monotonic()))
            result, error = self._done[key]
            brought.pop(rank)
            if not brought:
                del self._here[key], self._done[key]
        if error is not None:
            raise error
        return result

    def end(self, rank: int) -> None:
        """A rank's thread is over."""
        with self._turn:
            self.ended.add(rank)
            self._turn.notify_all()


class LoopbackFabric:
    """One of several ranks on one GPU. See :class:`tricoll.fabric.base.Fabric`."""

    name = "loopback"
    multicast = emulated = False
    asynchronous = True
    channels = gpu.GPU.channels

    def __init__(self, meeting: Meeting, below: Device, rank: int, timeout: float) -> None:
        self.meeting, self.below = meeting, below
        self.rank, self.world_size, self.timeout = rank, meeting.world_size, timeout
        self.device = below.device
        self.counters = Counters()
        self.sequence = 0
        self.closed = self.stopped = False
        self.streams = below.streams()
        self._all = range(self.world_size)

    # Memory.

    def allocate(self, nbytes: int, agreed: Mapping[str, Any]) -> Heap:
        if not agreed["mapped"]:
            raise ValueError("link is 'put', and loopback has mapped links only")
        self._together("agreement", dict(agreed), lambda all: check_same([all[r] for r in self._all]))
        heap = self.below.memory(nbytes // 8)
        self.meeting.heaps.append(heap)
        settle(self.streams)  # before anybody else writes to it
        addresses = self._together("heap", heap.data_ptr(), lambda all: [all[r] for r in self._all])
        return Heap(heap, torch.tensor(addresses, dtype=torch.int64, device=self.device))

    def _together(self, what: str, mine: Any, last: Callable[[dict[int, Any]], Any]) -> Any:
        return self.meeting.meet(self.rank, what, mine, last)

    # Running.

    def launch(self, kernel: Any, channels: int, arguments: dict[str, Any]) -> None:
        mine = Launch(self.streams.current(), kernel, channels, arguments)
        if arguments["collective"]:
            self._together("launch", mine, lambda all: self.below.start([all[r] for r in self._all], self.world_size))
        else:
            self.below.start([mine], self.world_size)

    def quiet(self) -> None:
        """Kernels say when what they have written is there."""

    # The board.

    def post(self, slot: int, sequence: int, text: str) -> None:
        self.meeting.board[self.rank, slot] = sequence, text

    def peek(self, rank: int, slot: int) -> tuple[int, str]:
        return self.meeting.board.get((rank, slot), (0, ""))

    def pause(self, until: Callable[[], bool], timeout: float) -> bool:
        return pause(until, timeout, lambda: self.stopped or bool(self.dead()), NAP)

    def dead(self) -> list[int]:
        return gone((self.peek(r, LEFT)[0] for r in self._all), self.sequence, self.meeting.ended)

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.post(LEFT, 1 + self.sequence, "")


def settings(world_size: int, below: Device) -> Settings:
    """What suits a loopback: at most one program an SM."""
    sms = torch.cuda.get_device_properties(below.device).multi_processor_count if below.device.type == "cuda" else 1
    return replace(gpu.GPU, channels=max(1, min(gpu.GPU.channels, sms // world_size)), node_size=0)


def run(
    fn: Callable[..., Any],
    world_size: int,
    args: Sequence[Any],
    timeout: float,
    connect: Callable[[LoopbackFabric], Any],
    below: Device,
) -> list[Any]:
    """``fn(comm, *args)`` on every rank, in a thread of its own; the results in rank order.

    Raises what a rank raised: the first exception that is not the consequence of another rank's.
    """
    meeting = Meeting(world_size, timeout)
    outcomes: list[Any] = [None] * world_size
    errors: dict[int, BaseException] = {}

    def rank(r: int) -> None:
        try:
            fabric = LoopbackFabric(meeting, below, r, timeout)
            with fabric.streams.on(below.stream()), connect(fabric) as comm:
                outcomes[r] = fn(comm, *args)
                comm.barrier()  # an error that nobody has asked for, too
        except BaseException as error:
            errors[r] = error
        finally:
            meeting.end(r)

    threads = [threading.Thread(target=rank, args=(r,), daemon=True, name=f"rank {r}") for r in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        first = min(errors, key=lambda r: isinstance(errors[r], CollectiveError))
        error: Any = errors[first]
        if hasattr(error, "add_note"):
            error.add_note(f"on rank {first} of {world_size}")
        raise error
    return outcomes
