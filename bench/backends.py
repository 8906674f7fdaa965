"""What is measured: tricoll with one algorithm or another, what PyTorch has (gloo, nccl), and MPI."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tricoll.communicator import Communicator
from tricoll.fabric.gpus import choose_device

from . import mpi
from .collective import Collective, reduce_op

NAMES = ("tricoll", "gloo", "nccl", "mpi")
Call = Callable[[], None]


class Unavailable(Exception):
    """A backend cannot be measured here; the text says why."""


@dataclass
class Backend:
    """One thing that is measured. ``label`` is how it is called in tables."""

    label: str
    device: torch.device

    def call(self, collective: Collective, x: Tensor, out: Tensor, op: str, root: int) -> Call:
        """What is timed."""
        raise NotImplementedError

    def sent(self) -> int | None:
        """Bytes of payload that this rank has sent so far; None if nobody counts."""
        return None

    def finish(self) -> None:
        """Wait for what has been called, and raise what went wrong in it."""

    def choice(self, collective: Collective, x: Tensor, op: str, root: int) -> str | None:
        """The algorithm that the dispatcher takes for this call; None if there is no saying."""
        return None


@dataclass
class Tricoll(Backend):
    """A tricoll communicator, with its options for every call."""

    comm: Communicator
    algo: str = "auto"
    wire: torch.dtype | None = None

    def call(self, collective: Collective, x: Tensor, out: Tensor, op: str, root: int) -> Call:
        options = {"algo": self.algo, "wire": self.wire}
        return lambda: collective.tricoll(self.comm, x, out, op, root, **options)

    def sent(self) -> int | None:
        return sent(self.comm)

    def finish(self) -> None:
        if self.device.type == "cuda":  # where calls only enqueue, and errors come later
            self.comm.barrier()

    def choice(self, collective: Collective, x: Tensor, op: str, root: int) -> str | None:
        if collective.name == "all_gather":
            request = self.comm.request(lambda p: p.all_gather(x, None, self.wire, "auto"))
        elif collective.name == "broadcast":
            request = self.comm.request(lambda p: p.broadcast(x, root, None, self.wire, "auto"))
        elif collective.reduces:
            operator = reduce_op(op)
            request = self.comm.request(
                lambda p: p.reduction(collective.name, x, operator, None, self.wire, "auto", root)
            )
        else:
            return None
        return str(request.call.plan.algorithm)


@dataclass
class Torch(Backend):
    """A ``torch.distributed`` process group."""

    group: Any

    def call(self, collective: Collective, x: Tensor, out: Tensor, op: str, root: int) -> Call:
        return lambda: collective.torch(self.group, x, out, op, root)


@dataclass
class OverMpi(Backend):
    """MPI, without PyTorch between."""

    mpi: mpi.Mpi

    def call(self, collective: Collective, x: Tensor, out: Tensor, op: str, root: int) -> Call:
        return lambda: collective.mpi(self.mpi, x, out, op, root)


def open_mpi(world_size: int) -> OverMpi:
    """MPI's group of all ranks. Raises Unavailable on all ranks or on none."""
    if reason := mpi.missing(world_size):
        raise Unavailable(reason)
    return OverMpi("mpi", torch.device("cpu"), mpi.start())


def open_tricoll(comm: Communicator, algo: str, wire: torch.dtype | None) -> Tricoll:
    """``comm`` with an algorithm and a wire dtype; None: the tensors' own."""
    label = "tricoll" if algo == "auto" else f"tricoll:{algo}"
    if wire is not None:
        label += f"/{str(wire).removeprefix('torch.')}"
    return Tricoll(label, comm._fabric.device, comm, algo, wire)


def sent(comm: Communicator) -> int | None:
    """Bytes of payload that this rank has sent so far; None on GPUs, whose kernels do not count."""
    return None if comm._fabric.device.type == "cuda" else int(comm.stats()["payload_bytes"])


def open_torch(name: str, timeout: float) -> Torch:
    """The group of all ranks with this backend of PyTorch. Collective. Raises Unavailable on all ranks or on none."""
    within = timedelta(seconds=timeout)
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=within)  # also for barriers, whatever is measured
    if name == "gloo":
        return Torch(name, torch.device("cpu"), dist.group.WORLD)
    if name == "nccl":
        return Torch(name, _gpu_for_nccl(), _group(name, within))
    if not dist.is_mpi_available():
        raise Unavailable(
            "this build of PyTorch has no MPI (only one that was built from source on an MPI has). The benchmarks "
            "of single collectives measure MPI without PyTorch"
        )
    return Torch(name, torch.device("cpu"), _group(name, within))


def _gpu_for_nccl() -> torch.device:
    """This rank's GPU: the one that tricoll's fabric has taken, if it is on GPUs, too."""
    if not dist.is_nccl_available():
        raise Unavailable("this build of PyTorch has no NCCL (a CUDA build has)")
    if not torch.cuda.is_available():
        raise Unavailable("NCCL needs a CUDA GPU, and torch.cuda.is_available() is False")
    gpus, here = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    if gpus < here:
        raise Unavailable(f"NCCL needs a GPU a rank: {gpus} GPUs, {here} ranks on this host")
    index = choose_device(os.environ, gpus, torch.cuda.current_device())
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


_groups: dict[str, tuple[Any, Any]] = {}  # by backend: the world that a group was made in, and the group


def _group(name: str, within: timedelta) -> Any:
    """All ranks with another backend than the world's: made once, since NCCL keeps memory for each."""
    there, group = _groups.get(name, (None, None))
    if there is not dist.group.WORLD:
        group = dist.new_group(backend=name, timeout=within)
        _groups[name] = dist.group.WORLD, group
    return group
