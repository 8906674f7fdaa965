"""Reduce-scatter: rank r gets part r of the reduction. ``python -m tricoll.bench.reduce_scatter``."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from tricoll.bench.collective import Collective, Part, apart, fold, reduce_op, single, torch_op


class ReduceScatter(Collective):
    """The count is of a rank's part."""

    name, reduces = "reduce_scatter", True

    def counts(self, elements: int, n: int) -> tuple[int, int, int]:
        return elements // n, elements // n * n, elements // n

    def tricoll(self, comm: Any, x: Tensor, out: Tensor, op: str, root: int, **options: Any) -> None:
        comm.reduce_scatter(x, reduce_op(op), out=out, **options)

    def torch(self, group: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        single("reduce_scatter")(out, x, torch_op(op), group)

    def mpi(self, mpi: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        mpi.comm.Reduce_scatter_block(mpi.numbers(apart(x, out)), mpi.numbers(out), mpi.op(op))
        if op == "avg":
            out /= mpi.size

    def exact(self, part: Part, count: int, n: int, rank: int, op: str, root: int) -> Tensor:
        return fold([partial(part, r, rank * count, (rank + 1) * count) for r in range(n)], op)


COLLECTIVE = ReduceScatter()

if __name__ == "__main__":
    from tricoll.bench.cli import main

    main(COLLECTIVE.name)
