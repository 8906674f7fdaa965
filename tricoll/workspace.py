"""The memory of a communicator: which family of algorithms has which part of it, and what is in it between calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from . import dispatch
from .fabric.base import Fabric, Heap
from .kernels import link


@dataclass(frozen=True)
class Part:
    """What a family of algorithms has of the heap, in words, and of the counters."""

    start: int
    words: int
    flags: int  # words at the start that say what has come: all of them where flags are inside the data
    counter: int  # where its counters start: an epoch a channel, messages sent and received a link and channel
    counters: int


def parts(world_size: int, s: dispatch.Settings) -> dict[str, Part]:
    """How the heap is divided: see ``kernels/link.py`` for what is in each part."""
    result: dict[str, Part] = {}
    start = counter = 0
    for family in dispatch.families(world_size, s):
        links = dispatch.links(family, world_size, s) * s.channels
        flags = link.LINE // 8 * (1 + 2 * links)
        slots = links * s.slots * dispatch.slot_bytes(family, world_size, s) * (1 if s.mapped else 2)
        words = flags + slots // 8
        counters = -(-(s.channels + 2 * links) // 16) * 16  # kernels are compiled for pointers to multiples of 16 bytes
        result[family] = Part(start, words, words if family == "flagged" else flags, counter, counters)
        start += words
        counter += counters
    return result


class Workspace:
    """What one rank's kernels have from call to call: the heap, which others write to, and counters and status blocks
    of their own."""

    def __init__(self, fabric: Fabric, settings: dispatch.Settings, agreed: Mapping[str, Any]) -> None:
        """Collective. ``agreed``: what must be the same on all ranks."""
        self.world_size, self.settings = fabric.world_size, settings
        self.parts = parts(fabric.world_size, settings)
        counters = sum(part.counters for part in self.parts.values())
        self.heap: Heap | None = None  # in a world of one
        if fabric.world_size > 1:
            self.heap = fabric.allocate(sum(part.words for part in self.parts.values()) * 8, agreed)
        self.counters = torch.zeros(counters, dtype=torch.int64, device=fabric.device)
        self.status = torch.zeros(settings.channels, link.STATUS_WORDS, dtype=torch.int64, device=fabric.device)

    def senders(self) -> list[int]:
        """The ranks of which a message waits here, among those that :meth:`.Communicator.send` sends."""
        assert self.heap is not None
        part, s, n = self.parts["direct"], self.settings, self.world_size
        found = []
        for r in range(n):  # the ready words and counters of a net: see kernels/link.py
            k = int(self.counters[part.counter + (1 + n + r) * s.channels])
            word = int(self.heap.words[part.start + 16 * (1 + 2 * r * s.channels) + k % s.slots])
            if word >> 24 > k // s.slots:
                found.append(r)
        return found

    def abort_words(self) -> list[torch.Tensor]:
        """Those in which kernels are told to give up."""
        if self.heap is None:
            return []
        return [self.heap.words[part.start : part.start + 1] for part in self.parts.values()]

    def clear(self) -> None:
        """Make it as it was at the start. Nobody may be sending."""
        assert self.heap is not None
        for part in self.parts.values():
            self.heap.words[part.start : part.start + part.flags].zero_()
        self.counters.zero_()
        self.status.zero_()
