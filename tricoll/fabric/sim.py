"""All ranks in one process, under a deterministic scheduler that does everything the memory model allows.

Every rank and every channel of every rank is a greenlet. It runs until it waits or lets others see something; then the
scheduler draws who goes on, from a seed. With ``delivery="adversarial"`` a put is delivered late and out of order, its
source read only at delivery; stores to a mapped peer stay invisible until a flag is released after a CTA barrier; and
reading or handing on data without the barrier that the threads of a CTA would need is an error. What it can not show
is a missing acquire or release in the machine code: for that, see the compile gate.

Time is virtual: each channel has a clock; a rank has a port to its node and one to other nodes, through which its
messages leave one after the other, to arrive ``bytes / beta + alpha`` later (whatever else arrives there). When nobody
can go on, the waiting programs are told at once that they have timed out.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from greenlet import getcurrent, greenlet

from tricoll.errors import CollectiveError, CollectiveTimeout, MemoryModelViolation
from tricoll.kernels import jit, link
from tricoll.kernels.jit import Kernel, Pointer

from .base import Counters, Event, Heap, LinkProfile
from .cpu import CpuProgram, address, byte_heap, convert, integer, interpreting, store_word, tiles

MAX_EVENTS = 1_000_000


@dataclass
class Put:
    """A put that has started and has not arrived."""

    rank: int
    dest: int
    source: int
    nbytes: int
    flag: int  # 0: none
    word: int
    data: Any = None  # keeps the source alive, if it is nobody's memory


class Task:
    """A greenlet and what it waits for."""

    def __init__(self, name: str, body: Callable[[], None], parent: greenlet) -> None:
        self.name = name
        self.greenlet = greenlet(body, parent)
        self.ready: Callable[[], bool] | None = None
        self.give_up = False  # set by the scheduler when nobody can go on
        self.bound: Any = None  # the program that device functions act for while this task runs


class Scheduler:
    """Draws which task runs next and which put arrives next."""

    def __init__(self, seed: int, adversarial: bool) -> None:
        self.random = random.Random(seed)
        self.adversarial = adversarial
        self.tasks: list[Task] = []
        self.puts: list[Put] = []
        self.current: Task | None = None
        self.main = getcurrent()
        self.deadlock: list[str] = []
        self.paces: dict[str, float] = {}

    def spawn(self, name: str, body: Callable[[], None]) -> Task:
        task = Task(name, body, self.main)
        self.tasks.append(task)
        return task

    def step_aside(self) -> None:
        """Let others run, perhaps."""
        if self.adversarial:
            self.block(lambda: True)

    def block(self, ready: Callable[[], bool]) -> bool:
        """Run others until ``ready()``. False if nobody can go on."""
        task = self.current
        assert task is not None
        task.ready, task.give_up, task.bound = ready, False, jit.bind(None)
        self.main.switch()
        jit.bind(task.bound)
        task.ready = None
        return not task.give_up

    def run(self) -> None:
        # How eager puts are to arrive, and how slow a task is, differ from seed to seed: what goes wrong only when
        # ranks are far apart does not show under a fair draw.
        eager = self.random.choice((0.02, 0.1, 0.4, 0.8)) if self.adversarial else 0.4
        while self.tasks:
            runnable = [t for t in self.tasks if t.ready is None or t.ready()]
            if self.puts and (not runnable or self.random.random() < eager):
                self.deliver(self.random.randrange(len(self.puts)))
            elif runnable:
                self.switch(self.random.choices(runnable, [self.pace(t) for t in runnable])[0])
            else:
                self.deadlock = self.deadlock or [t.name for t in self.tasks]
                for task in self.losers():
                    task.give_up = True
                    self.switch(task)
        while self.puts:
            self.deliver(0)

    def pace(self, task: Task) -> float:
        """How often a task is drawn, compared with others."""
        if task.name not in self.paces:
            self.paces[task.name] = self.random.choice((1.0, 1.0, 0.02)) if self.adversarial else 1.0
        return self.paces[task.name]

    def losers(self) -> list[Task]:
        """Whose waits time out when nobody can go on."""
        return list(self.tasks)

    def switch(self, task: Task) -> None:
        self.current = task
        task.greenlet.switch()
        if task.greenlet.dead:
            self.tasks.remove(task)

    def deliver(self, index: int) -> None:
        put = self.puts.pop(index)
        if put.nbytes:
            ctypes.memmove(put.dest, put.source, put.nbytes)
        if put.flag:
            store_word(put.flag, put.word)


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
        links = profile if isinstance(profile, Mapping) else {"intra": profile or LinkProfile()}
        self.intra, self.inter = links["intra"], links.get("inter", links["intra"])
        self.node_size = node_size or size
        self.interpreted = tiles(choice) == "triton"
        self.board: dict[tuple[int, int], tuple[int, str]] = {}
        self.heaps: list[list[torch.Tensor]] = [[] for _ in range(size)]  # per rank, in order of allocation
        self.left = [sys.maxsize] * size  # in how many calls a rank had taken part when it ended
        self.busy: dict[tuple[int, bool], float] = {}  # when a rank's port, inside its node or out, is free again
        self.arrival: dict[int, tuple[float, int]] = {}  # when the last flag in a word arrived, and from whom
        self.clock: dict[tuple[int, int], float] = {}  # of a rank's channel
        self.trace: list[Event] = []
        self.gave_up: set[tuple[int, int]] = set()  # ranks and channels

    def link(self, source: int, target: int) -> LinkProfile:
        return self.intra if source // self.node_size == target // self.node_size else self.inter

    def send(self, kind: str, rank: int, channel: int, peer: int, nbytes: int, flag: int, shown: bool = True) -> float:
        """Account for a message; returns when the sender is through with it. ``shown``: in the trace."""
        now, link = self.clock[rank, channel], self.link(rank, peer)
        port = rank, rank // self.node_size == peer // self.node_size
        start = max(now, self.busy.get(port, 0.0)) if nbytes else now
        end = start + nbytes / link.beta
        if nbytes:
            self.busy[port] = end
        self.arrival[flag] = end + link.alpha, rank
        if shown:
            self.record(Event(kind, rank, channel, peer, nbytes, start, end, end + link.alpha))
        return end

    def record(self, event: Event) -> None:
        if len(self.trace) < MAX_EVENTS:
            self.trace.append(event)

    def stuck(self, rank: int, channel: int, peer: int, note: str) -> None:
        """A program has given up waiting. What that brings about, on the same rank, is not recorded."""
        if (rank, channel) not in self.gave_up:
            self.gave_up.add((rank, channel))
            now = self.clock.get((rank, channel), 0.0)
            self.record(Event("stuck", rank, channel, peer, 0, now, now, now, note))


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
        key = (self.rank, self.channel)
        self.world.clock[key] = self.world.send("store", *key, peer, nbytes, where, shown=not self.over)
        self.flush()
        store_word(where, word)
        self.scheduler.step_aside()

    def store_words(self, dest: Pointer, words: torch.Tensor, nbytes: int) -> None:
        assert dest.pe is not None
        if nbytes >= 0:
            self.counters.add(nbytes)
            key = (self.rank, self.channel)
            self.world.clock[key] = self.world.send("store", *key, dest.pe, 2 * nbytes, dest.address)
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
        self.world.send(kind, self.rank, self.channel, pe, nbytes, where, shown=not self.over)
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

    def block(self, over: Callable[[], bool], timeout: float) -> bool:
        return self.scheduler.block(over)

    def seen(self, flag: int) -> None:
        key = (self.rank, self.channel)
        now, (arrival, sender) = self.world.clock[key], self.world.arrival.get(flag, (0.0, -1))
        if arrival > now:
            self.world.clock[key] = arrival
            self.world.record(Event("wait", self.rank, self.channel, sender, 0, now, arrival, arrival))


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
        memory = torch.zeros(nbytes // 8 + 16, dtype=torch.int64)
        aligned = memory[(-memory.data_ptr() // 8) % 16 :][: nbytes // 8]
        mine.append(byte_heap(Heap(aligned, aligned)))
        self.world.scheduler.block(lambda: all(len(theirs) > index for theirs in self.world.heaps))
        bases = [theirs[index].data_ptr() if len(theirs) > index else 0 for theirs in self.world.heaps]
        self.heaps = [theirs[index] for theirs in self.world.heaps if len(theirs) > index]
        return Heap(aligned, torch.tensor(bases), multicast=aligned)

    def launch(self, kernel: Kernel, channels: int, arguments: dict[str, Any]) -> None:
        converted = convert(kernel, arguments, self.world.interpreted)
        errors: list[BaseException] = []
        start = max((self.world.clock.get((self.rank, c), 0.0) for c in range(channels)), default=0.0)

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

            return run

        tasks = []
        for c in range(channels):
            self.world.clock[self.rank, c] = start
            program = SimProgram(self.world, c, self.rank, self.heaps, self.counters)
            tasks.append(self.world.scheduler.spawn(f"rank {self.rank} channel {c}", body(program)))
        while not all(t.greenlet.dead for t in tasks):
            self.world.scheduler.block(lambda: all(t.greenlet.dead for t in tasks))
        self._record_stuck(arguments.get("status"))
        end = max(self.world.clock[self.rank, c] for c in range(channels))
        for c in range(channels):
            self.world.clock[self.rank, c] = end
        if errors:
            raise errors[0]

    def _record_stuck(self, status: torch.Tensor | None) -> None:
        # From the status blocks of a kernel, see fail() of kernels/link.py.
        for channel, words in enumerate([] if status is None else status.tolist()):
            code, peer, message, _, _, waits_for = words[:6]
            if code in (link.TIMED_OUT, link.ABORTED):
                what = "data" if waits_for else "a free slot"
                self.world.stuck(self.rank, channel, peer, f"waits for {what} from rank {peer} (message {message})")

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
        if not any(rank == self.rank for rank, _ in self.world.gave_up):  # else it asks the others why
            self.world.stuck(self.rank, 0, -1, "waits for other ranks, outside of a kernel")
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
        world.scheduler.spawn(f"rank {rank}", body(rank))
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
        error.trace = world.trace  # type: ignore[attr-defined]
        raise error
    return Simulation(results, stats, max(world.clock.values(), default=0.0), world.trace)
