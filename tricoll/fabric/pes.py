"""The PEs of a program: what they tell each other, the symmetric memory that they allocate together, and their end."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import os
import struct
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tricoll.errors import CollectiveError, CollectiveTimeout, HeapExhausted, PeerFailure
from tricoll.exits import after_calls

from . import oshmem
from .agree import check_same
from .board import LEFT, SLOT_BYTES, SLOTS
from .cpu import peek_word, store_word

KEPT = 64  # posts whose text is kept, since it may be on its way: more than there can be before others have read some
LISTED = 100  # pieces of memory that a PE lists as given back, so that the list fits into a slot
ASK, AGREE, READY = 0, 1, 2  # what PEs say to each other to allocate something
GIVEN_UP = "given up"
NAP = 1e-3  # seconds between two looks at whether others are there
GRACE = 10.0  # seconds that a PE whose program has failed gives the others to end, too
DEFAULT_HEAP = "256M"  # Open MPI's


class Member(Protocol):
    """What is closed at the end of the program, before the library ends."""

    def close(self) -> None:
        """Tell the others."""


class Board:
    """Numbered slots of each rank, of which every rank has a copy."""

    def __init__(self, library: oshmem.Library, start: int) -> None:
        """``start`` is a symmetric address, of :meth:`size` bytes of zeros."""
        self.library, self.start = library, start
        self._posted: collections.deque[Any] = collections.deque(maxlen=KEPT)

    @staticmethod
    def size(ranks: int) -> int:
        """Bytes."""
        return ranks * SLOTS * SLOT_BYTES

    def _at(self, rank: int, slot: int) -> int:
        return self.start + (rank * SLOTS + slot) * SLOT_BYTES

    def post(self, slot: int, sequence: int, text: str) -> None:
        """Write a slot: ``text`` under a number that grows from post to post."""
        data = text.encode()[: SLOT_BYTES - 16]
        post = ctypes.create_string_buffer(struct.pack("=qq", sequence, len(data)) + data, 16 + len(data))
        self._posted.append(post)
        source, where, me = ctypes.addressof(post), self._at(self.library.pe, slot), self.library.pe
        ctypes.memmove(where + 8, source + 8, 8 + len(data))
        store_word(where, sequence)
        others = [pe for pe in range(self.library.pes) if pe != me]
        for pe in others:
            self.library.put(where + 8, source + 8, 8 + len(data), pe)
        self.library.fence()
        for pe in others:
            self.library.put_word(where, source, pe)

    def peek(self, rank: int, slot: int) -> tuple[int, str]:
        """Read a slot of a rank: (0, "") before its first post."""
        where = self._at(rank, slot)
        sequence = peek_word(where)
        if not sequence:
            return 0, ""
        self.library.test(where, sequence)
        return sequence, ctypes.string_at(where + 16, peek_word(where + 8)).decode(errors="replace")


class Job:
    """This process as one PE of a program.

    To allocate and to free symmetric memory are collective calls that wait without a limit, and a communicator may be
    closed on one rank long before another. So memory is freed when something is allocated: what all ranks have given
    back by then.
    """

    def __init__(self, timeout: float) -> None:
        """Collective; see :func:`join`."""
        self.library = oshmem.Library(timeout)
        self.members: list[Member] = []
        self.late = False  # whether the last wait for others was in vain, and they have not said that they have left
        self._attempts = self._made = 0
        self._live: dict[int, int] = {}  # addresses of memory, by its number
        self._given_back: dict[int, Any] = {}  # here, by number; and what must live on until it is freed
        self._board: Board | None = None
        self._process = os.getpid()
        self._ended = False

    def board(self) -> Board:
        """On which PEs talk about memory and the end. Raises CollectiveError if the library cannot be used."""
        self.library.check()
        if self._board is None:
            raise CollectiveError(f"PE {self.library.pe}: the OpenSHMEM library had no memory to begin with")
        return self._board

    def begin(self) -> None:
        """Start the library. Collective."""
        start = self.library.begin(SLOTS * SLOT_BYTES // 8)
        if not start:
            raise HeapExhausted(f"PE {self.library.pe} {_explain(Board.size(self.library.pes))}")
        self._board = Board(self.library, start)

    # Memory.

    def allocate(self, nbytes: int, agreed: Mapping[str, Any], timeout: float) -> tuple[int, int]:
        """Memory on all PEs, of zeros: its address, and its number. Raises as :meth:`.base.Fabric.allocate` does."""
        self._attempts += 1
        mine = {"agreed": agreed, "mapped": self.library.mapped, "given_back": sorted(self._given_back)[:LISTED]}
        ranks = [json.loads(text) for text in self._say(ASK, json.dumps(mine), timeout)]
        _check(ranks)
        self.library.quiet()  # nothing of this PE is under way to what is freed
        self._say(AGREE, "", timeout)
        for number in sorted(set(self._live).intersection(*(info["given_back"] for info in ranks))):
            self._given_back.pop(number)
            self.library.free(self._live.pop(number))
        start = self.library.allocate(nbytes)
        if start:
            ctypes.memset(start, 0, nbytes)
        problems = self._say(READY, "" if start else _explain(nbytes), timeout)
        if any(problems):
            raise HeapExhausted("; ".join(f"rank {r}: {text}" for r, text in enumerate(problems) if text))
        self.late = False
        self._made += 1
        self._live[self._made] = start
        return start, self._made

    def give_back(self, number: int, sources: Any) -> None:
        """This PE does not use the memory of that number any more. ``sources``: what may be on its way to others'."""
        self._given_back[number] = sources

    def _say(self, stage: int, text: str, timeout: float) -> list[str]:
        """Everybody's ``text``, when all PEs have come to this stage of this attempt."""
        board, me, n = self.board(), self.library.pe, self.library.pes
        # Two attempts have slots of their own: a PE may begin the next one while others still read this one.
        number, slot = 4 * self._attempts + stage, 4 * (self._attempts % 2) + stage
        board.post(slot, number, text)
        missing = list(range(n))

        def there() -> bool:
            missing[:] = [r for r in missing if board.peek(r, slot)[0] < number]
            return not missing or any(board.peek(r, LEFT)[0] for r in missing)

        self._pause(there, timeout)
        if missing and stage == ASK:
            # Whoever comes later shall not begin a collective call of the library, which would wait for this PE.
            board.post(slot - ASK + AGREE, number - ASK + AGREE, GIVEN_UP)
        if missing and (ended := [r for r in missing if board.peek(r, LEFT)[0]]):
            raise PeerFailure(f"rank {me}: ranks {ended} are gone: their programs have ended.")
        if missing:
            raise CollectiveTimeout(
                f"rank {me}: ranks {missing} of {n} did not join within {timeout:g} s. "
                "Check that they call tricoll.init(), too; its timeout sets how long to wait."
            )
        said = [board.peek(r, slot) for r in range(n)]
        if gone := [r for r, (seen, text) in enumerate(said) if seen > number or text == GIVEN_UP]:
            raise CollectiveTimeout(f"rank {me}: ranks {gone} have given up waiting for the others to join.")
        return [text for _, text in said]

    def _pause(self, until: Callable[[], bool], timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not until():
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(NAP)
            self.library.progress()
        return True

    # The end.

    def end(self) -> None:
        """At the end of the program: tell the others, wait for them to end, too, and end the library.

        As in any SPMD program, a PE that has nothing more to do waits for the others; the launcher ends it if one of
        them dies. A PE whose program has failed, or that has waited for others in vain, does not wait for long.
        """
        if self._ended or os.getpid() != self._process:  # a forked child is no PE
            return
        self._ended = True
        # The interpreter has shown an exception that nobody caught, or somebody may never come.
        limit = GRACE if hasattr(sys, "last_value") or self.late else None
        with contextlib.suppress(CollectiveError):
            board, everybody = self.board(), range(self.library.pes)
            for member in list(self.members):
                member.close()
            board.post(LEFT, 1, "")
            if self._pause(lambda: all(board.peek(r, LEFT)[0] for r in everybody), limit):
                return self.library.finalize()
        self.library.abandon(f"other PEs have not ended within {GRACE:g} s")


def _check(ranks: list[dict[str, Any]]) -> None:
    check_same([info["agreed"] for info in ranks])
    unmapped = [r for r, info in enumerate(ranks) if not info["mapped"]]
    if unmapped and ranks[0]["agreed"].get("mapped"):
        raise ValueError(
            f"link='mapped' needs all ranks' memory to be mapped everywhere, and on ranks {unmapped} shmem_ptr has no "
            "address for some (other hosts, or no shared memory in UCX_TLS). Use link='put', the default of this fabric"
        )


def _explain(nbytes: int) -> str:
    """What was needed, what there is, and which setting to change."""
    size = os.environ.get("SHMEM_SYMMETRIC_SIZE", DEFAULT_HEAP)
    return (
        f"needs {nbytes} bytes of the symmetric heap, which has {size} in all. Enlarge it (oshrun -x "
        "SHMEM_SYMMETRIC_SIZE=1G), or need less: tricoll.init(slot_bytes=...) or TRICOLL_SLOT_BYTES."
    )


_job: Job | None = None


def join(timeout: float) -> Job:
    """This process as a PE. Collective the first time, when it starts the library.

    Raises:
        ValueError: this process is not one of several PEs, or the library is not installed.
        CollectiveTimeout: other processes of the program have not joined.
    """
    global _job
    if _job is None:
        if not oshmem.launched():
            raise ValueError("the openshmem fabric needs its processes to be started together: oshrun -np 4 python ...")
        try:
            _job = Job(timeout)
        except OSError as error:
            raise ValueError(f"the openshmem fabric: {error}") from error
        after_calls(end)
        _job.begin()
    _job.board()
    _job.library.patience = timeout
    return _job


def end() -> None:
    """End the library at the end of the program, if this process has joined."""
    if _job is not None:
        _job.end()
