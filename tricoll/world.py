"""Ways to get a communicator: from ``torch.distributed``, from the environment, or simulated."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from . import cost, tuned
from .communicator import Communicator
from .cost.machines import LinkProfile
from .dispatch import Settings
from .errors import CollectiveError, CollectiveTimeout
from .fabric import loopback as one_gpu
from .fabric import nvshmem, sim
from .fabric.agree import exchange
from .fabric.base import Fabric
from .fabric.host import HostFabric
from .settings import CPU, settings_for

_default: Communicator | None = None
_epochs: dict[str, int] = {}  # communicators made so far in this process, by their group
FABRICS = ("auto", "host", "openshmem", "nvshmem")


def init(
    group: dist.ProcessGroup | None = None,
    fabric: str = "auto",
    timeout: float = 30.0,
    *,
    check: bool | None = None,
    link: str = "auto",
    channels: int | None = None,
    slots: int | None = None,
    slot_bytes: int | None = None,
    window: int | None = None,
    block: int | None = None,
    node_size: int | None = None,
    reproducible: bool | None = None,
    profile: cost.Profile | str | Path | None = None,
    tiles: str | None = None,
) -> Communicator:
    """Make a communicator. Collective: every rank of the group must call it. The first becomes the default, until it is
    destroyed.

    Args:
        group: a ``torch.distributed`` group. None: the default group if there is one, else RANK, WORLD_SIZE,
            MASTER_ADDR and MASTER_PORT (as ``torchrun`` sets them), else the PEs of an OpenSHMEM program, else a world
            of one.
        fabric: "host" (processes of this machine, shared memory), "openshmem" (processes that ``oshrun`` has started,
            on one host or several), "nvshmem" (one process a GPU, for CUDA tensors), or "auto": "openshmem" if
            OMPI_COMM_WORLD_SIZE is set (by ``oshrun`` and ``mpirun``), RANK is not and ``torch.distributed`` is not
            initialised; "nvshmem" if every rank has a GPU and what it takes (``tricoll doctor`` says); else "host".
        timeout: seconds that a rank waits for others, here and in every collective.
        check: compare the call with the other ranks' before each collective. Without it, calls that differ are still
            found, by the fingerprints on the links, but the output may have been written to by then. None: on CPUs. On
            GPUs each comparison holds the caller up, as no other call does, and is for debugging.
        link: "mapped" (write into the peer's memory) or "put" (stage and put-with-signal). "auto": TRICOLL_LINK, else
            mapped on "host", put on "openshmem", and on "nvshmem" mapped where all ranks are.
        channels: independent shares of a call's data, a program each. This and the next four shape the links,
            for experts and tests; None: TRICOLL_CHANNELS and so on, else what suits the fabric.
        slots: messages that a link can hold. Heap a rank: channels x slots x slot_bytes, twice that on put links.
        slot_bytes: of the largest message.
        window: pieces that go round at the same time; fewer than slots.
        block: elements a pass of the bulk loops.
        node_size: ranks a node, for algo="hierarchical"; ranks 0 to node_size - 1 are one node, and so on. None:
            TRICOLL_NODE_SIZE, else, with "nvshmem", as many as the hosts say, else 0: all ranks are in one.
        reproducible: choose only algorithms whose bits depend on the ranks' values alone, whatever the size and place
            of an element: one_shot and two_shot. None: TRICOLL_REPRODUCIBLE (0 or 1), else no.
        profile: the machine's constants, by which algo="auto" chooses: a built-in name ("host", "nvlink", ...) or a
            file, see :mod:`tricoll.cost`. None: TRICOLL_PROFILE, else what ``tricoll tune`` has stored for this
            machine, else "host"; on GPUs "nvlink" or "nic-400g".
        tiles: how the bulk loops run on a CPU: "torch", or "triton" to interpret them. None: TRICOLL_TILES, else torch.

    Returns:
        This rank's communicator.

    Raises:
        CollectiveTimeout: ranks are missing; it says which.
        HeapExhausted: shared memory is too small; it says what is needed, what there is, and what to set.
        ValueError: a setting is wrong, or "auto" is not the same on all ranks.
    """
    global _default
    if fabric == "auto" and group is None and _among_pes():
        fabric = "openshmem"
    store, rank, world_size, name = _rendezvous(group, fabric, timeout)
    _epochs[name] = epoch = _epochs.get(name, 0) + 1
    communicator = connect(
        dist.PrefixStore(f"tricoll/{name}/{epoch}", store),
        rank,
        world_size,
        fabric,
        timeout,
        check=check,
        link=link,
        channels=channels,
        slots=slots,
        slot_bytes=slot_bytes,
        window=window,
        block=block,
        node_size=node_size,
        reproducible=reproducible,
        profile=profile,
        tiles=tiles,
    )
    if _default is None or _default.destroyed:
        _default = communicator
    return communicator


def connect(
    store: dist.Store,
    rank: int,
    world_size: int,
    fabric: str = "host",
    timeout: float = 30.0,
    check: bool | None = None,
    tiles: str | None = None,
    profile: cost.Profile | str | Path | None = None,
    **settings: Any,
) -> Communicator:
    """Make a communicator of ranks that share a store (with a prefix that nobody else uses). See :func:`init`."""
    if fabric not in FABRICS:
        raise ValueError(f"fabric is {fabric!r}; it can be one of {FABRICS} (for 'sim', use tricoll.simulate)")
    if not timeout > 0:
        raise ValueError(f"timeout is {timeout}; it must be more than 0 seconds")
    if fabric == "auto":
        here = nvshmem.lacking(int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
        fabric = suits(exchange(store, rank, world_size, "auto", here, timeout))
    # Before anybody is waited for; on GPUs it depends on what they are.
    chosen = None if fabric == "nvshmem" else settings_for(**settings, base=replace(CPU, mapped=fabric != "openshmem"))
    below = _fabric(fabric, store, rank, world_size, timeout, tiles)
    try:
        chosen = chosen or settings_for(**settings, base=_base(below))
        on_gpu = below.device.type == "cuda"
        constants = _constants(profile, below.name, world_size, chosen, default_profile(chosen) if on_gpu else "host")
        return Communicator(below, chosen, timeout, not on_gpu if check is None else check, constants)
    except BaseException:
        below.close()
        raise


def _fabric(name: str, store: dist.Store, rank: int, world_size: int, timeout: float, tiles: str | None) -> Fabric:
    """One rank of a fabric; modules of those that need something installed are imported when they are asked for."""
    if name == "openshmem":
        from .fabric import pes
        from .fabric.openshmem import OpenshmemFabric

        return OpenshmemFabric(pes.join(timeout), rank, world_size, timeout, tiles)
    if name == "nvshmem":
        return nvshmem.NvshmemFabric(store, rank, world_size, timeout)
    return HostFabric(store, rank, world_size, timeout, tiles)


def suits(reasons: Sequence[str | None]) -> str:
    """What "auto" is: "nvshmem" where all ranks can use it, "host" where none can. ValueError if only some can.

    Args:
        reasons: why it cannot be used on rank 0, 1, ..., or None.
    """
    without = {r: reason for r, reason in enumerate(reasons) if reason}
    if without and len(without) < len(reasons):
        raise ValueError(
            "fabric='auto': some ranks could use nvshmem, others not: "
            + "; ".join(f"rank {r}: {reason}" for r, reason in without.items())
            + ". Mend that, or say which fabric: tricoll.init(fabric='host') is for CPU tensors"
        )
    return "host" if without else "nvshmem"


def _among_pes() -> bool:
    """Whether an OpenSHMEM launcher has started this process, and nobody says that other ranks are wanted."""
    return "OMPI_COMM_WORLD_SIZE" in os.environ and "RANK" not in os.environ and not dist.is_initialized()


def _base(fabric: Fabric) -> Settings:
    """The shape of the links where nobody says another."""
    return fabric.settings() if isinstance(fabric, nvshmem.NvshmemFabric) else CPU


def default_profile(settings: Settings) -> str:
    """The built-in constants for GPUs with such links."""
    return "nvlink" if settings.mapped else "nic-400g"


def _constants(
    profile: cost.Profile | str | Path | None, fabric: str, world_size: int, settings: Settings, default: str
) -> cost.Profile:
    """The machine's constants: those given, else the environment's, else what has been measured, else a guess."""
    constants = profile or os.environ.get("TRICOLL_PROFILE")
    if constants is None:
        constants = tuned.find(tuned.target(fabric, world_size, settings)) or default
    return constants if isinstance(constants, cost.Profile) else cost.load_profile(constants)


def _rendezvous(group: dist.ProcessGroup | None, fabric: str, timeout: float) -> tuple[dist.Store, int, int, str]:
    if dist.is_initialized():
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        if dist.get_rank() not in members:
            raise ValueError(f"rank {dist.get_rank()} is not in the group {members}")
        store = dist.distributed_c10d._get_default_store()
        return store, members.index(dist.get_rank()), len(members), "-".join(map(str, members))
    if group is not None:
        raise ValueError("a group was given, but torch.distributed is not initialised")
    if fabric == "openshmem":
        from .fabric import pes

        library = pes.join(timeout).library
        return dist.HashStore(), library.pe, library.pes, "PEs"  # they meet in their memory and need no store
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        return dist.HashStore(), 0, 1, "alone"
    missing = [v for v in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if v not in os.environ]
    if missing:
        raise ValueError(
            f"environment variables {missing} are not set: start the ranks with torchrun or tricoll.launch"
        )
    try:
        store, rank, world_size = next(dist.rendezvous("env://", timeout=timedelta(seconds=timeout)))
    except dist.DistError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise CollectiveTimeout(f"rank {os.environ['RANK']}: the ranks did not meet at {where} ({error})") from error
    return store, rank, world_size, "env"


def default() -> Communicator:
    """The communicator that ``tricoll.all_reduce`` and its like use."""
    if _default is None:
        raise CollectiveError("there is no communicator yet: call tricoll.init() first")
    return _default


def destroy() -> None:
    """Destroy the default communicator; the next :func:`init` makes a new one."""
    global _default
    if _default is not None:
        _default.destroy()
        _default = None


def simulate(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    seed: int = 0,
    profile: LinkProfile | Mapping[str, LinkProfile] | None = None,
    delivery: str = "adversarial",
    node_size: int | None = None,
    tiles: str | None = None,
    check: bool = False,
    **settings: Any,
) -> sim.Simulation:
    """Run ``fn(comm, *args)`` on every rank of a simulated world, all in this process.

    Args:
        fn: called once a rank, with the rank's communicator.
        world_size: the number of ranks.
        *args: what ``fn`` is given besides.
        seed: of the scheduler. The same seed gives the same interleaving.
        profile: latency and bandwidth of the links, or {"intra": ..., "inter": ...} for those in and between nodes.
        delivery: "adversarial" delivers puts as late and out of order as the memory model allows; "prompt" at once.
        node_size: ranks a node; None: all ranks are in one.
        tiles: "torch" or "triton", see TRICOLL_TILES.
        check: as in :func:`init`, off here so that the link protocol is on its own.
        **settings: link, channels, slots, slot_bytes, window and block, as in :func:`init`.

    Returns:
        The results and statistics of each rank, the virtual time in seconds, and the trace.

    Raises:
        Exception: what ``fn`` raised. Its ``trace`` has what happened up to then, see :mod:`tricoll.trace`.
        CollectiveTimeout: a deadlock; it says who waits for whom.
    """
    chosen = settings_for(node_size=node_size, **settings)
    links = profile if isinstance(profile, Mapping) else {"intra": profile or LinkProfile()}
    constants = cost.two_levels(links["intra"], links.get("inter", links["intra"]), "sim")
    return sim.simulate(
        fn,
        world_size,
        *args,
        connect=lambda fabric: Communicator(fabric, chosen, 30.0, check, constants),
        seed=seed,
        profile=profile,
        delivery=delivery,
        node_size=node_size,
        tiles=tiles,
    )


def loopback(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout: float = 30.0,
    check: bool = False,
    profile: cost.Profile | str | Path = "nvlink",
    **settings: Any,
) -> list[Any]:
    """Run ``fn(comm, *args)`` on every rank of a world that is all on the current GPU, a thread and a stream a rank.

    For tests of the compiled kernels and for measuring them where there is one GPU: links are mapped, and as fast as
    its memory.

    Args:
        fn: called once a rank, with the rank's communicator. Its tensors are on that GPU.
        world_size: the number of ranks.
        *args: what ``fn`` is given besides.
        timeout: seconds that a rank waits for others, as in :func:`init`.
        check: as in :func:`init`, off here.
        profile: as in :func:`init`.
        **settings: as in :func:`init`. ``channels`` is by default as many as fit on the GPU, at most 16.

    Returns:
        What ``fn`` returned on each rank, in rank order.

    Raises:
        Exception: what ``fn`` raised.
        ValueError: the kernels of all ranks do not fit on the GPU at once.
        CollectiveError: there is no GPU.
    """
    below = one_gpu.Gpu()
    chosen = settings_for(**settings, base=one_gpu.settings(world_size, below))
    constants = profile if isinstance(profile, cost.Profile) else cost.load_profile(profile)
    return one_gpu.run(
        fn, world_size, args, timeout, lambda fabric: Communicator(fabric, chosen, timeout, check, constants), below
    )
