"""One process a GPU, with NVSHMEM's symmetric memory: peers are written to where they are mapped, and put to elsewhere.

Nothing here has run on a GPU. What can be checked without one is: names and parameters against the installed packages,
and the order of calls against stand-ins for them (``tests/test_nvshmem.py``).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tricoll import bitcode, gpu
from tricoll.dispatch import Settings
from tricoll.errors import CollectiveError, HeapExhausted

from . import cuda, gpus, symmetric
from .agree import check_same, exchange
from .base import Counters, Heap
from .board import LEFT, StoreBoard, gone, pause
from .processes import Processes

log = logging.getLogger("tricoll")

OLDEST = (3, 4)  # NVSHMEM


def unavailable() -> str | None:
    """Why this fabric cannot be used here, or None."""
    if reason := cuda.unavailable():
        return reason
    for module, package in (("nvshmem", "nvshmem4py"), ("cuda.core", "cuda-core"), ("cuda.bindings", "cuda-bindings")):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:  # of a package that the module is in
            found = None
        if found is None:
            return f'{package} is not installed: pip install "tricoll[cu13]" (or "tricoll[cu12]" for CUDA 12)'
    try:
        bitcode.find(cuda.arch_of(cuda.current_device()))
    except FileNotFoundError as error:
        return str(error)
    return versions()


def lacking(ranks: int) -> str | None:
    """Why ``ranks`` ranks of this host cannot use this fabric, or None."""
    if reason := unavailable():
        return reason
    if ranks > (gpus := torch.cuda.device_count()):
        return f"there are {ranks} ranks on this host, and {gpus} GPUs: start {gpus} (torchrun --nproc-per-node)"
    return None


def versions() -> str | None:
    """What does not fit together among PyTorch, NVSHMEM's host library and its device library, or None."""
    have = {d: version for d in ("12", "13") if (version := _version(f"nvshmem4py-cu{d}"))}
    major = (torch.version.cuda or "").partition(".")[0]
    if major and have and major not in have:
        return (
            f"PyTorch is built for CUDA {major}, and nvshmem4py is installed for CUDA {', '.join(have)}: "
            f'pip install "tricoll[cu{major}]"'
        )
    library = _version(f"nvidia-nvshmem-cu{major}")
    if library and tuple(map(int, re.findall(r"\d+", library)[:2])) < OLDEST:
        return f"NVSHMEM is {library}; tricoll needs {'.'.join(map(str, OLDEST))} or newer"
    return None


def libraries(loaded: str, environ: Mapping[str, str]) -> str | None:
    """Why kernels' device library does not fit the host library that is ``loaded``, or None.

    NVSHMEM compares them itself when a kernel is loaded; this says it before ranks wait for each other.
    """
    wheel = _version("nvidia-nvshmem-cu" + (torch.version.cuda or "13").partition(".")[0])
    if wheel is None or "TRICOLL_NVSHMEM_BITCODE" in environ or loaded.split(".")[:2] == wheel.split(".")[:2]:
        return None
    return (
        f"NVSHMEM's host library that was loaded is {loaded}, and kernels get the device library of the installed "
        f"wheel, {wheel}. Both must be of one release: look at LD_LIBRARY_PATH and NVSHMEM_HOME, or name the loaded "
        "one's device library in TRICOLL_NVSHMEM_BITCODE"
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


class NvshmemFabric:
    """One rank that is a process with a GPU of its own. See :class:`tricoll.fabric.base.Fabric`."""

    name = "nvshmem"
    emulated = False
    asynchronous = True
    channels = gpu.GPU.channels

    def __init__(self, store: Any, rank: int, world_size: int, timeout: float) -> None:
        """``store`` is a ``torch.distributed`` store of these ranks alone. Collective."""
        if reason := unavailable():
            raise CollectiveError(f"rank {rank}: the nvshmem fabric cannot be used: {reason}")
        self.store, self.rank, self.world_size, self.timeout = store, rank, world_size, timeout
        index = gpus.choose_device(os.environ, torch.cuda.device_count(), torch.cuda.current_device())
        torch.cuda.set_device(index)
        self._index = index
        self.device = gpus.device_of(index)
        self.counters = Counters()
        self.sequence = 0
        self.closed = self.stopped = False
        self._block: symmetric.Block | None = None
        self._launcher: cuda.Launcher | None = None
        self._board = StoreBoard(store, rank)
        self._processes = Processes()
        me = {"host": socket.gethostname(), "pid": os.getpid(), "gpu": gpus.pci_address(index)}
        self._world, self._ranks = symmetric.world(store, rank, world_size, index, timeout, me)
        for r, info in enumerate(self._ranks):
            if r != rank and info["host"] == me["host"]:
                with contextlib.suppress(OSError):  # in another container
                    self._processes.watch(r, info["pid"])
        self._pes = [info["pe"] for info in self._ranks]
        links = exchange(store, rank, world_size, "links", self._look(), timeout)
        self.mapped = all(link["mapped"] for link in links)
        self.multicast = self.mapped and all(link["multicast"] for link in links)
        self.streams = cuda.CudaStreams(self.device)

    def _look(self) -> dict[str, bool]:
        """Whether all ranks are mapped here, and have an address that stands for all of them."""
        reached = [address != 0 for address in self._world.addresses(self._world.probe, self._pes)]
        here = self._ranks[self.rank]
        for r, info in enumerate(self._ranks):
            if reached[r] and r != self.rank and info["host"] == here["host"]:
                reached[r] = gpus.atomics(self._index, info["gpu"])
        multicast = self._pes == list(range(self._world.n_pes)) and gpus.readable(
            self._world.multicast(self._world.probe)
        )
        return {"mapped": all(reached), "multicast": multicast}

    def settings(self) -> Settings:
        """What suits this fabric: what the compile gate has looked at, and the links and nodes that there are."""
        return replace(gpu.GPU, mapped=self.mapped, node_size=gpus.node_size([info["host"] for info in self._ranks]))

    # Memory.

    def allocate(self, nbytes: int, agreed: Mapping[str, Any]) -> Heap:
        mapped = bool(agreed["mapped"])
        if mapped and not self.mapped:
            raise ValueError(
                "link is 'mapped', and not every rank's memory is mapped on every other (see tricoll doctor): use 'put'"
            )
        if not mapped and (wrong := libraries(_library(), os.environ)):
            raise CollectiveError(f"rank {self.rank}: {wrong}")
        offer = {"agreed": dict(agreed), "free": self._world.offer()}
        offers = exchange(self.store, self.rank, self.world_size, "heap", offer, self.timeout)
        check_same([o["agreed"] for o in offers])
        self._block = self._world.take([o["free"] for o in offers], nbytes)
        if self._block is None:
            self._grow(nbytes, [o["free"] for o in offers])
        assert self._block is not None
        at = self._world.slabs[self._block.slab].address + self._block.start
        words = cuda.words_at(at, nbytes // 8, self.device)
        words.zero_()
        torch.cuda.current_stream(self.device).synchronize()
        # Nobody may write to it before, or wait for what was here earlier.
        exchange(self.store, self.rank, self.world_size, "zeroed", True, self.timeout)
        bases = self._world.addresses(at, self._pes) if mapped else self._pes
        multicast = cuda.words_at(self._world.multicast(at), nbytes // 8, self.device) if self.multicast else None
        self._launcher = cuda.Launcher(
            self.device, "mapped" if mapped else "put", cooperative=True, loaded=None if mapped else module_loaded
        )
        return Heap(words, torch.tensor(bases, dtype=torch.int64, device=self.device), multicast)

    def _grow(self, nbytes: int, free: Sequence[Any]) -> None:
        if self.world_size != self._world.n_pes:
            raise HeapExhausted(
                f"rank {self.rank}: needs {nbytes} bytes of symmetric memory, and what is free on the ranks is {free}. "
                "A group of some ranks takes its part of what all have allocated: set TRICOLL_HEAP_BYTES (bytes a rank)"
                " on all ranks, or destroy communicators that are not used"
            )
        error = ""
        try:
            self._world.grow(nbytes, self.timeout)
        except HeapExhausted as trouble:
            error = str(trouble)
        errors = exchange(self.store, self.rank, self.world_size, "grown", error, self.timeout)
        if any(errors):
            raise HeapExhausted("; ".join(f"rank {r}: {text}" for r, text in enumerate(errors) if text))
        slab = len(self._world.slabs) - 1
        self._world.slabs[slab].arena.take(0, nbytes)
        self._block = symmetric.Block(slab, 0, nbytes)

    # Running.

    def launch(self, kernel: Any, channels: int, arguments: dict[str, Any]) -> None:
        assert self._launcher is not None
        self._launcher(kernel, channels, arguments)

    def quiet(self) -> None:
        """Kernels say when a put has arrived; a host that must know waits for them."""
        torch.cuda.synchronize(self.device)

    # The board.

    def post(self, slot: int, sequence: int, text: str) -> None:
        self._board.post(slot, sequence, text)

    def peek(self, rank: int, slot: int) -> tuple[int, str]:
        return self._board.peek(rank, slot)

    def pause(self, until: Callable[[], bool], timeout: float) -> bool:
        return pause(until, timeout, lambda: self.stopped or bool(self.dead()))

    def dead(self) -> list[int]:
        left = (self.peek(r, LEFT)[0] for r in range(self.world_size))
        return gone(left, self.sequence, self._processes.gone())

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._world.failed |= self.stopped
        if self._block is not None:
            with contextlib.suppress(Exception):  # the store may be gone with the rank that had it
                self.post(LEFT, 1 + self.sequence, "")
            self._world.closed.append((self._block, self._all_left))
            self._block = None
        self._processes.close()

    def _all_left(self) -> bool:
        # Whether nobody can write to this communicator's memory any more.
        with contextlib.suppress(Exception):
            return all(self.peek(r, LEFT)[0] for r in range(self.world_size))
        return False


def module_loaded(module: int) -> None:
    """Copy NVSHMEM's state into a module that Triton has loaded, before its first kernel runs. Synchronises."""
    from nvshmem import bindings

    try:
        code = bindings.cumodule_init(module)
    except bindings.NVSHMEMError as error:
        code = error.status
    if code:
        raise CollectiveError(
            f"NVSHMEM could not initialise a kernel's module (status {code}): its host library is {_library()}, and "
            f"the device library in the kernel is {bitcode.find(cuda.arch_of(cuda.current_device()))}. Both must be of "
            "one release: look at LD_LIBRARY_PATH, NVSHMEM_HOME and TRICOLL_NVSHMEM_BITCODE"
        )


def _library() -> str:
    from nvshmem import core

    return str(core.get_version().libnvshmem_version)
