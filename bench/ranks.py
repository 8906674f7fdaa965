"""The ranks that are measured: local ones that the benchmark starts, or those that torchrun or mpirun has started."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import tricoll
from tricoll.pool import Pool

MPI = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("PMIX_RANK", "PMIX_SIZE"))


class Local:
    """Ranks on this machine, started here. This process is none of them, and prints."""

    prints = True

    def __init__(self, nprocs: int) -> None:
        self.size = nprocs
        self.pool = Pool(nprocs)

    def run(self, fn: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """``fn(comm, *args)`` on every rank; the results in rank order. ``options`` go to :func:`tricoll.init`."""
        return self.pool.run(fn, *args, **options)

    def close(self) -> None:
        self.pool.close()


class Launched:
    """This process is a rank. All of them run this program; rank 0 prints."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.size = int(os.environ["WORLD_SIZE"])
        self.prints = os.environ["RANK"] == "0"

    def run(self, fn: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """As :meth:`Local.run`; every rank gets all results."""
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        with tricoll.init(**options) as comm:
            result = fn(comm, *args)
        results: list[Any] = [None] * self.size
        dist.all_gather_object(results, result)
        tricoll.destroy()  # it was the default one
        return results

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


Ranks = Local | Launched


def progress(shown: bool) -> Progress:
    """A progress bar on standard error, where that is a screen."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not (shown and sys.stderr.isatty()))


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
