"""Placing symmetric blocks in memory that was allocated once.

NVSHMEM allocates with all of its PEs or not at all, and a communicator may have only some of them.
"""

from __future__ import annotations

from collections.abc import Sequence

ALIGNMENT = 512  # bytes
Ranges = list[tuple[int, int]]  # start and end in bytes, in order, apart from each other


class Arena:
    """Which parts of ``size`` bytes are taken on this rank."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._taken: dict[int, int] = {}  # start: end

    def free(self) -> Ranges:
        """What is not taken."""
        found, at = [], 0
        for start, end in sorted(self._taken.items()):
            if start > at:
                found.append((at, start))
            at = end
        return [*found, (at, self.size)] if at < self.size else found

    def take(self, start: int, nbytes: int) -> None:
        """Take a place that is free on all ranks that share the block."""
        end = start + rounded(nbytes)
        if not any(a <= start and end <= b for a, b in self.free()):
            raise ValueError(f"bytes {start} to {end} are not free: {self.free()}")
        self._taken[start] = end

    def give(self, start: int) -> None:
        """Give back what starts here."""
        del self._taken[start]


def rounded(nbytes: int) -> int:
    """What a block really takes."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def place(free: Sequence[Sequence[Sequence[int]]], nbytes: int) -> int | None:
    """The first start of ``nbytes`` that are free on all ranks, given each rank's free ranges; None if there is none.

    The same on every rank that has heard the same.
    """
    common = [tuple(r) for r in free[0]]
    for ranges in free[1:]:
        common = [
            (max(a, c), min(b, d)) for a, b in common for c, d in ranges if max(a, c) < min(b, d)
        ]  # both in order, so the result is
    for start, end in common:
        start = rounded(start)
        if end - start >= rounded(nbytes):
            return start
    return None
