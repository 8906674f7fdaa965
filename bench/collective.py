"""What a collective is to the benchmark: how much it moves, how it is called, and what must come out.

Each collective is a file of its own (``all_reduce.py``, ...) with a subclass of :class:`Collective`; :func:`named`
finds it. ``python -m tricoll.bench.all_reduce`` is the same as ``tricoll bench all_reduce``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tricoll import cost
from tricoll.tensors import premul_sum

NAMES = (
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "gather", "scatter", "sendrecv",
)  # fmt: skip
OPS = ("sum", "prod", "min", "max", "avg", "mulsum")  # as nccl-tests spells them
SCALE = 2.0  # what mulsum multiplies by: exact in every dtype
Part = Callable[[int, int, int], Tensor]  # (rank, start, stop) -> elements start to stop of what that rank gives


class Collective:
    """One collective. ``x`` is what a rank gives, ``out`` what it gets: flat tensors, sizes as :meth:`counts` says."""

    name = ""
    reduces = False  # whether there is an op
    rooted = False  # whether there is a root

    def counts(self, elements: int, n: int) -> tuple[int, int, int]:
        """For a buffer of about ``elements``: nccl-tests' count (a rank's), and the elements of ``x`` and of ``out``.

        The larger of the two is the row's size.
        """
        return elements, elements, elements

    def tricoll(self, comm: Any, x: Tensor, out: Tensor, op: str, root: int, **options: Any) -> None:
        """Call tricoll. ``x`` and ``out`` may be the same, or one a part of the other: in place."""
        raise NotImplementedError

    def torch(self, group: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        """Call ``torch.distributed``: what one would write to get ``out`` from ``x``, copies included."""
        raise NotImplementedError

    def mpi(self, mpi: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        """Call MPI, through :class:`tricoll.bench.mpi.Mpi`, likewise."""
        raise NotImplementedError

    def exact(self, part: Part, count: int, n: int, rank: int, op: str, root: int) -> Tensor | None:
        """What ``out`` must be on a rank, in FP64 or INT64 if it reduces; None where nothing is written."""
        raise NotImplementedError

    def buffers(
        self, count: int, n: int, rank: int, x_numel: int, out_numel: int, **options: Any
    ) -> tuple[Tensor, ...]:
        """``x`` and ``out`` in place: the same memory, or the smaller one a rank's part of the larger."""
        whole = torch.empty(max(x_numel, out_numel), **options)
        own = whole[rank * count : (rank + 1) * count]
        return (whole if x_numel >= out_numel else own), (whole if out_numel >= x_numel else own)


def busbw_factor(collective: str, n: int) -> float:
    """:data:`tricoll.cost.BUSBW_FACTORS` by nccl-tests' names, on ``n`` ranks."""
    return cost.BUSBW_FACTORS["send_recv" if collective == "sendrecv" else collective](n)


def named(name: str) -> Collective:
    """The collective of this name, one of NAMES."""
    found: Collective = importlib.import_module(f"tricoll.bench.{name}").COLLECTIVE
    return found


def reduce_op(op: str) -> Any:
    """An op of nccl-tests as tricoll takes it."""
    return premul_sum(SCALE) if op == "mulsum" else op


def torch_op(op: str) -> Any:
    """An op of nccl-tests as torch.distributed takes it."""
    if op == "mulsum":
        return dist._make_nccl_premul_sum(SCALE)
    return getattr(dist.ReduceOp, {"prod": "PRODUCT"}.get(op, op.upper()))


def single(name: str) -> Any:
    """torch.distributed's reduce_scatter or all_gather of one tensor, which has a new name since PyTorch 2.13."""
    old = {"reduce_scatter": "reduce_scatter_tensor", "all_gather": "all_gather_into_tensor"}[name]
    return getattr(dist, f"{name}_single", None) or getattr(dist, old)


def fold(terms: list[Callable[[], Tensor]], op: str) -> Tensor:
    """The terms reduced in FP64 (integers: INT64), one at a time."""
    total: Tensor | None = None
    for term in terms:
        x = term()
        x = x.double() if x.is_floating_point() else x.long()
        if op == "mulsum":
            x = x * SCALE
        if total is None:
            total = x.clone()
        elif op == "prod":
            total *= x
        elif op in ("min", "max"):
            total = torch.minimum(total, x) if op == "min" else torch.maximum(total, x)
        else:
            total += x
    assert total is not None
    return total / len(terms) if op == "avg" else total


def apart(x: Tensor, out: Tensor) -> Tensor:
    """``x``, or a copy of it if ``out`` is in the same memory, for calls that are out of place only."""
    return x.clone() if x.untyped_storage().data_ptr() == out.untyped_storage().data_ptr() else x


def copy(out: Tensor, x: Tensor) -> None:
    """Copy, unless both are the same memory."""
    if out.data_ptr() != x.data_ptr():
        out.copy_(x)
