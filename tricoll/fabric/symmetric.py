"""This process's NVSHMEM: initialised once, with the ranks of the first communicator as its PEs, until the end.

All that NVSHMEM does with all of its PEs together happens here, and is bounded: it runs in a thread, and the caller
waits for that so long and no longer. A thread that is given up stays where it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tricoll.errors import CollectiveError, CollectiveTimeout, HeapExhausted
from tricoll.exits import after_calls

from .agree import check_same, exchange
from .arena import Arena, place, rounded

log = logging.getLogger("tricoll")

PROBE = 512  # bytes of symmetric memory by which is found who is mapped
AT_EXIT = 10.0  # seconds in which the ranks of a program that ends must have met to finalise
INITIALISED = (2, 3, 4)  # NVSHMEM_STATUS_IS_INITIALIZED, _LIMITED_MPG, _FULL_MPG
NETWORK = (
    "If its ranks cannot reach each other, name the network interface in NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME (and "
    "NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY=AF_INET); NVSHMEM_DEBUG=INFO says what it does"
)


@dataclasses.dataclass
class Slab:
    """Symmetric memory of all PEs, of which communicators have blocks."""

    address: int
    arena: Arena


@dataclasses.dataclass
class Block:
    """A communicator's part of a slab."""

    slab: int
    start: int  # in the slab
    nbytes: int


@dataclasses.dataclass
class World:
    """NVSHMEM as this process has initialised it."""

    identity: str  # the same on all of its PEs, and nowhere else
    pe: int
    n_pes: int
    device: int  # as this process numbers its GPUs
    store: Any  # in which its PEs have met
    probe: int
    slabs: list[Slab] = dataclasses.field(default_factory=list)
    closed: list[tuple[Block, Callable[[], bool]]] = dataclasses.field(default_factory=list)
    failed: bool = False  # whether a rank may be missing at the end

    def addresses(self, address: int, pes: Sequence[int]) -> list[int]:
        """Where some PEs' copies of a symmetric address are mapped here; 0 if they are not."""
        from nvshmem import bindings

        return [int(bindings.ptr(address, pe)) for pe in pes]

    def multicast(self, address: int) -> int:
        """The address that stands for all PEs' copies, 0 if there is none."""
        from nvshmem import bindings

        try:
            return int(bindings.mc_ptr(int(bindings.Team_id.TEAM_WORLD), address))
        except bindings.NVSHMEMError:
            return 0

    def offer(self) -> list[list[tuple[int, int]]]:
        """The free ranges of each slab here, to be compared with the other ranks'."""
        for block, over in list(self.closed):
            if over():
                self.slabs[block.slab].arena.give(block.start)
                self.closed.remove((block, over))
        return [slab.arena.free() for slab in self.slabs]

    def take(self, offers: Sequence[Sequence[Sequence[Sequence[int]]]], nbytes: int) -> Block | None:
        """The first place that all ranks have offered; None if there is none."""
        for i, slab in enumerate(self.slabs):
            start = place([offer[i] for offer in offers], nbytes)
            if start is not None:
                slab.arena.take(start, nbytes)
                return Block(i, start, nbytes)
        return None

    def grow(self, nbytes: int, timeout: float) -> None:
        """A new slab. All PEs must call it. HeapExhausted, on this rank only, if there is no room."""
        from nvshmem import bindings

        wanted = max(rounded(nbytes), rounded(int(os.environ.get("TRICOLL_HEAP_BYTES") or 0)))
        what = f"allocating {wanted} bytes of symmetric memory"
        address = bounded(lambda: bindings.malloc(wanted), timeout, self.device, f"PE {self.pe}: {what}")
        if not address:
            raise HeapExhausted(
                f"NVSHMEM has no {wanted} bytes of symmetric memory left. NVSHMEM_SYMMETRIC_SIZE is "
                f"{os.environ.get('NVSHMEM_SYMMETRIC_SIZE', 'not set (1 GiB)')}: raise it, or make the heap smaller: "
                "tricoll.init(slot_bytes=..., channels=...), TRICOLL_SLOT_BYTES, TRICOLL_CHANNELS, TRICOLL_HEAP_BYTES"
            )
        self.slabs.append(Slab(int(address), Arena(wanted)))


_world: World | None = None


def current() -> World | None:
    """This process's NVSHMEM, if it has been initialised for a communicator."""
    return _world


def world(store: Any, rank: int, world_size: int, device: int, timeout: float, me: Any) -> tuple[World, Any]:
    """This process's NVSHMEM, initialised if it is not yet. Collective over the ranks that have the store.

    Returns it and what each rank has said about itself: ``me``, and its ``pe``.

    Raises:
        CollectiveTimeout: ranks are missing, or NVSHMEM does not get ready.
        ValueError: these ranks' NVSHMEM does not fit together, or two of them have one GPU.
    """
    global _world
    from nvshmem import core

    version = core.get_version().libnvshmem_version  # loads the library
    if _world is None and int(core.init_status()) in INITIALISED:  # by another library
        mine: dict[str, Any] = {"identity": "another's", "pe": core.my_pe(), "n_pes": core.n_pes()}
    elif _world is None:
        mine = {"identity": None, "pe": rank, "n_pes": world_size}
    else:
        mine = {"identity": _world.identity, "pe": _world.pe, "n_pes": _world.n_pes}
    mine |= {"NVSHMEM": version, **me}
    ranks = exchange(store, rank, world_size, "join", mine, timeout)
    check_world(ranks, world_size)
    if _world is not None:
        return _world, ranks
    if mine["identity"] is None:
        identity = initialise(store, rank, world_size, device, timeout)
    else:
        identity = hashlib.sha256(repr(ranks).encode()).hexdigest()
    from nvshmem import bindings

    probe = bounded(lambda: bindings.malloc(PROBE), timeout, device, f"rank {rank}: NVSHMEM's first allocation")
    _world = World(identity, mine["pe"], mine["n_pes"], device, store, int(probe))
    after_calls(finalise)
    return _world, ranks


def check_world(ranks: Sequence[dict[str, Any]], world_size: int) -> None:
    """ValueError unless these ranks can be PEs of one NVSHMEM."""
    check_same([{"the NVSHMEM library": r["NVSHMEM"]} for r in ranks])
    places = [(r["host"], r["gpu"]) for r in ranks]
    if shared := sorted({place for place in places if places.count(place) > 1}):
        who = [r for r, place in enumerate(places) if place == shared[0]]
        raise ValueError(
            f"ranks {who} have the same GPU, {shared[0][1]} of {shared[0][0]}: start one rank a GPU with torchrun, "
            "which sets LOCAL_RANK, or call torch.cuda.set_device before tricoll.init. tricoll.loopback runs several "
            "ranks on one GPU, and fabric='host' is for CPU tensors"
        )
    identities = {r["identity"] for r in ranks}
    if len(identities) > 1:
        raise ValueError(
            "some of these ranks have initialised NVSHMEM with other ranks before, and a process does that once: make "
            "the communicator of all ranks first (tricoll.init() before tricoll.init(group))"
        )
    if identities == {"another's"} and [(r["pe"], r["n_pes"]) for r in ranks] != [
        (i, world_size) for i in range(world_size)
    ]:
        raise ValueError(
            f"another library has initialised NVSHMEM with PEs {[r['pe'] for r in ranks]} of {ranks[0]['n_pes']} for "
            f"ranks 0 to {world_size - 1}: call tricoll.init before it, or with the same ranks in the same order"
        )


def initialise(store: Any, rank: int, world_size: int, device: int, timeout: float) -> str:
    """Initialise NVSHMEM with the ranks of a store as its PEs. Returns what names it."""
    from cuda.core import Device
    from nvshmem import core

    # Rank 0's unique id has the address of a socket at which the others meet.
    uid = core.get_unique_id(empty=rank != 0)
    said = exchange(store, rank, world_size, "uid", text_of(uid) if rank == 0 else "", timeout)[0]
    fill(uid, said)

    def start() -> None:
        gpu = Device(device)
        gpu.set_current()
        core.init(device=gpu, uid=uid, rank=rank, nranks=world_size, initializer_method="uid")

    bounded(start, timeout, device, f"rank {rank}: initialising NVSHMEM with {world_size} ranks", NETWORK)
    return hashlib.sha256(said.encode()).hexdigest()


def text_of(uid: Any) -> str:
    """A unique id as text."""
    return bytes(uid._data.view(np.uint8)).hex()  # nvshmem4py's own broadcast sends these bytes, too


def fill(uid: Any, text: str) -> None:
    """Make a unique id the one that was made text."""
    data = uid._data.view(np.uint8)
    data[...] = np.frombuffer(bytes.fromhex(text), dtype=np.uint8).reshape(data.shape)


def bounded(fn: Callable[[], Any], timeout: float, device: int, what: str, hint: str = NETWORK) -> Any:
    """``fn()``, in a thread, if it returns within ``timeout`` seconds. Its error becomes a CollectiveError."""
    result: list[Any] = []

    def run() -> None:
        try:
            torch.cuda.set_device(device)
            result.append((fn(), None))
        except BaseException as error:
            result.append((None, error))

    thread = threading.Thread(target=run, daemon=True, name=f"tricoll {what}")
    thread.start()
    thread.join(timeout)
    if not result:
        raise CollectiveTimeout(
            f"{what} was not over within {timeout:g} s (tricoll.init(timeout=...) sets that): another rank is stuck in "
            f"it. {hint}"
        )
    value, error = result[0]
    if error is not None:
        raise CollectiveError(f"{what} failed: {type(error).__name__} {error}. {hint}") from error
    return value


def finalise() -> None:
    """At the end of the program: give NVSHMEM up on all PEs together, or, if some are missing, on none."""
    global _world
    ended, _world = _world, None
    if ended is None or ended.failed:
        return  # the process's end frees what it has

    def end() -> None:
        from nvshmem import bindings, core

        torch.cuda.synchronize(ended.device)
        for address in [*(slab.address for slab in ended.slabs), ended.probe]:
            bindings.free(address)
        core.finalize()

    with contextlib.suppress(Exception):  # the store's server may end with rank 0's process
        exchange(ended.store, ended.pe, ended.n_pes, "end", True, AT_EXIT)
        bounded(end, AT_EXIT, ended.device, f"PE {ended.pe}: finalising NVSHMEM")
