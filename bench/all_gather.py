"""All-gather: every rank gets all ranks' tensors, joined. ``python -m tricoll.bench.all_gather``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tricoll.bench.collective import Collective, Part, apart, single


class AllGather(Collective):
    """The count is of a rank's part."""

    name = "all_gather"

    def counts(self, elements: int, n: int) -> tuple[int, int, int]:
        return elements // n, elements // n, elements // n * n

    def tricoll(self, comm: Any, x: Tensor, out: Tensor, op: str, root: int, **options: Any) -> None:
        comm.all_gather(x, out=out, **options)

    def torch(self, group: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        single("all_gather")(out, x, group)

    def mpi(self, mpi: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        mpi.comm.Allgather(mpi.data(apart(x, out)), mpi.data(out))

    def exact(self, part: Part, count: int, n: int, rank: int, op: str, root: int) -> Tensor:
        return torch.cat([part(r, 0, count) for r in range(n)])


COLLECTIVE = AllGather()

if __name__ == "__main__":
    from tricoll.bench.cli import main

    main(COLLECTIVE.name)
