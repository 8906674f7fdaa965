"""The collectives of a backend as probes call them: of ``torch.distributed``, or tricoll's own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .. import world


class Unavailable(Exception):
    """The backend cannot be asked here; the text says why."""


class Api:
    """The collectives of a backend, on one rank. Tensors lie on ``device``; without ``out``, they work in place."""

    rank: int
    size: int
    device: torch.device

    def all_reduce(self, x: Tensor, op: str = "sum", reproducible: bool = False) -> None:
        """``reproducible``: with whatever the backend offers to make bits independent of the size."""
        raise NotImplementedError

    def reduce_scatter(self, out: Tensor, x: Tensor, op: str = "sum") -> None:
        raise NotImplementedError

    def all_gather(self, out: Tensor, x: Tensor) -> None:
        raise NotImplementedError

    def broadcast(self, x: Tensor, root: int = 0) -> None:
        raise NotImplementedError


class Distributed(Api):
    """A backend of ``torch.distributed``."""

    def __init__(self, name: str, store: dist.Store, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size, self.device = rank, size, torch.device("cpu")
        if name == "nccl":
            self.device = torch.device("cuda", rank)
            torch.cuda.set_device(self.device)
        within = timedelta(seconds=timeout)
        dist.init_process_group(name, timeout=within, world_size=size, rank=rank, store=store)

    def all_reduce(self, x: Tensor, op: str = "sum", reproducible: bool = False) -> None:
        dist.all_reduce(x, _op(op))
        self._finish()

    def reduce_scatter(self, out: Tensor, x: Tensor, op: str = "sum") -> None:
        new = getattr(dist, "reduce_scatter_single", None)  # its name since PyTorch 2.13
        (new or dist.reduce_scatter_tensor)(out, x, _op(op))
        self._finish()

    def all_gather(self, out: Tensor, x: Tensor) -> None:
        new = getattr(dist, "all_gather_single", None)
        (new or dist.all_gather_into_tensor)(out, x)
        self._finish()

    def broadcast(self, x: Tensor, root: int = 0) -> None:
        dist.broadcast(x, root)
        self._finish()

    def _finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


class Tricoll(Api):
    """A tricoll communicator, without ``torch.distributed``."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size, self.device = rank, size, torch.device("cpu")
        self.comm = world.connect(store, rank, size, timeout=timeout)

    def all_reduce(self, x: Tensor, op: str = "sum", reproducible: bool = False) -> None:
        self.comm.all_reduce(x, op, algo="two_shot" if reproducible else "auto")

    def reduce_scatter(self, out: Tensor, x: Tensor, op: str = "sum") -> None:
        self.comm.reduce_scatter(x, op, out=out)

    def all_gather(self, out: Tensor, x: Tensor) -> None:
        self.comm.all_gather(x, out=out)

    def broadcast(self, x: Tensor, root: int = 0) -> None:
        self.comm.broadcast(x, root)


def _op(op: str) -> Any:
    return getattr(dist.ReduceOp, {"prod": "PRODUCT"}.get(op, op.upper()))


def connect(backend: str, store: dist.Store, rank: int, size: int, timeout: float) -> Api:
    """The backend, on this rank. tricoll is asked as a communicator, not as a backend of PyTorch."""
    return (
        Tricoll(store, rank, size, timeout)
        if backend == "tricoll"
        else Distributed(backend, store, rank, size, timeout)
    )


def check_available(backend: str, ranks: int) -> None:
    """Raise Unavailable, with the reason, if this backend cannot be asked on this machine."""
    known = dict.fromkeys(["tricoll", *dist.Backend.backend_list])  # where tricoll is already, once it is imported
    if backend not in known or backend == "undefined":
        raise Unavailable(
            f"there is no backend {backend!r}; there are {', '.join(b for b in known if b != 'undefined')}"
        )
    if backend == "nccl" and (not dist.is_nccl_available() or torch.cuda.device_count() < ranks):
        raise Unavailable(
            f"NCCL needs a CUDA build of PyTorch and a GPU a rank: {torch.cuda.device_count()} GPUs, {ranks} ranks"
        )
    if backend == "mpi":
        raise Unavailable(
            "verify starts and ends its ranks itself, and an MPI's are started and ended by mpirun. Its results are "
            "checked, and its times measured, by: mpirun -np 4 python -m tricoll.bench.all_reduce --backends mpi"
        )
    if backend == "ucc" and not dist.is_ucc_available():
        raise Unavailable("this build of PyTorch has no UCC")
