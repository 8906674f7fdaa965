"""MPI on the tensors' memory, through mpi4py: a peer when mpirun has started the ranks."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")  # one of them is set by mpirun


class Mpi:
    """All ranks' MPI communicator, and how its calls name what they work on."""

    def __init__(self, module: Any) -> None:
        self.comm, self.rank, self.size = module.COMM_WORLD, module.COMM_WORLD.rank, module.COMM_WORLD.size
        self.in_place, self._byte = module.IN_PLACE, module.BYTE
        self._ops = {"sum": module.SUM, "avg": module.SUM, "prod": module.PROD, "min": module.MIN, "max": module.MAX}

    def data(self, x: Tensor) -> list[Any]:
        """A buffer that is only moved: MPI has no names for some dtypes."""
        return [x.view(torch.uint8).numpy(), self._byte]

    def numbers(self, x: Tensor) -> Any:
        """A buffer that is reduced. Raises TypeError for what MPI cannot add, such as bfloat16."""
        if x.dtype.is_floating_point and x.dtype.itemsize < 4:
            raise TypeError(f"MPI has no {str(x.dtype).removeprefix('torch.')}")
        return x.numpy()

    def op(self, name: str) -> Any:
        """An op of nccl-tests. An average is a sum that the caller divides."""
        if name not in self._ops:
            raise TypeError(f"MPI has no {name!r}")
        return self._ops[name]


def missing(world_size: int) -> str:
    """Why MPI cannot be measured here, and what to do; "" if it can."""
    if not any(name in os.environ for name in LAUNCHED):
        return (
            "MPI's ranks are started by mpirun, not by -g or torchrun: mpirun -np 4 python -m "
            "tricoll.bench.all_reduce --backends tricoll,mpi"
        )
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        return f"needs mpi4py and the MPI library of this mpirun ({reason}): pip install 'tricoll[mpi]'"
    if MPI.COMM_WORLD.size != world_size:
        return f"there are {MPI.COMM_WORLD.size} ranks of MPI and {world_size} of tricoll"
    return ""


def start() -> Mpi:
    """MPI, which importing it starts."""
    from mpi4py import MPI

    return Mpi(MPI)
