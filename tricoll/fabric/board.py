"""What ranks tell each other outside of kernels, in the store in which they have met."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

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


def pause(until: Callable[[], bool], timeout: float, over: Callable[[], bool]) -> bool:
    """Look until a condition holds. False if it does not within ``timeout`` seconds, or if it is ``over`` before."""
    deadline = time.monotonic() + timeout
    while not until():
        if over() or time.monotonic() > deadline:
            return until()
        time.sleep(NAP)
    return True
