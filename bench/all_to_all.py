"""All-to-all: rank r sends part p of its tensor to rank p. ``python -m tricoll.bench.all_to_all``."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tricoll.bench.collective import Collective, Part, apart


class AllToAll(Collective):
    """The count is of the part that goes to one rank."""

    name = "all_to_all"

    def counts(self, elements: int, n: int) -> tuple[int, int, int]:
        return elements // n, elements // n * n, elements // n * n

    def tricoll(self, comm: Any, x: Tensor, out: Tensor, op: str, root: int, **options: Any) -> None:
        options.pop("algo", None)  # there is one
        comm.all_to_all(x, out=out, **options)

    def torch(self, group: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        dist.all_to_all_single(out, x.clone() if out is x else x, group=group)  # it is out of place only

    def mpi(self, mpi: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        mpi.comm.Alltoall(mpi.data(apart(x, out)), mpi.data(out))

    def exact(self, part: Part, count: int, n: int, rank: int, op: str, root: int) -> Tensor:
        return torch.cat([part(r, rank * count, (rank + 1) * count) for r in range(n)])


COLLECTIVE = AllToAll()

if __name__ == "__main__":
    from tricoll.bench.cli import main

    main(COLLECTIVE.name)
