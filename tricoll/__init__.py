"""Collectives for multi-GPU training, with device code in Triton.

>>> import torch, tricoll
>>> def average(comm):
...     return comm.all_reduce(torch.full((4,), float(comm.rank)), op="avg", wire="bf16").tolist()
>>> tricoll.simulate(average, 3).results[0]
[1.0, 1.0, 1.0, 1.0]
"""

from typing import Any

import torch

from . import backend, ddp, fsdp, ops, world
from .communicator import Communicator
from .cost.machines import LinkProfile
from .errors import (
    CollectiveError,
    CollectiveMismatch,
    CollectiveTimeout,
    HeapExhausted,
    MemoryModelViolation,
    PeerFailure,
)
from .fabric.sim import Simulation
from .pool import launch
from .tensors import premul_sum
from .work import Work
from .world import destroy, init, loopback, simulate

backend.register()

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
    "Work",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "ddp",
    "destroy",
    "fsdp",
    "gather",
    "init",
    "launch",
    "loopback",
    "ops",
    "premul_sum",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "simulate",
]


def all_reduce(x: torch.Tensor, op: Any = "sum", **options: Any) -> Any:
    """:meth:`Communicator.all_reduce` on the default communicator."""
    return world.default().all_reduce(x, op, **options)


def reduce_scatter(x: torch.Tensor, op: Any = "sum", **options: Any) -> Any:
    """:meth:`Communicator.reduce_scatter` on the default communicator, with ``op`` as for :func:`all_reduce`."""
    return world.default().reduce_scatter(x, op, **options)


def all_gather(x: torch.Tensor, **options: Any) -> Any:
    """:meth:`Communicator.all_gather` on the default communicator."""
    return world.default().all_gather(x, **options)


def reduce(x: torch.Tensor, root: int = 0, op: Any = "sum", **options: Any) -> Any:
    """:meth:`Communicator.reduce` on the default communicator, with ``op`` as for :func:`all_reduce`."""
    return world.default().reduce(x, root, op, **options)


def broadcast(x: torch.Tensor, root: int = 0, **options: Any) -> Any:
    """:meth:`Communicator.broadcast` on the default communicator."""
    return world.default().broadcast(x, root, **options)


def gather(x: torch.Tensor, root: int = 0, **options: Any) -> Any:
    """:meth:`Communicator.gather` on the default communicator."""
    return world.default().gather(x, root, **options)


def scatter(x: torch.Tensor | None, root: int = 0, **options: Any) -> Any:
    """:meth:`Communicator.scatter` on the default communicator."""
    return world.default().scatter(x, root, **options)


def all_to_all(x: torch.Tensor, **options: Any) -> Any:
    """:meth:`Communicator.all_to_all` on the default communicator."""
    return world.default().all_to_all(x, **options)


def send(x: torch.Tensor, to: int, **options: Any) -> Any:
    """:meth:`Communicator.send` on the default communicator."""
    return world.default().send(x, to, **options)


def recv(x: torch.Tensor, source: int, **options: Any) -> Any:
    """:meth:`Communicator.recv` on the default communicator."""
    return world.default().recv(x, source, **options)


def barrier(**options: Any) -> Any:
    """:meth:`Communicator.barrier` on the default communicator."""
    return world.default().barrier(**options)
