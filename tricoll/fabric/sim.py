"""All ranks in one process, under a deterministic scheduler that does everything the memory model allows.

Every rank and every channel of every rank is a greenlet. It runs until it waits or lets others see something; then the
scheduler draws who goes on, from a seed. With ``delivery="adversarial"`` a put is delivered late and out of order, its
source read only at delivery; stores to a mapped peer stay invisible until a flag is released after a CTA barrier; and
reading or handing on data without the barrier that the threads of a CTA would need is an error. What it can not show
is a missing acquire or release in the machine code: for that, see :mod:`tricoll.gates`. With ``delivery="prompt"``,
puts arrive at once and whoever is earliest by the clock goes on: nothing depends on the seed.

Time is virtual, see :mod:`.virtual_time`. When nobody can go on, the waiting programs are told at once that they have
timed out.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tricoll.cost.machines import LinkProfile
from tricoll.errors import CollectiveError, CollectiveTimeout, HeapExhausted, MemoryModelViolation
from tricoll.kernels import jit, link
from tricoll.kernels.jit import Kernel, Pointer

from .base import Counters, Event, Heap
from .cpu import CpuProgram, address, byte_heap, convert, integer, interpreting, peek_word, poke_word, tiles
from .scheduler import Put, Scheduler
from .virtual_time import VirtualTime


class World:
    """What the ranks of one simulation share."""

    def __init__(
        self,
        size: int,
        seed: int,
        profile: LinkProfile | Mapping[str, LinkProfile] | None,
        delivery: str,
        node_size: int | None,
        choice: str | None,
    ) -> None:
        if delivery not in ("adversarial", "prompt"):
            raise ValueError(f"delivery is {delivery!r}; it can be 'adversarial' or 'prompt'")
        self.size = size
        self.scheduler = Scheduler(seed, delivery == "adversarial")
        self.time = VirtualTime(size, profile, node_size)
        self.interpreted = tiles(choice) == "triton"
        self.board: dict[tuple[int, int], tuple[int, str]] = {}
        self.heaps: list[list[torch.Tensor]] = [[] for _ in range(size)]  # per rank, in order of allocation
        self.left = [sys.maxsize] * size  # in how many calls a rank had taken part when it ended


class SimProgram(CpuProgram):
    """A channel in the simulator."""

    def __init__(self, world: World, channel: int, rank: int, heaps: list[torch.Tensor], counters: Counters) -> None:
        super().__init__(channel, rank, heaps, world.interpreted, counters)
        self.world, self.scheduler = world, world.scheduler
        start = heaps[rank].data_ptr()
        self.own = range(start, start + heaps[rank].numel())  # by address: pointers are to views of it
        self.stores: list[tuple[Pointer, torch.Tensor]] = []  # to mapped peers, not yet visible there
        self.unfenced = 0  # how many of them were made after the last barrier
        self.staged = False  # own heap written since the last barrier
        self.looked = False  # own heap read since the last barrier
        self.acquired = False  # a flag seen since the last barrier
        self.over = False  # a wait has given up: what is sent now says so to others

    # What the threads of a CTA may and may not do between two barriers.

    def barrier(self) -> None:
        self.unfenced, self.staged, self.looked, self.acquired = 0, False, False, False

    def read(self, pointer: Pointer, count: int) -> torch.Tensor:
        if pointer.address in self.own:
            if self.acquired:
                self.violation("reads a slot after the flag, but without a CTA barrier in between")
            self.looked = True
        return pointer.view(count)

    def write(self, pointer: Pointer, count: int) -> torch.Tensor:
        if self.acquired and (pointer.pe is not None or pointer.address in self.own):
            self.violation("writes a slot after the flag, but without a CTA barrier in between")
        if pointer.pe is not None and self.scheduler.adversarial:
            hidden = torch.empty_like(pointer.view(count))
            self.stores.append((pointer, hidden))
            self.unfenced += 1
            return hidden
        if pointer.address in self.own:
            self.staged = True
        return pointer.view(count)

    def violation(self, what: str) -> None:
        raise MemoryModelViolation(f"rank {self.rank}, channel {self.channel}: {what}")

    def flush(self) -> None:
        """Make the stores that a release covers visible. One after the last barrier may stay behind."""
        covered = len(self.stores) - self.unfenced
        for pointer, hidden in self.stores[:covered]:
            pointer.view(hidden.numel()).copy_(hidden)
        del self.stores[:covered]

    # Other ranks' memory.

    def store_signal(self, flag: Any, word: Any, nbytes: Any) -> None:
        where, word, nbytes = address(flag), integer(word), integer(nbytes)
        peer = next(r for r, h in enumerate(self.heaps) if h.data_ptr() <= where < h.data_ptr() + h.numel())
        if self.looked and not nbytes:
            self.violation("frees a slot that other threads may still be reading: no CTA barrier after the read")
        self.counters.add(nbytes)
        self.scheduler.await_turn()
        self.world.time.store(self.rank, self.channel, peer, nbytes, where, shown=not self.over)
        self.flush()
        poke_word(where, word)
        self.scheduler.step_aside()

    def store_words(self, dest: Pointer, words: torch.Tensor, nbytes: int) -> None:
        assert dest.pe is not None
        if nbytes >= 0:
            self.counters.add(nbytes)
            self.scheduler.await_turn()
            self.world.time.store(self.rank, self.channel, dest.pe, 2 * nbytes, dest.address)
        # Words arrive in any order: here, in a few parts.
        parts = self.scheduler.random.choice((1, 1, 2, 4)) if self.scheduler.adversarial else 1
        step = -(-words.numel() // parts)
        for at in range(0, words.numel(), step):
            part = words[at : at + step]
            put = Put(self.rank, dest.address + 8 * at, part.data_ptr(), 8 * part.numel(), 0, 0, part)
            self.scheduler.puts.append(put)
        if self.scheduler.adversarial:
            self.scheduler.step_aside()
        else:
            while self.scheduler.puts:
                self.scheduler.deliver(0)

    def put_signal(self, dest: Any, source: Any, nbytes: Any, flag: Any, word: Any, pe: Any) -> None:
        if self.staged:
            self.violation("puts data that other threads may still be writing: no CTA barrier after the write")
        self.start("put", dest, source, integer(nbytes), flag, word, pe)

    def signal(self, flag: Any, word: Any, pe: Any) -> None:
        if self.looked:
            self.violation("frees a slot that other threads may still be reading: no CTA barrier after the read")
        self.start("signal", flag, flag, 0, flag, word, pe)

    def start(self, kind: str, dest: Any, source: Any, nbytes: int, flag: Any, word: Any, pe: Any) -> None:
        pe = integer(pe)
        self.counters.add(nbytes)
        where = self.elsewhere(flag, pe)
        self.scheduler.await_turn()
        self.world.time.send(kind, self.rank, self.channel, pe, nbytes, where, shown=not self.over)
        put = Put(self.rank, self.elsewhere(dest, pe), address(source), nbytes, where, integer(word))
        self.scheduler.puts.append(put)
        if self.scheduler.adversarial:
            self.scheduler.step_aside()
        else:
            self.scheduler.deliver(len(self.scheduler.puts) - 1)

    def wait(self, *arguments: Any) -> Any:
        self.scheduler.step_aside()
        self.acquired = True
        word = super().wait(*arguments)
        self.over |= integer(word) < 0
        return word

    def await_words(self, *arguments: Any) -> tuple[Any, Any]:
        self.scheduler.step_aside()
        code, seen = super().await_words(*arguments)
        self.over |= integer(code) != 0
        return code, seen

    def store(self, pointer: Any, word: Any) -> None:
        poke_word(address(pointer), integer(word))

    def acquire(self, flag: int) -> int:
        return peek_word(flag)  # all is in one thread: what the scheduler has delivered is there

    def block(self, over: Callable[[], bool], timeout: float) -> bool:
        return self.scheduler.block(over)

    def seen(self, flag: int) -> None:
        self.world.time.wait(self.rank, self.channel, flag)


class SimFabric:
    """One rank of a simulated world. See :class:`tricoll.fabric.base.Fabric`."""

    name = "sim"
    channels = 1
    multicast = emulated = True
    device = torch.device("cpu")
    asynchronous = False  # the scheduler decides who runs

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank, self.world_size = world, rank, world.size
        self.counters = Counters()
        self.sequence = 0

    def allocate(self, nbytes: int, agreed: Mapping[str, Any]) -> Heap:  # one program: all ranks agree
        mine = self.world.heaps[self.rank]
        index = len(mine)
        try:
            # NumPy's zeros are pages that take no memory, and no time, until they are written; PyTorch's are written.
            memory = torch.from_numpy(np.zeros(nbytes // 8 + 16, np.int64))
        except (MemoryError, ValueError):  # more than there is, or than a process can ask for
            raise HeapExhausted(
                f"{self.world_size} simulated ranks need {nbytes} bytes each, more than a process here gets: "
                "make the heaps smaller (channels=..., slots=..., slot_bytes=..., or TRICOLL_CHANNELS and so on)"
            ) from None
        aligned = memory[(-memory.data_ptr() // 8) % 16 :][: nbytes // 8]
        mine.append(byte_heap(Heap(aligned, aligned)))
        self.world.scheduler.block(lambda: all(len(theirs) > index for theirs in self.world.heaps))
        bases = [theirs[index].data_ptr() if len(theirs) > index else 0 for theirs in self.world.heaps]
        self.heaps = [theirs[index] for theirs in self.world.heaps if len(theirs) > index]
        return Heap(aligned, torch.tensor(bases), multicast=aligned)

    def launch(self, kernel: Kernel, channels: int, arguments: dict[str, Any]) -> None:
        converted = convert(kernel, arguments, self.world.interpreted)
        errors: list[BaseException] = []
        self.world.time.meet(self.rank, channels)

        def body(program: SimProgram) -> Callable[[], None]:
            def run() -> None:
                jit.bind(program)
                try:
                    kernel(**converted)
                except BaseException as error:  # ends in the rank that launched the kernel
                    errors.append(error)
                finally:
                    program.unfenced = 0
                    program.flush()
                    jit.bind(None)
                    running.discard(program.channel)

            return run

        running = set(range(channels))
        for c in range(channels):
            program = SimProgram(self.world, c, self.rank, self.heaps, self.counters)
            clock = functools.partial(self.world.time.of, self.rank, c)
            self.world.scheduler.spawn(f"rank {self.rank} channel {c}", body(program), clock)
        while running:
            self.world.scheduler.block(lambda: not running)
        self._record_stuck(arguments.get("status"))
        self.world.time.meet(self.rank, channels)
        if errors:
            raise errors[0]

    def _record_stuck(self, status: torch.Tensor | None) -> None:
        # From the status blocks of a kernel, see fail() of kernels/link.py.
        for channel, words in enumerate([] if status is None else status.tolist()):
            code, peer, message, _, _, waits_for = words[:6]
            if code in (link.TIMED_OUT, link.ABORTED):
                what = "data" if waits_for else "a free slot"
                self.world.time.stuck(
                    self.rank, channel, peer, f"waits for {what} from rank {peer} (message {message})"
                )

    def quiet(self) -> None:
        puts = self.world.scheduler.puts
        for index in reversed(range(len(puts))):
            if puts[index].rank == self.rank:
                self.world.scheduler.deliver(index)

    def post(self, slot: int, sequence: int, text: str) -> None:
        self.world.board[self.rank, slot] = (sequence, text)

    def peek(self, rank: int, slot: int) -> tuple[int, str]:
        return self.world.board.get((rank, slot), (0, ""))

    def pause(self, until: Callable[[], bool], timeout: float) -> bool:
        if self.world.scheduler.block(until) and until():
            return True
        if not self.world.time.gave_up(self.rank):  # else it asks the others why
            self.world.time.stuck(self.rank, 0, -1, "waits for other ranks, outside of a kernel")
        return False

    def dead(self) -> list[int]:
        return [r for r, calls in enumerate(self.world.left) if calls < self.sequence]

    def stop(self) -> None:
        """Nobody waits while another rank's code runs."""

    def close(self) -> None:
        """Nothing to give back."""


@dataclass
class Simulation:
    """What :func:`tricoll.simulate` returns."""

    results: list[Any]  # what fn returned on each rank
    stats: list[dict[str, Any]]  # comm.stats() of each rank at its end
    virtual_time: float  # seconds, of the slowest channel
    trace: list[Event]  # what happened, up to a million events


def unavailable() -> str | None:
    """Why this fabric cannot be used on this machine; None, since it needs nothing but this process."""
    return None


def simulate(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    connect: Callable[[SimFabric], Any],
    seed: int,
    profile: LinkProfile | Mapping[str, LinkProfile] | None,
    delivery: str,
    node_size: int | None,
    tiles: str | None,
) -> Simulation:
    """Run ``fn(comm, *args)`` on every rank. ``connect`` makes a communicator from a fabric."""
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}; it must be at least 1")
    world = World(world_size, seed, profile, delivery, node_size, tiles)
    results: list[Any] = [None] * world_size
    stats: list[dict[str, Any]] = [{} for _ in range(world_size)]
    errors: list[tuple[int, BaseException]] = []

    def body(rank: int) -> Callable[[], None]:
        def run() -> None:
            fabric = SimFabric(world, rank)
            try:
                comm = connect(fabric)
                results[rank] = fn(comm, *args)
                stats[rank] = comm.stats()
            except BaseException as error:
                errors.append((rank, error))
            finally:
                world.left[rank] = fabric.sequence

        return run

    for rank in range(world_size):
        # Between kernels, all channels of a rank have one clock.
        world.scheduler.spawn(f"rank {rank}", body(rank), functools.partial(world.time.of, rank, 0))
    if world.interpreted:
        from tricoll.kernels import ring

        with interpreting(ring.all_reduce):
            world.scheduler.run()
    else:
        world.scheduler.run()
    if errors:
        # A rank's own mistake explains more than the timeouts that it causes elsewhere.
        rank, error = min(
            errors, key=lambda e: (isinstance(e[1], CollectiveTimeout), isinstance(e[1], CollectiveError))
        )
        if hasattr(error, "add_note"):
            error.add_note(f"in the simulation: rank {rank} of {world_size}, seed {seed}")
        error.trace = world.time.trace  # type: ignore[attr-defined]
        raise error
    return Simulation(results, stats, world.time.latest(), world.time.trace)
