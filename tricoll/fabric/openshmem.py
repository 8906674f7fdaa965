"""A rank is a PE of an OpenSHMEM program: puts through a library that nobody here wrote, over whatever that runs on.

A put-with-signal is what OpenSHMEM 1.4 has in its place: ``shmem_putmem_nbi`` of the data, ``shmem_fence``, and
``shmem_put64_nbi`` of the word. A receiver that sees the word has the data, since the fence orders both at its PE. None
of the three waits for the receiver: a sender that runs ahead is held by the link's slots, whose words also say when a
source may be reused. :mod:`.oshmem` says what else these calls were chosen for.

Ranks read nothing from each other. What one has to say it puts into everybody's memory, so that a look at the board is
one at a rank's own memory, and no rank has to take part in another's look.
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import torch

from . import oshmem, pes
from .base import Heap
from .board import LEFT, gone
from .cpu import address, integer, peek_word
from .cpu_rank import RankFabric, RankProgram, Scratch


def unavailable() -> str | None:
    """Why this fabric cannot be used on this machine, and what to do; None if it can."""
    try:
        oshmem.load()
    except OSError as error:
        return str(error)
    if not oshmem.launched() and shutil.which("oshrun") is None:
        return f"there is the OpenSHMEM library, and no oshrun to start processes. {oshmem.INSTALL}"
    return None


class OpenshmemProgram(RankProgram):
    """A channel of a PE."""

    fabric: OpenshmemFabric

    def put_signal(self, dest: Any, source: Any, nbytes: Any, flag: Any, word: Any, pe: Any) -> None:
        nbytes = integer(nbytes)
        self.counters.add(nbytes)
        self.fabric.library.put(address(dest), address(source), nbytes, integer(pe))
        self.fabric.library.fence()
        self.fabric.set_word(address(flag), integer(word), integer(pe))

    def signal(self, flag: Any, word: Any, pe: Any) -> None:
        self.counters.add(0)
        self.fabric.set_word(address(flag), integer(word), integer(pe))

    def seen(self, flag: int) -> None:
        # True at once; it is the call that lets the memory model order what was put before the word before our reads.
        # It also takes the lock under which, where a CPU has to deliver, another thread may just be writing both.
        self.fabric.library.test(flag, peek_word(flag))


class OpenshmemFabric(RankFabric):
    """One rank that is a PE. See :class:`tricoll.fabric.base.Fabric`."""

    name = "openshmem"
    program = OpenshmemProgram
    emulated = True

    def __init__(self, job: pes.Job, rank: int, world_size: int, timeout: float, choice: str | None = None) -> None:
        """``choice`` is for :func:`tricoll.fabric.cpu.tiles`."""
        super().__init__(rank, world_size, timeout, choice)
        self.job, self.library = job, job.library
        library = self.library
        if (rank, world_size) != (library.pe, library.pes):
            raise ValueError(
                f"rank {rank} of {world_size} is PE {library.pe} of {library.pes}: a communicator of the openshmem "
                "fabric has all PEs, in their order, and cannot be of a sub-group. fabric='host' can"
            )
        self.multicast = library.mapped
        self._words: dict[tuple[int, int], ctypes.c_ulonglong] = {}
        self._number = 0  # of the memory
        self._board: pes.Board | None = None
        self.job.members.append(self)

    # Memory.

    def allocate(self, nbytes: int, agreed: Mapping[str, Any]) -> Heap:
        board = pes.Board.size(self.world_size)
        start, self._number = self.job.allocate(board + nbytes, agreed, self.timeout)
        self._board = pes.Board(self.library, start)
        self.heaps = [self._view(pe, start + board, nbytes) for pe in range(self.world_size)]
        bases = torch.tensor([h.data_ptr() if h.numel() else 0 for h in self.heaps])
        words = self.heaps[self.rank][: nbytes // 8 * 8].view(torch.int64)
        return Heap(words, bases, multicast=words if self.multicast else None)

    def _view(self, pe: int, symmetric: int, nbytes: int) -> torch.Tensor:
        at = symmetric if pe == self.rank else self.library.pointer(symmetric, pe)
        if not at:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(at), dtype=torch.uint8)

    def set_word(self, flag: int, word: int, pe: int) -> None:
        """Set a word of a PE, after everything that was put there before the last fence."""
        # The source stays as it is until the other side has answered: a word never has two updates under way.
        source = self._words.get((flag, pe))
        if source is None:
            source = self._words[flag, pe] = ctypes.c_ulonglong()
        source.value = word
        self.library.put_word(flag, ctypes.addressof(source), pe)

    def poll(self, until: Callable[[], bool], timeout: float) -> bool:
        come = super().poll(until, timeout)
        self.job.late = not (come or self.stopped or self.dead())
        return come

    def pause(self, until: Callable[[], bool], timeout: float) -> bool:
        come = super().pause(until, timeout)
        self.job.late &= not come
        return come

    def progress(self) -> None:
        self.library.progress()

    def quiet(self) -> None:
        self.library.quiet()

    # The others.

    def dead(self) -> list[int]:
        """The ranks that have closed. There are no others: the launcher ends all PEs when one dies."""
        if self._board is None:
            return []
        return gone((self._board.peek(r, LEFT)[0] for r in range(self.world_size)), self.sequence)

    def post(self, slot: int, sequence: int, text: str) -> None:
        assert self._board is not None
        self._board.post(slot, sequence, text)

    def peek(self, rank: int, slot: int) -> tuple[int, str]:
        assert self._board is not None
        return self._board.peek(rank, slot)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self in self.job.members:
            self.job.members.remove(self)
        self.heaps = []
        self.scratch = Scratch()
        if self._board is not None and self.library.usable:
            self.post(LEFT, 1 + self.sequence, "")
            self.job.give_back(self._number, (self._board, self._words))
