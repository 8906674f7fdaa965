"""Collectives for multi-GPU training, with device code in Triton.

>>> import torch, tricoll
>>> def average(comm):
...     return comm.all_reduce(torch.full((4,), float(comm.rank)), op="avg", wire="bf16").tolist()
>>> tricoll.simulate(average, 3).results[0]
[1.0, 1.0, 1.0, 1.0]
"""

from typing import Any

import torch

from . import ddp, world
from .communicator import Communicator
from .errors import (
    CollectiveError,
    CollectiveMismatch,
    CollectiveTimeout,
    HeapExhausted,
    MemoryModelViolation,
    PeerFailure,
)
from .fabric.base import LinkProfile
from .fabric.sim import Simulation
from .pool import launch
from .world import destroy, init, simulate

__version__ = "0.1.0"
__all__ = [
    "CollectiveError",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "Communicator",
    "HeapExhausted",
    "LinkProfile",
    "MemoryModelViolation",
    "PeerFailure",
    "Simulation",
    "all_gather",
    "all_reduce",
    "ddp",
    "destroy",
    "init",
    "launch",
    "reduce_scatter",
    "simulate",
]


def all_reduce(x: torch.Tensor, op: Any = "sum", **options: Any) -> torch.Tensor:
    """:meth:`Communicator.all_reduce` on the default communicator."""
    return world.default().all_reduce(x, op, **options)


def reduce_scatter(x: torch.Tensor, op: Any = "sum", **options: Any) -> torch.Tensor:
    """:meth:`Communicator.reduce_scatter` on the default communicator."""
    return world.default().reduce_scatter(x, op, **options)


def all_gather(x: torch.Tensor, **options: Any) -> torch.Tensor:
    """:meth:`Communicator.all_gather` on the default communicator."""
    return world.default().all_gather(x, **options)
