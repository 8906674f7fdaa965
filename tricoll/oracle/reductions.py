"""Collectives that reduce: how their data are cut, and what is rounded once a total is complete."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import order
from .cuts import check_root, chunk_size, chunks, rows
from .dtypes import COMPLEX, accumulator, chosen, has, ops
from .steps import COMBINE, Steps, checked_scale
from .views import flat, unflat

ALGORITHMS = {
    "all_reduce": ("ring", "tree", "two_shot", "one_shot", "hierarchical", "multimem"),
    "reduce_scatter": ("ring", "two_shot", "one_shot", "hierarchical"),
    "reduce": ("ring", "tree", "two_shot", "one_shot"),
}
MULTIMEM_WIRES = (torch.float32, torch.float16, torch.bfloat16)  # what the switch adds


def all_reduce(
    inputs: Sequence[Tensor],
    op: str = "sum",
    wire: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    algorithm: str = "ring",
    *,
    scale: float | None = None,
    node_size: int | None = None,
) -> Tensor:
    """What every rank holds after an all-reduce, with the shape of ``inputs[0]``.

    The data are cut into chunks of :func:`chunk_size` elements, in which a complex number counts as two.

    Args:
        inputs: what each rank gives, in rank order; the same number of elements each.
        op: one of :func:`ops`.
        wire: the dtype that travels; None: that of the inputs.
        out_dtype: the dtype of the result; None: that of the inputs.
        algorithm: whose order of combination and roundings.
        scale: what op="premul_sum" multiplies every share by.
        node_size: ranks a node, for algorithm="hierarchical".
    """
    steps, out = _steps("all_reduce", inputs, op, wire, out_dtype, algorithm, scale, node_size)
    lines = [flat(x) for x in inputs]
    if algorithm == "tree":
        first, second = chunks(lines, chunk_size(lines[0].numel(), 2), 2)
        totals = [order.tree(steps, first), order.tree(steps, order.second_tree(second))]
    else:
        cut = chunks(lines, chunk_size(lines[0].numel(), steps.n), steps.n)
        totals = [order.total(steps, algorithm, shares, owner) for owner, shares in enumerate(cut)]
    # What a chunk's owner keeps is rounded like what it sends, so that all ranks have the same bits.
    if algorithm == "multimem":
        kept = [steps.finish(steps.travel(total)) for total in totals]
    else:
        kept = [steps.travel(steps.finish(total)) for total in totals]
    return unflat(torch.cat(kept), out, inputs[0].shape)


def reduce_scatter(
    inputs: Sequence[Tensor],
    op: str = "sum",
    wire: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    algorithm: str = "ring",
    *,
    scale: float | None = None,
    node_size: int | None = None,
    sizes: Sequence[int] | None = None,
) -> list[Tensor]:
    """What each rank holds after a reduce-scatter along dimension 0, in rank order. See :func:`all_reduce`.

    A rank's own part does not travel any more when it is complete: it goes from the accumulator to the output.

    Args:
        sizes: rows of dimension 0 for each rank; None: the same number for all.
    """
    steps, out = _steps("reduce_scatter", inputs, op, wire, out_dtype, algorithm, scale, node_size)
    counts, shape = rows(inputs[0], steps.n, sizes), inputs[0].shape
    lines = [flat(x) for x in inputs]
    row = lines[0].numel() // max(shape[0], 1)
    parts = zip(*(x.split([count * row for count in counts]) for x in lines), strict=True)
    totals = [order.total(steps, algorithm, list(shares), owner) for owner, shares in enumerate(parts)]
    return [unflat(steps.finish(t), out, (count, *shape[1:])) for t, count in zip(totals, counts, strict=True)]


def reduce(
    inputs: Sequence[Tensor],
    op: str = "sum",
    wire: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    algorithm: str = "ring",
    *,
    root: int = 0,
    scale: float | None = None,
) -> Tensor:
    """What the root holds after a reduce. See :func:`all_reduce`. The other ranks' tensors stay as they were.

    The data are not cut: the ring is a chain root + 1, root + 2, ..., root, and the tree is the first of the two, with
    rank ``(root + v) % n`` at place v.
    """
    steps, out = _steps("reduce", inputs, op, wire, out_dtype, algorithm, scale, None)
    check_root(root, steps.n)
    lines = [flat(x) for x in inputs]
    if algorithm == "tree":
        total = order.tree(steps, lines[root:] + lines[:root])
    else:
        total = order.total(steps, algorithm, lines, root)
    return unflat(steps.travel(steps.finish(total)), out, inputs[0].shape)


def _steps(
    collective: str,
    inputs: Sequence[Tensor],
    op: str,
    wire: torch.dtype | None,
    out_dtype: torch.dtype | None,
    algorithm: str,
    scale: float | None,
    node_size: int | None,
) -> tuple[Steps, torch.dtype]:
    dtype, n = inputs[0].dtype, len(inputs)
    wire, out = chosen(dtype, wire, out_dtype)
    if op not in COMBINE:
        raise ValueError(f"the oracle has no op {op!r}; it can be one of {tuple(COMBINE)}")
    if not has(op, dtype):
        raise TypeError(f"{dtype} has no {op!r}; it has {ops(dtype)}")
    if algorithm not in ALGORITHMS[collective]:
        raise ValueError(f"the oracle has no {collective} {algorithm!r}; it can be one of {ALGORITHMS[collective]}")
    if algorithm == "multimem" and (op not in ("sum", "avg") or wire not in MULTIMEM_WIRES):
        raise ValueError(f"multimem adds: op 'sum' or 'avg', wire one of {MULTIMEM_WIRES}; not {op!r}, {wire}")
    if algorithm == "hierarchical" and (not node_size or n % node_size):
        raise ValueError(f"hierarchical needs a node_size that divides {n} ranks, not {node_size}")
    if dtype == torch.bool:  # sum is or, prod is and
        op = {"sum": "or", "prod": "and"}.get(op, op)
    wire = accumulator(dtype) if dtype in (torch.bool, *COMPLEX) else wire
    return Steps(op, n, accumulator(dtype), wire, checked_scale(op, scale), node_size or n), out
