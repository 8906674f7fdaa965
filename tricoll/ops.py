"""Collectives as functions of tensors: differentiable, and without a graph break under ``torch.compile``.

::

    y = tricoll.ops.all_reduce(x, "avg", wire="bf16")

Each returns a new tensor and leaves its input alone. ``comm`` is the communicator; None is the default one. They are
operators of PyTorch (``torch.ops.tricoll``), with shapes for tracing and formulas for gradients.

**Gradients** are those of the sum of all ranks' losses: what a rank's input does to the outputs of all ranks counts. So
the gradient of a sum over ranks is the sum of the gradients over ranks, that of an all-gather a reduce-scatter. They
travel with the same ``wire``. min, max, prod and the bitwise reductions have none.

**Order.** All ranks must run the same operators in the same order, backward too; the same compiled graph does.
"""

# No ``from __future__ import annotations``: PyTorch reads the operators' schemas from the annotations themselves.

from collections.abc import Sequence
from typing import Any

import torch

from . import communicator, world
from .communicator import Communicator
from .tensors import Op, as_dtype, as_op

LINEAR = ("sum", "avg", "premul_sum")


def all_reduce(
    x: torch.Tensor,
    op: Any = "sum",
    *,
    comm: Communicator | None = None,
    wire: torch.dtype | str | None = None,
    algo: str = "auto",
) -> torch.Tensor:
    """The reduction of all ranks' ``x``, of its shape, on all ranks. See :meth:`Communicator.all_reduce`.

    Args:
        comm: the communicator; None: the default one.
    """
    name, scale = _reduction(op)
    return torch.ops.tricoll.all_reduce(x, name, scale, _name(comm), _wire(wire), algo)


def reduce_scatter(
    x: torch.Tensor,
    op: Any = "sum",
    *,
    comm: Communicator | None = None,
    wire: torch.dtype | str | None = None,
    algo: str = "auto",
) -> torch.Tensor:
    """Part r of the reduction on rank r, cut along dimension 0. See :meth:`Communicator.reduce_scatter`.

    ``op``: as for :func:`all_reduce`.

    Args:
        wire: the dtype that travels; None: that of ``x``.
        comm: the communicator; None: the default one.
    """
    name, scale = _reduction(op)
    return torch.ops.tricoll.reduce_scatter(x, name, scale, _name(comm), _wire(wire), algo)


def all_gather(
    x: torch.Tensor, *, comm: Communicator | None = None, wire: torch.dtype | str | None = None, algo: str = "auto"
) -> torch.Tensor:
    """All ranks' ``x``, joined along dimension 0. See :meth:`Communicator.all_gather`.

    Args:
        comm: the communicator; None: the default one.
    """
    return torch.ops.tricoll.all_gather(x, _name(comm), _wire(wire), algo)


def all_to_all(
    x: torch.Tensor,
    input_splits: Sequence[int] | None = None,
    output_splits: Sequence[int] | None = None,
    *,
    comm: Communicator | None = None,
    wire: torch.dtype | str | None = None,
) -> torch.Tensor:
    """Parts of ``x`` to all ranks, and theirs joined along dimension 0. See :meth:`Communicator.all_to_all`.

    Args:
        wire: the dtype that travels; None: that of ``x``.
        comm: the communicator; None: the default one.
        input_splits: rows for each rank; None: equal parts.
        output_splits: rows from each rank; None: equal parts.
    """
    sends = None if input_splits is None else list(input_splits)
    receives = None if output_splits is None else list(output_splits)
    return torch.ops.tricoll.all_to_all(x, sends, receives, _name(comm), _wire(wire))


def broadcast(
    x: torch.Tensor, root: int = 0, *, comm: Communicator | None = None, wire: torch.dtype | str | None = None
) -> torch.Tensor:
    """The ``x`` of rank ``root`` on all ranks. The gradient goes to the root; elsewhere it is zero.

    See :meth:`Communicator.broadcast`.

    Args:
        wire: the dtype that travels; None: that of ``x``.
        comm: the communicator; None: the default one.
    """
    return torch.ops.tricoll.broadcast(x, root, _name(comm), _wire(wire))


# Arguments of operators are numbers, strings and lists: a communicator goes by its name.


def _name(comm: Communicator | None) -> str:
    return "" if comm is None else comm.name


def _named(name: str) -> Communicator:
    return communicator.named(name) if name else world.default()


def _reduction(op: Any) -> tuple[str, float]:
    if isinstance(op, str) and op != "premul_sum":
        return op, 1.0
    chosen = as_op(op)
    return chosen.name, chosen.scale


def _wire(wire: torch.dtype | str | None) -> str | None:
    return wire if wire is None or isinstance(wire, str) else str(as_dtype(wire)).removeprefix("torch.")


def _linear(op: str) -> None:
    if as_op(op if op != "premul_sum" else Op(op)).name not in LINEAR:
        raise RuntimeError(f"the reduction {op!r} has no gradient; {LINEAR} have")


# The operators. The results of a communicator never share memory with its inputs here.


@torch.library.custom_op("tricoll::all_reduce", mutates_args=())
def _all_reduce(x: torch.Tensor, op: str, scale: float, name: str, wire: str | None, algo: str) -> torch.Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    return _named(name).all_reduce(x, Op(op, scale) if op == "premul_sum" else op, out=out, wire=wire, algo=algo)


@_all_reduce.register_fake
def _(x: torch.Tensor, op: str, scale: float, name: str, wire: str | None, algo: str) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("tricoll::reduce_scatter", mutates_args=())
def _reduce_scatter(x: torch.Tensor, op: str, scale: float, name: str, wire: str | None, algo: str) -> torch.Tensor:
    return _named(name).reduce_scatter(x, Op(op, scale) if op == "premul_sum" else op, wire=wire, algo=algo)


@_reduce_scatter.register_fake
def _(x: torch.Tensor, op: str, scale: float, name: str, wire: str | None, algo: str) -> torch.Tensor:
    return x.new_empty((x.shape[0] // _named(name).world_size, *x.shape[1:]))


@torch.library.custom_op("tricoll::all_gather", mutates_args=())
def _all_gather(x: torch.Tensor, name: str, wire: str | None, algo: str) -> torch.Tensor:
    return _named(name).all_gather(x, wire=wire, algo=algo)


@_all_gather.register_fake
def _(x: torch.Tensor, name: str, wire: str | None, algo: str) -> torch.Tensor:
    return x.new_empty((_named(name).world_size * (x.shape[0] if x.dim() else 1), *x.shape[1:]))


@torch.library.custom_op("tricoll::all_to_all", mutates_args=())
def _all_to_all(
    x: torch.Tensor, input_splits: list[int] | None, output_splits: list[int] | None, name: str, wire: str | None
) -> torch.Tensor:
    return _named(name).all_to_all(x, input_splits=input_splits, output_splits=output_splits, wire=wire)


@_all_to_all.register_fake
def _(
    x: torch.Tensor, input_splits: list[int] | None, output_splits: list[int] | None, name: str, wire: str | None
) -> torch.Tensor:
    return x.new_empty((x.shape[0] if output_splits is None else sum(output_splits), *x.shape[1:]))


@torch.library.custom_op("tricoll::broadcast", mutates_args=())
def _broadcast(x: torch.Tensor, root: int, name: str, wire: str | None) -> torch.Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    return _named(name).broadcast(x, root, out=out, wire=wire)


@torch.library.custom_op("tricoll::sum_at", mutates_args=())
def _sum_at(x: torch.Tensor, root: int, name: str, wire: str | None) -> torch.Tensor:
    # The sum of all ranks' x on the root, zeros elsewhere: the gradient of a broadcast.
    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    _named(name).reduce(x, root, out=out, wire=wire)
    return out


@_broadcast.register_fake
@_sum_at.register_fake
def _(x: torch.Tensor, root: int, name: str, wire: str | None) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


# Their gradients.


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.rest = inputs[1:]


def _all_reduce_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    op, *rest = ctx.rest
    _linear(op)
    return (torch.ops.tricoll.all_reduce(grad, op, *rest), *[None] * 5)


def _reduce_scatter_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    op, scale, name, wire, _ = ctx.rest
    _linear(op)
    gathered = torch.ops.tricoll.all_gather(grad, name, wire, "auto")
    factor = 1 / _named(name).world_size if op == "avg" else scale
    return (gathered * factor if factor != 1 else gathered, *[None] * 5)


def _all_gather_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    name, wire, _ = ctx.rest
    return torch.ops.tricoll.reduce_scatter(grad, "sum", 1.0, name, wire, "auto"), None, None, None


def _all_to_all_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    input_splits, output_splits, name, wire = ctx.rest
    return (torch.ops.tricoll.all_to_all(grad, output_splits, input_splits, name, wire), *[None] * 4)


def _broadcast_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return torch.ops.tricoll.sum_at(grad, *ctx.rest), None, None, None


def _sum_at_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return torch.ops.tricoll.broadcast(grad, *ctx.rest), None, None, None


_all_reduce.register_autograd(_all_reduce_gradient, setup_context=_keep)
_reduce_scatter.register_autograd(_reduce_scatter_gradient, setup_context=_keep)
_all_gather.register_autograd(_all_gather_gradient, setup_context=_keep)
_all_to_all.register_autograd(_all_to_all_gradient, setup_context=_keep)
_broadcast.register_autograd(_broadcast_gradient, setup_context=_keep)
_sum_at.register_autograd(_sum_at_gradient, setup_context=_keep)
