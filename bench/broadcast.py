"""Broadcast: every rank gets the root's tensor. ``python -m tricoll.bench.broadcast``."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from tricoll.bench.collective import Collective, Part, copy


class Broadcast(Collective):
    """Counts are of the whole tensor."""

    name, rooted = "broadcast", True

    def tricoll(self, comm: Any, x: Tensor, out: Tensor, op: str, root: int, **options: Any) -> None:
        comm.broadcast(x, root, out=None if out is x else out, **options)

    def torch(self, group: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        if dist.get_rank(group) == root:
            copy(out, x)  # it is in place only
        dist.broadcast(out, group=group, group_src=root)

    def mpi(self, mpi: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        if mpi.rank == root:
            copy(out, x)  # it is in place only
        mpi.comm.Bcast(mpi.data(out), root)

    def exact(self, part: Part, count: int, n: int, rank: int, op: str, root: int) -> Tensor:
        return part(root, 0, count)


COLLECTIVE = Broadcast()

if __name__ == "__main__":
    from tricoll.bench.cli import main

    main(COLLECTIVE.name)
