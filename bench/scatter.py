"""Scatter: rank r gets part r of the root's tensor. ``python -m tricoll.bench.scatter``."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from tricoll.bench.collective import Collective, Part, apart


class Scatter(Collective):
    """The count is of a rank's part."""

    name, rooted = "scatter", True

    def counts(self, elements: int, n: int) -> tuple[int, int, int]:
        return elements // n, elements // n * n, elements // n

    def tricoll(self, comm: Any, x: Tensor, out: Tensor, op: str, root: int, **options: Any) -> None:
        options.pop("algo", None)  # there is one
        comm.scatter(x, root, out=out, **options)

    def torch(self, group: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        n, here = dist.get_world_size(group), dist.get_rank(group) == root
        dist.scatter(out, list(x.chunk(n)) if here and x.numel() else [x] * n if here else None, group=group,
                     group_src=root)  # fmt: skip

    def mpi(self, mpi: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        mpi.comm.Scatter(mpi.data(apart(x, out)) if mpi.rank == root else None, mpi.data(out), root)

    def exact(self, part: Part, count: int, n: int, rank: int, op: str, root: int) -> Tensor:
        return part(root, rank * count, (rank + 1) * count)


COLLECTIVE = Scatter()

if __name__ == "__main__":
    from tricoll.bench.cli import main

    main(COLLECTIVE.name)
