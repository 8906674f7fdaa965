"""The ranks that a command measures: local ones that it starts, or those that torchrun or mpirun has started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from . import world
from .fabric import nvshmem
from .pool import Pool

MPI = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("PMIX_RANK", "PMIX_SIZE"))


class Local:
    """Ranks on this machine, started here. This process is none of them, and prints."""

    prints = first_here = True

    def __init__(self, nprocs: int) -> None:
        self.size = nprocs
        self.pool = Pool(nprocs)

    def fabric(self, name: str) -> str:
        """The fabric for ``name``; "auto" is "host". Raises ValueError, with what to do, if it cannot be used."""
        if name == "nvshmem" and (reason := nvshmem.lacking(self.size)):
            raise ValueError(_cannot(reason))
        return name

    def run(self, fn: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """``fn(comm, *args)`` on every rank; the results in rank order. ``options`` go to :func:`tricoll.init`."""
        return self.pool.run(fn, *args, **options)

    def share(self, value: Any) -> Any:
        """What the process that prints has given: ``value`` itself, here."""
        return value

    def close(self) -> None:
        """End them."""
        self.pool.close()


class Launched:
    """This process is a rank. All of them run this program and make the same calls here; rank 0 prints."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.size = int(os.environ["WORLD_SIZE"])
        self.prints = os.environ["RANK"] == "0"
        self.first_here = os.environ.get("LOCAL_RANK", os.environ["RANK"]) == "0"  # of the ranks of its host
        if not dist.is_initialized():
            dist.init_process_group("gloo")

    def fabric(self, name: str) -> str:
        """As :meth:`Local.fabric`, but "auto" is what :func:`tricoll.init` takes."""
        if name not in ("auto", "nvshmem"):
            return name
        reasons = self._gather(nvshmem.lacking(int(os.environ.get("LOCAL_WORLD_SIZE", self.size))))
        if name == "auto":
            return world.suits(reasons)
        if lacking := next((f"rank {rank}: {reason}" for rank, reason in enumerate(reasons) if reason), ""):
            raise ValueError(_cannot(lacking))
        return name

    def run(self, fn: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """As :meth:`Local.run`; every rank gets all results."""
        with world.init(**options) as comm:
            result = fn(comm, *args)
        results = self._gather(result)
        world.destroy()  # it was the default one
        return results

    def share(self, value: Any) -> Any:
        """What rank 0 has given, on every rank."""
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]

    def _gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def close(self) -> None:
        """Leave the group that they have made."""
        if dist.is_initialized():
            dist.destroy_process_group()


Ranks = Local | Launched


@contextlib.contextmanager
def started(nprocs: int) -> Iterator[Ranks]:
    """Those that torchrun or mpirun has started, else ``nprocs`` local ones."""
    ranks = Launched() if launched() else Local(nprocs)
    try:
        yield ranks
    finally:
        ranks.close()


def launched() -> int:
    """How many ranks torchrun or mpirun has started; 0 if this process is on its own.

    mpirun sets neither torch's variables nor, on one machine, says where to meet: this does.
    """
    for rank, size in MPI:
        if "RANK" not in os.environ and rank in os.environ and size in os.environ:
            os.environ.update(RANK=os.environ[rank], WORLD_SIZE=os.environ[size])
            os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            os.environ.setdefault("MASTER_PORT", "29500")
    return int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ and "WORLD_SIZE" in os.environ else 0


def _cannot(reason: str) -> str:
    return (
        f"fabric nvshmem cannot be used here: {reason}. It takes a GPU a rank, a CUDA build of PyTorch, and NVSHMEM "
        '(pip install "tricoll[cu13]"): tricoll doctor says what is missing. --fabric host measures processes on CPUs'
    )
