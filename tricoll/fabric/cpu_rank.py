"""What the fabrics share on which a rank is a process of its own: running kernels, and waiting without getting in the
way of those who are waited for."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from tricoll.kernels import jit
from tricoll.kernels.jit import Kernel, Pointer

from .base import Counters
from .cpu import CpuProgram, address, convert, integer, interpreting, store_word, tiles

CHECK_EVERY = 0.01  # seconds between two looks at whether the others are alive
SPIN = 200  # polls that only yield the CPU before a waiting rank sleeps between polls
NAP = 20e-6  # seconds


class RankProgram(CpuProgram):
    """A channel of a rank that is a process. Subclasses say how words and data reach ranks that are not mapped."""

    def __init__(self, fabric: RankFabric, channel: int) -> None:
        super().__init__(channel, fabric.rank, fabric.heaps, fabric.interpreted, Counters())
        self.fabric = fabric
        self._scratch = fabric.scratch.memory

    def store_signal(self, flag: Any, word: Any, nbytes: Any) -> None:
        self.counters.add(integer(nbytes))
        store_word(address(flag), integer(word))

    def store_words(self, dest: Pointer, words: torch.Tensor, nbytes: int) -> None:
        if nbytes >= 0:
            self.counters.add(nbytes)
        # By an operation on elements of 8 bytes, not by a copy of bytes, which may tear a word.
        torch.bitwise_or(words, 0, out=dest.view(words.numel()))

    def block(self, over: Callable[[], bool], timeout: float) -> bool:
        return self.fabric.poll(over, timeout)


class Scratch(threading.local):
    """The scratch memory of a thread that runs kernels."""

    def __init__(self) -> None:
        self.memory: dict[torch.dtype, torch.Tensor] = {}


class RankFabric:
    """One rank that is a process. See :class:`tricoll.fabric.base.Fabric`; subclasses have the rest of it."""

    program: type[RankProgram]
    channels = 1
    device = torch.device("cpu")
    asynchronous = True

    def __init__(self, rank: int, world_size: int, timeout: float, choice: str | None) -> None:
        """``choice`` is for :func:`tiles`."""
        self.rank, self.world_size, self.timeout = rank, world_size, timeout
        self.interpreted = tiles(choice) == "triton"
        self.counters = Counters()
        self.scratch = Scratch()
        self.heaps: list[torch.Tensor] = []  # of all ranks, where they are mapped here
        self._lock = threading.Lock()  # of what several threads that run kernels share
        self.sequence = 0
        self.closed = self.stopped = False

    def launch(self, kernel: Kernel, channels: int, arguments: dict[str, Any]) -> None:
        converted = convert(kernel, arguments, self.interpreted)
        with interpreting(kernel) if self.interpreted else contextlib.nullcontext():
            for channel in range(channels):
                program = self.program(self, channel)
                previous = jit.bind(program)
                try:
                    kernel(**converted)
                finally:
                    jit.bind(previous)
                    with self._lock:
                        self.counters.merge(program.counters)

    def poll(self, until: Callable[[], bool], timeout: float) -> bool:
        """Wait for a condition on shared memory, without keeping the CPU from those who will make it true."""
        for _ in range(SPIN):
            os.sched_yield()
            self.progress()
            if until():
                return True
        start = looked = time.monotonic()
        while not until():
            time.sleep(NAP)
            self.progress()
            now = time.monotonic()
            if now - looked > CHECK_EVERY:
                looked = now
                if self.stopped or (self.dead() and not until()) or now - start > timeout:
                    return until()
        return True

    def pause(self, until: Callable[[], bool], timeout: float) -> bool:
        return until() or self.poll(until, timeout)

    def progress(self) -> None:
        """Move on what is under way, where that takes a call. Memory that is shared needs none."""

    def dead(self) -> list[int]:
        raise NotImplementedError

    def stop(self) -> None:
        self.stopped = True
