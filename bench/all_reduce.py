"""All-reduce: every rank gets the reduction of all ranks' tensors. ``python -m tricoll.bench.all_reduce``."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

from tricoll.bench.collective import Collective, Part, copy, fold, reduce_op, torch_op


class AllReduce(Collective):
    """Counts are of the whole tensor, which all ranks have."""

    name, reduces = "all_reduce", True

    def tricoll(self, comm: Any, x: Tensor, out: Tensor, op: str, root: int, **options: Any) -> None:
        comm.all_reduce(x, reduce_op(op), out=None if out is x else out, **options)

    def torch(self, group: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        copy(out, x)  # it is in place only
        dist.all_reduce(out, torch_op(op), group)

    def mpi(self, mpi: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        mpi.comm.Allreduce(mpi.in_place if out is x else mpi.numbers(x), mpi.numbers(out), mpi.op(op))
        if op == "avg":
            out /= mpi.size

    def exact(self, part: Part, count: int, n: int, rank: int, op: str, root: int) -> Tensor:
        return fold([partial(part, r, 0, count) for r in range(n)], op)


COLLECTIVE = AllReduce()

if __name__ == "__main__":
    from tricoll.bench.cli import main

    main(COLLECTIVE.name)
