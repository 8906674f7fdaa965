"""Reduce: the root gets the reduction of all ranks' tensors. ``python -m tricoll.bench.reduce``."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

from tricoll.bench.collective import Collective, Part, copy, fold, reduce_op, torch_op


class Reduce(Collective):
    """Counts are of the whole tensor."""

    name, reduces, rooted = "reduce", True, True

    def tricoll(self, comm: Any, x: Tensor, out: Tensor, op: str, root: int, **options: Any) -> None:
        comm.reduce(x, root, reduce_op(op), out=None if out is x else out, **options)

    def torch(self, group: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        copy(out, x)  # it is in place only, and Gloo also writes to the other ranks' tensors
        dist.reduce(out, op=torch_op(op), group=group, group_dst=root)

    def mpi(self, mpi: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        own = mpi.in_place if out is x and mpi.rank == root else mpi.numbers(x)
        mpi.comm.Reduce(own, mpi.numbers(out) if mpi.rank == root else None, mpi.op(op), root)
        if op == "avg" and mpi.rank == root:
            out /= mpi.size

    def exact(self, part: Part, count: int, n: int, rank: int, op: str, root: int) -> Tensor | None:
        if rank != root:
            return None
        return fold([partial(part, r, 0, count) for r in range(n)], op)


COLLECTIVE = Reduce()

if __name__ == "__main__":
    from tricoll.bench.cli import main

    main(COLLECTIVE.name)
