"""Gather: the root gets all ranks' tensors, joined. ``python -m tricoll.bench.gather``."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tricoll.bench.collective import Collective, Part, apart


class Gather(Collective):
    """The count is of a rank's part."""

    name, rooted = "gather", True

    def counts(self, elements: int, n: int) -> tuple[int, int, int]:
        return elements // n, elements // n, elements // n * n

    def tricoll(self, comm: Any, x: Tensor, out: Tensor, op: str, root: int, **options: Any) -> None:
        options.pop("algo", None)  # there is one
        comm.gather(x, root, out=out if comm.rank == root else None, **options)

    def torch(self, group: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        n, here = dist.get_world_size(group), dist.get_rank(group) == root
        dist.gather(x, list(out.chunk(n)) if here and out.numel() else [out] * n if here else None, group=group,
                    group_dst=root)  # fmt: skip

    def mpi(self, mpi: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        mpi.comm.Gather(mpi.data(apart(x, out)), mpi.data(out) if mpi.rank == root else None, root)

    def exact(self, part: Part, count: int, n: int, rank: int, op: str, root: int) -> Tensor | None:
        return torch.cat([part(r, 0, count) for r in range(n)]) if rank == root else None


COLLECTIVE = Gather()

if __name__ == "__main__":
    from tricoll.bench.cli import main

    main(COLLECTIVE.name)
