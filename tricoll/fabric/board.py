"""What ranks tell each other outside of kernels: what fabrics share of it, and a board in the store where they met."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

SLOTS, SLOT_BYTES = 8, 4096  # of a board in memory: a number, a length, and text
LEFT = SLOTS - 1  # the slot in which a rank says, when it closes, 1 + the number of calls that it took part in
NAP = 0.005  # seconds between two looks of a rank that waits: each is a question to the store


class StoreBoard:
    """A board as :class:`tricoll.fabric.base.Fabric` has it. May be used from any thread."""

    def __init__(self, store: Any, rank: int) -> None:
        self._store, self._rank = store, rank
        self._mine: dict[int, tuple[int, str]] = {}

    def post(self, slot: int, sequence: int, text: str) -> None:
        self._mine[slot] = sequence, text
        self._store.set(self._key(self._rank, slot), f"{sequence}\n{text}")

    def peek(self, rank: int, slot: int) -> tuple[int, str]:
        if rank == self._rank:
            return self._mine.get(slot, (0, ""))
        key = self._key(rank, slot)
        if not self._store.check([key]):  # get() would wait for it
            return 0, ""
        sequence, _, text = self._store.get(key).decode(errors="replace").partition("\n")
        return int(sequence), text

    @staticmethod
    def _key(rank: int, slot: int) -> str:
        return f"board/{rank}/{slot}"


def gone(left: Iterable[int], sequence: int, ended: Collection[int] = ()) -> list[int]:
    """The ranks that will take no part in call ``sequence``. ``left``: what each has in slot LEFT, 0 if nothing;
    ``ended``: those whose processes or threads have ended, with or without a word."""
    numbers = list(left)
    early = {r for r, number in enumerate(numbers) if 0 < number <= sequence}
    return sorted(early | {r for r in ended if not numbers[r]})


def pause(until: Callable[[], bool], timeout: float, over: Callable[[], bool], nap: float = NAP) -> bool:
    """Look until a condition holds. False if it does not within ``timeout`` seconds, or if it is ``over`` before.

    ``nap``: seconds between two looks.
    """
    deadline = time.monotonic() + timeout
    while not until():
        if over() or time.monotonic() > deadline:
            return until()
        time.sleep(nap)
    return True
