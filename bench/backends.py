"""What is measured: tricoll with one algorithm or another, what PyTorch has (gloo, nccl), and MPI."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tricoll.communicator import Communicator

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

    def sent(self) -> int:
        return int(self.comm.stats()["payload_bytes"])

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
    return Tricoll(label, torch.device("cpu"), comm, algo, wire)


def open_torch(name: str, rank: int, timeout: float) -> Torch:
    """The group of all ranks with this backend of PyTorch. Collective. Raises Unavailable on all ranks or on none."""
    within = timedelta(seconds=timeout)
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=within)  # also for barriers, whatever is measured
    if name == "gloo":
        return Torch(name, torch.device("cpu"), dist.group.WORLD)
    if name == "nccl":
        if not dist.is_nccl_available():
            raise Unavailable("this build of PyTorch has no NCCL (a CUDA build has)")
        if not torch.cuda.is_available():
            raise Unavailable("NCCL needs a CUDA GPU, and torch.cuda.is_available() is False")
        if torch.cuda.device_count() < dist.get_world_size():
            raise Unavailable(
                f"NCCL needs a GPU a rank: {torch.cuda.device_count()} GPUs, {dist.get_world_size()} ranks"
            )
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        if not dist.is_mpi_available():
            raise Unavailable(
                "this build of PyTorch has no MPI (only one that was built from source on an MPI has). The benchmarks "
                "of single collectives measure MPI without PyTorch"
            )
        device = torch.device("cpu")
    return Torch(name, device, dist.new_group(backend=name, timeout=within))


def timed(
    call: Callable[[], object],
    count: int,
    device: torch.device,
    cpu_time: bool = False,
    between: Callable[[], object] | None = None,
    graph: int = 0,
) -> float:
    """Seconds a call, of ``count`` calls.

    Args:
        cpu_time: on a GPU, do not wait until the work is done.
        between: what to do after each call, such as a barrier; None: nothing.
        graph: capture the calls in a CUDA graph and launch it so many times; 0: no graph.
    """
    cuda = device.type == "cuda"
    launch, launches = call, count
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for _ in range(count):
                call()
        launch, launches = captured.replay, graph
    if cuda:
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(launches):
        launch()
        if between is not None:
            between()
    if cuda and not cpu_time:
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / (count * (graph or 1))
