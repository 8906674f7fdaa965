"""The exact bits that collectives must produce, in plain PyTorch.

Written from the documented order of operations, without any of the code that it judges: what is added in which order,
what is rounded when, and to what.

- The ring adds chunk c in the order x[c+1] + x[c+2] + ... + x[c] (mod n) and rounds every partial sum to the wire
  dtype, because that is what travels.
- The direct algorithms, two_shot and one_shot, round every rank's share to the wire dtype and add in rank order,
  x[0] + x[1] + ... + x[n-1].
- The tree cuts the data into two halves, one a tree. A rank adds own + first child + second child, and rounds what it
  sends up to the wire dtype.

Floats of 16 and 32 bits are added in FP32, every other type in itself, and integers wrap. An average divides the sum,
correctly rounded.

Inputs are one tensor a rank, of any stride and on any device; results are on the CPU.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

CHUNK_MULTIPLE = 16  # elements; all-reduce cuts where every channel's vectors stay aligned
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of an element


def all_reduce(
    inputs: Sequence[Tensor],
    op: str = "sum",
    wire: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    algorithm: str = "ring",
    chunk: int | None = None,
) -> Tensor:
    """What every rank holds after an all-reduce, with the shape of ``inputs[0]``.

    Args:
        inputs: what each rank gives, in rank order; the same number of elements each.
        op: "sum" or "avg".
        wire: the dtype that travels; None: that of the inputs.
        out_dtype: the dtype of the result; None: that of the inputs.
        algorithm: whose order of additions and roundings.
        chunk: elements a chunk; None: :func:`chunk_size`.
    """
    _known(algorithm, op)
    wire, out_dtype = wire or inputs[0].dtype, out_dtype or inputs[0].dtype
    flat = [_flat(x) for x in inputs]
    if algorithm == "tree":
        half = chunk_size(flat[0].numel(), 2)
        parts = [_tree_sum([x[t * half : (t + 1) * half] for x in flat], t, op, wire) for t in (0, 1)]
        return torch.cat([part.to(wire).to(out_dtype) for part in parts]).view(inputs[0].shape)
    chunk = chunk or chunk_size(flat[0].numel(), len(inputs))
    parts = []
    for owner in range(len(inputs)):
        # The owner keeps the rounded value that it sends, so that all ranks have the same bits.
        total = SUMS[algorithm]([x[owner * chunk : (owner + 1) * chunk] for x in flat], owner, op, wire)
        parts.append(total.to(wire).to(out_dtype))
    return torch.cat(parts).view(inputs[0].shape)


def reduce_scatter(
    inputs: Sequence[Tensor],
    op: str = "sum",
    wire: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    algorithm: str = "ring",
) -> list[Tensor]:
    """What each rank holds after a reduce-scatter along dimension 0, in rank order. See :func:`all_reduce`.

    A rank's own part does not travel any more when it is complete: it goes from the accumulator to the output.
    """
    _known(algorithm, op)
    wire, out_dtype = wire or inputs[0].dtype, out_dtype or inputs[0].dtype
    n, shape = len(inputs), inputs[0].shape
    chunk = inputs[0].numel() // n
    flat = [_flat(x) for x in inputs]
    totals = [SUMS[algorithm]([x[r * chunk : (r + 1) * chunk] for x in flat], r, op, wire) for r in range(n)]
    return [total.to(out_dtype).view(shape[0] // n, *shape[1:]) for total in totals]


def all_gather(
    inputs: Sequence[Tensor], wire: torch.dtype | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """What every rank holds after an all-gather along dimension 0. A rank rounds its own part like the others'."""
    wire, out_dtype = wire or inputs[0].dtype, out_dtype or inputs[0].dtype
    shape = inputs[0].shape
    joined = torch.cat([_flat(x).to(wire).to(out_dtype) for x in inputs])
    return joined.view(len(inputs) * shape[0], *shape[1:]) if shape else joined


def bound(
    inputs: Sequence[Tensor], op: str = "sum", wire: torch.dtype | None = None, out_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """What any correct reduction of floats may give: FP64 tensors ``(value, error)`` with the shape of the inputs.

    Whatever the order of the additions, with every partial sum rounded to FP32 (FP64 for FP64) and to the wire dtype,
    the result lies within ``error`` of ``value``. With u the unit roundoff of a type, that is about
    ``n (u_fp32 + u_wire) + u_out`` times the sum of the absolute values. ``error`` is infinite where a partial sum
    may overflow, and ``value`` is NaN where it must be.
    """
    wire, out_dtype = wire or inputs[0].dtype, out_dtype or inputs[0].dtype
    n = len(inputs)
    x = torch.stack([_flat(t).double() for t in inputs]).view(n, *inputs[0].shape)
    unit = lambda dtype: torch.finfo(dtype).eps / 2
    subnormal = lambda dtype: torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    adder = accumulator(inputs[0].dtype)
    # n - 1 additions, a division, and the rounding of the FP64 sum here; n values or partial sums on the wire.
    roundings = [unit(adder), unit(wire), 2.0**-53] * n + [unit(out_dtype)]
    relative = math.expm1(sum(math.log1p(u) for u in roundings))
    value, size = x.sum(0), x.where(x.isfinite(), torch.zeros(())).abs().sum(0)
    error = relative * size + 2 * n * (subnormal(wire) + subnormal(adder)) + subnormal(out_dtype)
    limit = min(torch.finfo(d).max for d in (adder, wire, out_dtype))
    error = error.where(size * (1 + relative) <= limit, torch.tensor(torch.inf, dtype=torch.float64))
    if op == "avg":
        # The roundings after the division are relative to the smaller value, so dividing the error too is enough for
        # all but what is lost below the smallest number.
        value, error = value / n, error / n + subnormal(wire) + subnormal(out_dtype)
    return value, error


def chunk_size(numel: int, world_size: int) -> int:
    """Elements in a chunk of an all-reduce: an equal share, rounded up. The last chunks may be short, or empty."""
    share = (numel + world_size - 1) // world_size
    return (share + CHUNK_MULTIPLE - 1) // CHUNK_MULTIPLE * CHUNK_MULTIPLE


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which elements of ``dtype`` are added."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same dtype, the same shape and the same bytes.

    The sign of zero counts. A NaN equals every other NaN: neither PyTorch nor GPUs promise anything of its sign and
    payload.
    """
    return a.dtype == b.dtype and a.shape == b.shape and not bool(differing(a, b).any())


def differing(a: Tensor, b: Tensor) -> Tensor:
    """Which elements of two tensors of one dtype and shape differ, in the sense of :func:`same_bits`."""
    different = bits(a) != bits(b)
    return different & ~(a.isnan().cpu() & b.isnan().cpu()) if a.dtype.is_floating_point else different


def bits(t: Tensor) -> Tensor:
    """The elements as integers of the same size, on the CPU."""
    return t.detach().cpu().contiguous().view(BITS[t.element_size()])


def _flat(x: Tensor) -> Tensor:
    return x.detach().cpu().reshape(-1)


def _known(algorithm: str, op: str) -> None:
    if algorithm not in SUMS:
        raise ValueError(f"the oracle has no algorithm {algorithm!r}; it can be one of {tuple(SUMS)}")
    if op not in ("sum", "avg"):
        raise ValueError(f"the oracle has no op {op!r}; it can be 'sum' or 'avg'")


def _ring_sum(shares: list[Tensor], owner: int, op: str, wire: torch.dtype) -> Tensor:
    # One chunk, given by all ranks, as its owner has it before the last rounding.
    n, dtype = len(shares), accumulator(shares[0].dtype)
    order = [shares[(owner + 1 + hop) % n].to(dtype) for hop in range(n)]
    total = functools.reduce(lambda partial, own: partial.to(wire).to(dtype) + own, order)
    return _finish(total, n, op)


def _direct_sum(shares: list[Tensor], owner: int, op: str, wire: torch.dtype) -> Tensor:
    # The same, in rank order, whoever the owner is. One rank alone sends nothing, so nothing is rounded.
    n, dtype = len(shares), accumulator(shares[0].dtype)
    order = [share.to(wire).to(dtype) for share in shares] if n > 1 else [shares[0].to(dtype)]
    return _finish(functools.reduce(torch.add, order), n, op)


def _tree_sum(shares: list[Tensor], tree: int, op: str, wire: torch.dtype) -> Tensor:
    # One half, as the root of its tree has it before the last rounding. The second tree is the first with the ranks in
    # the opposite order if their number is even, and one further if it is odd.
    n, dtype = len(shares), accumulator(shares[0].dtype)
    if tree == 1:
        shares = shares[::-1] if n % 2 == 0 else shares[1:] + shares[:1]
    children: dict[int, list[int]] = {rank: [] for rank in range(n)}
    for rank in range(1, n):
        bit = rank & -rank
        parent = (rank ^ bit) | (bit << 1)
        children[parent if parent < n else rank ^ bit].append(rank)

    def up(rank: int) -> Tensor:
        total = shares[rank].to(dtype)
        for child in children[rank]:  # in the order of their ranks: below, above
            total = total + up(child).to(wire).to(dtype)
        return total

    return _finish(up(0), n, op)


def _finish(total: Tensor, n: int, op: str) -> Tensor:
    # By a tensor, because PyTorch may multiply by the reciprocal of a number.
    return total / torch.full_like(total, n) if op == "avg" else total


SUMS = {"ring": _ring_sum, "tree": _tree_sum, "two_shot": _direct_sum, "one_shot": _direct_sum}
