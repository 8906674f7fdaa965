"""One process a rank on one machine, with the symmetric heap in POSIX shared memory.

A rank's segment is a file in /dev/shm that has no name from the start (O_TMPFILE): others open it through
``/proc/PID/fd/N``, which only the same user may do, and the kernel frees it when the last process that mapped it is
gone, however it went. Its blocks are reserved before it is used, since a sparse file in a full /dev/shm is a bus error
at the first write.

The first page of the segment is the board; the heap follows.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import socket
from collections.abc import Mapping
from typing import Any

import torch

from tricoll.errors import HeapExhausted, PeerFailure

from .agree import check_same, exchange
from .base import Heap
from .board import LEFT, SLOT_BYTES, SLOTS, gone
from .cpu import address, integer, load_word, peek_word, store_word
from .cpu_rank import RankFabric, RankProgram, Scratch
from .processes import Processes

SHM = "/dev/shm"


class HostProgram(RankProgram):
    """A channel of a rank on this machine: everybody's memory is mapped."""

    def put_signal(self, dest: Any, source: Any, nbytes: Any, flag: Any, word: Any, pe: Any) -> None:
        pe, nbytes = integer(pe), integer(nbytes)
        self.counters.add(nbytes)
        ctypes.memmove(self.elsewhere(dest, pe), address(source), nbytes)
        store_word(self.elsewhere(flag, pe), integer(word))

    def signal(self, flag: Any, word: Any, pe: Any) -> None:
        self.counters.add(0)
        store_word(self.elsewhere(flag, integer(pe)), integer(word))


class HostFabric(RankFabric):
    """One rank that is a process of this machine. See :class:`tricoll.fabric.base.Fabric`."""

    name = "host"
    program = HostProgram
    multicast = emulated = True

    def __init__(self, store: Any, rank: int, world_size: int, timeout: float, choice: str | None = None) -> None:
        """``store`` is a ``torch.distributed`` store of these ranks alone; ``choice`` is for :func:`tiles`."""
        super().__init__(rank, world_size, timeout, choice)
        self.store = store
        self._maps: list[mmap.mmap] = []
        self._processes = Processes()

    # Memory.

    def allocate(self, nbytes: int, agreed: Mapping[str, Any]) -> Heap:
        size = -(-(SLOTS * SLOT_BYTES + nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        mine: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "agreed": agreed}
        fd = -1
        try:
            fd = mine["fd"] = reserve(size)
        except OSError as error:
            mine["error"] = explain_allocation(error, size)
        try:
            ranks = self._exchange(mine, "segment")
            self._check_agreement(ranks)
            memory = [self._map(r, info, size) for r, info in enumerate(ranks)]
            self._exchange("mapped", "mapped")
        finally:
            if fd >= 0:
                os.close(fd)
        self._board = [m.data_ptr() for m in memory]
        self.heaps = [m[SLOTS * SLOT_BYTES :] for m in memory]
        bases = torch.tensor([h.data_ptr() for h in self.heaps])
        words = self.heaps[self.rank][: nbytes // 8 * 8].view(torch.int64)
        return Heap(words, bases, multicast=words)

    def _exchange(self, mine: Any, stage: str) -> list[Any]:
        return exchange(self.store, self.rank, self.world_size, stage, mine, self.timeout)

    def _check_agreement(self, ranks: list[dict[str, Any]]) -> None:
        errors = [f"rank {r}: {info['error']}" for r, info in enumerate(ranks) if "error" in info]
        if errors:
            raise HeapExhausted("; ".join(errors))
        if len(hosts := {info["host"] for info in ranks}) > 1:
            raise ValueError(f"the host fabric needs all ranks on one machine, and these are on {sorted(hosts)}")
        check_same([info["agreed"] for info in ranks])

    def _map(self, rank: int, info: dict[str, Any], size: int) -> torch.Tensor:
        path = f"/proc/{info['pid']}/fd/{info['fd']}"
        try:
            fd = os.open(path, os.O_RDWR)
            if rank != self.rank:
                self._processes.watch(rank, info["pid"])
        except OSError as error:
            raise PeerFailure(
                f"rank {self.rank}: cannot open {path}, the segment of rank {rank}: {error.strerror}. Its process has "
                "ended, runs as another user, or is in another container."
            ) from error
        try:
            self._maps.append(mmap.mmap(fd, size))
        finally:
            os.close(fd)
        return torch.frombuffer(self._maps[-1], dtype=torch.uint8)

    # The others.

    def dead(self) -> list[int]:
        left = (peek_word(board + LEFT * SLOT_BYTES) for board in self._board)
        return gone(left, self.sequence, self._processes.gone())

    def quiet(self) -> None:
        """Puts are copies here, and have arrived."""

    # The board.

    def post(self, slot: int, sequence: int, text: str) -> None:
        where = self._board[self.rank] + slot * SLOT_BYTES
        data = text.encode()[: SLOT_BYTES - 16]
        ctypes.memmove(where + 16, data, len(data))
        store_word(where + 8, len(data))
        store_word(where, sequence)

    def peek(self, rank: int, slot: int) -> tuple[int, str]:
        where = self._board[rank] + slot * SLOT_BYTES
        sequence = load_word(where)
        return sequence, ctypes.string_at(where + 16, peek_word(where + 8)).decode(errors="replace")

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._maps:
            self.post(LEFT, 1 + self.sequence, "")
        self._processes.close()
        self.heaps = []
        self.scratch = Scratch()
        for mapped in self._maps:
            with contextlib.suppress(BufferError):  # a tensor still looks into it: freed with that tensor
                mapped.close()
        self._maps.clear()


def unavailable() -> str | None:
    """Why this fabric cannot be used on this machine, and what to do; None if it can."""
    try:
        fd = reserve(SLOTS * SLOT_BYTES)
    except OSError as error:
        return explain_allocation(error, SLOTS * SLOT_BYTES)
    try:
        os.close(os.open(f"/proc/{os.getpid()}/fd/{fd}", os.O_RDWR))
    except OSError as error:
        return f"cannot open /proc/PID/fd, through which ranks find each other's memory: {error.strerror}"
    finally:
        os.close(fd)
    return None


def reserve(size: int) -> int:
    """A nameless file of ``size`` bytes in /dev/shm, all of them allocated. Returns its descriptor."""
    fd = os.open(SHM, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def explain_allocation(error: OSError, size: int) -> str:
    """What was needed, what there is, and which setting to change."""
    if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
        return f"cannot allocate shared memory in {SHM}: {error.strerror}"
    space = os.statvfs(SHM)
    return (
        f"needs {size} bytes of shared memory, and {SHM} has {space.f_bavail * space.f_frsize} free of "
        f"{space.f_blocks * space.f_frsize}. Enlarge it (docker run --shm-size=..., or mount -o remount,size=... "
        f"{SHM}), or make the heap smaller: tricoll.init(slot_bytes=...) or TRICOLL_SLOT_BYTES."
    )
