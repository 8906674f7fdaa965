"""The exact bits that collectives must produce, in plain PyTorch.

Written from the documented order of operations (docs/numerics.md), without any of the code that it judges. A reduction
is five steps, the methods of ``_Reduction``: a share *enters* (is widened to the accumulator's dtype), two are
*combined*, what *travels* is rounded to the wire dtype, the total is *finished* (an average is divided), and the result
is cast to the output dtype. The algorithms differ in the order of combination and in what travels:

- ring: chunk c is x[c+1] + x[c+2] + ... + x[c] (mod n), and every partial sum travels.
- direct (two_shot, one_shot): every share travels, the own one too; then x[0] + x[1] + ... + x[n-1].
- tree: two trees with half of the data each. A rank adds own + first child + second child; what goes up travels.
- hierarchical: direct within each node, and a ring over the nodes.
- multimem: as direct, but the switch rounds the sum before an average is divided.

Inputs are one tensor a rank, of any stride and on any device; results are on the CPU. A dtype or op that does not exist
for the other is a TypeError, any other argument that does not fit a ValueError.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SMALL_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
FLOATS = (*SMALL_FLOATS, torch.float64)  # any small one converts to any other; all other types are sent as they are
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *INTEGERS, torch.bool, *COMPLEX)

FLOAT_OPS = ("sum", "avg", "min", "max", "prod", "premul_sum")
INTEGER_OPS = ("sum", "prod", "min", "max", "and", "or", "xor")
COMPLEX_OPS = ("sum", "avg")

ALGORITHMS = {  # of the collectives that reduce; the others only move elements
    "all_reduce": ("ring", "tree", "two_shot", "one_shot", "hierarchical", "multimem"),
    "reduce_scatter": ("ring", "two_shot", "one_shot", "hierarchical"),
    "reduce": ("ring", "tree", "two_shot", "one_shot"),
}
MULTIMEM_WIRES = (torch.float32, torch.float16, torch.bfloat16)  # what the switch adds

CHUNK_MULTIPLE = 16  # elements; all-reduce cuts where every channel's vectors stay aligned
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of an element


def ops(dtype: torch.dtype) -> tuple[str, ...]:
    """The reductions that ``dtype`` has; none for a type that cannot be sent."""
    if dtype in FLOATS:
        return FLOAT_OPS
    if dtype in COMPLEX:
        return COMPLEX_OPS
    return INTEGER_OPS if dtype in (*INTEGERS, torch.bool) else ()


def has(op: str, dtype: torch.dtype) -> bool:
    """Whether elements of ``dtype`` can be reduced with ``op``."""
    return op in ops(dtype)


def converts(a: torch.dtype, b: torch.dtype) -> bool:
    """Whether ``a`` can be sent or returned as ``b``: floats of at most 32 bits, or no conversion at all."""
    return a in DTYPES and (a == b or (a in SMALL_FLOATS and b in SMALL_FLOATS))


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which elements of ``dtype`` are combined; for complex numbers, their parts."""
    if dtype in (*SMALL_FLOATS, torch.complex64):
        return torch.float32
    return {torch.complex128: torch.float64, torch.bool: torch.uint8}.get(dtype, dtype)


# The collectives that reduce.


def all_reduce(
    inputs: Sequence[Tensor],
    op: str = "sum",
    wire: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    algorithm: str = "ring",
    chunk: int | None = None,
    *,
    scale: float | None = None,
    node_size: int | None = None,
) -> Tensor:
    """What every rank holds after an all-reduce, with the shape of ``inputs[0]``.

    Args:
        inputs: what each rank gives, in rank order; the same number of elements each.
        op: one of :func:`ops`.
        wire: the dtype that travels; None: that of the inputs.
        out_dtype: the dtype of the result; None: that of the inputs.
        algorithm: whose order of combination and roundings.
        chunk: elements a chunk; None: :func:`chunk_size`. A complex number counts as two elements.
        scale: what op="premul_sum" multiplies every share by.
        node_size: ranks a node, for algorithm="hierarchical".
    """
    r, out = _reduction("all_reduce", inputs, op, wire, out_dtype, algorithm, scale, node_size)
    flat = [_flat(x) for x in inputs]
    if algorithm == "tree":
        half = chunk_size(flat[0].numel(), 2)
        halves = ([x[t * half : (t + 1) * half] for x in flat] for t in (0, 1))
        totals = [_tree(r, _second_tree(shares) if t else shares) for t, shares in enumerate(halves)]
    else:
        chunk = chunk or chunk_size(flat[0].numel(), r.n)
        chunks = ([x[c * chunk : (c + 1) * chunk] for x in flat] for c in range(r.n))
        totals = [_total(r, algorithm, shares, c) for c, shares in enumerate(chunks)]
    # What a chunk's owner keeps is rounded like what it sends, so that all ranks have the same bits.
    last = [r.finish(r.travel(t)) if algorithm == "multimem" else r.travel(r.finish(t)) for t in totals]
    return _unflat(torch.cat(last), out, inputs[0].shape)


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
    r, out = _reduction("reduce_scatter", inputs, op, wire, out_dtype, algorithm, scale, node_size)
    rows, shape = _rows(inputs[0], r.n, sizes), inputs[0].shape
    flat = [_flat(x) for x in inputs]
    row = flat[0].numel() // max(shape[0], 1)
    parts = zip(*(x.split([count * row for count in rows]) for x in flat), strict=True)
    totals = [_total(r, algorithm, list(shares), owner) for owner, shares in enumerate(parts)]
    return [_unflat(r.finish(t), out, (count, *shape[1:])) for t, count in zip(totals, rows, strict=True)]


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
    r, out = _reduction("reduce", inputs, op, wire, out_dtype, algorithm, scale, None)
    root = _rank(root, r.n)
    flat = [_flat(x) for x in inputs]
    if algorithm == "tree":
        total = _tree(r, flat[root:] + flat[:root])
    else:
        total = _total(r, algorithm, flat, root)
    return _unflat(r.travel(r.finish(total)), out, inputs[0].shape)


@dataclass(frozen=True)
class _Reduction:
    op: str
    n: int
    wide: torch.dtype  # the accumulator's
    wire: torch.dtype
    scale: float | None
    node_size: int  # all ranks, but for hierarchical

    def enter(self, share: Tensor) -> Tensor:
        x = share.to(self.wide, copy=True)  # the result must not be a view of an input
        return x * _filled(x, self.scale) if self.scale is not None else x

    def combine(self, a: Tensor, b: Tensor) -> Tensor:
        return COMBINE[self.op](a, b)

    def travel(self, x: Tensor) -> Tensor:
        return cast(x, self.wire).to(self.wide)

    def finish(self, total: Tensor) -> Tensor:
        return total / _filled(total, self.n) if self.op == "avg" else total


def _filled(like: Tensor, value: float) -> Tensor:
    # A tensor, because PyTorch may multiply by the reciprocal of a number. Through FP64: too large becomes infinity.
    return torch.tensor(value, dtype=torch.float64).to(like.dtype).expand_as(like).contiguous()


def _minimum(a: Tensor, b: Tensor) -> Tensor:
    # NaN if either is, as torch.minimum; of two zeros the negative one, which torch leaves open.
    return torch.where(a == b, torch.where(a.signbit(), a, b), torch.minimum(a, b))


def _maximum(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(a == b, torch.where(a.signbit(), b, a), torch.maximum(a, b))


COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "premul_sum": torch.add,
    "prod": torch.mul,
    "min": _minimum,
    "max": _maximum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
}


def _total(r: _Reduction, algorithm: str, shares: list[Tensor], owner: int) -> Tensor:
    # Of one chunk, which all ranks give, as its owner has it: not finished, not rounded.
    if r.n == 1:
        return r.enter(shares[0])  # one rank alone sends nothing
    if algorithm == "ring":
        return _chain(r, [r.enter(share) for share in shares], owner)
    if algorithm == "hierarchical":
        nodes = [shares[first : first + r.node_size] for first in range(0, r.n, r.node_size)]
        return _chain(r, [_in_rank_order(r, node) for node in nodes], owner // r.node_size)
    return _in_rank_order(r, shares)


def _chain(r: _Reduction, terms: list[Tensor], last: int) -> Tensor:
    order = terms[last + 1 :] + terms[: last + 1]
    return functools.reduce(lambda partial, own: r.combine(r.travel(partial), own), order)


def _in_rank_order(r: _Reduction, shares: list[Tensor]) -> Tensor:
    return functools.reduce(r.combine, [r.travel(r.enter(share)) for share in shares])


def _tree(r: _Reduction, shares: list[Tensor]) -> Tensor:
    # Shares by their places in the tree: place 0 is the root.
    children: dict[int, list[int]] = {place: [] for place in range(r.n)}
    for place in range(1, r.n):
        bit = place & -place
        parent = (place ^ bit) | (bit << 1)
        children[parent if parent < r.n else place ^ bit].append(place)

    def up(place: int) -> Tensor:
        below = [r.travel(up(child)) for child in children[place]]  # by number: the lower child is the first
        return functools.reduce(r.combine, below, r.enter(shares[place]))

    return up(0)


def _second_tree(shares: list[Tensor]) -> list[Tensor]:
    # The first with the ranks in the opposite order if their number is even, and one further if it is odd.
    return shares[::-1] if len(shares) % 2 == 0 else shares[1:] + shares[:1]


# The collectives that move. Every element goes through the wire dtype to the output dtype, a rank's own part too.


def all_gather(
    inputs: Sequence[Tensor], wire: torch.dtype | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """What every rank holds after an all-gather along dimension 0, in which the inputs may differ in size.

    Args:
        inputs: what each rank gives, in rank order.
        wire: the dtype that travels; None: that of the inputs.
        out_dtype: of the result; None: that of the inputs.
    """
    wire, out = _dtypes(inputs[0].dtype, wire, out_dtype)
    return torch.cat([torch.atleast_1d(_move(x, wire, out)) for x in inputs])


def gather(inputs: Sequence[Tensor], wire: torch.dtype | None = None, out_dtype: torch.dtype | None = None) -> Tensor:
    """What the root holds after a gather along dimension 0: the same as after an all-gather, whoever the root is.

    Args:
        inputs: what each rank gives, in rank order.
        wire: the dtype that travels; None: that of the inputs.
        out_dtype: of the result; None: that of the inputs.
    """
    return all_gather(inputs, wire, out_dtype)


def broadcast(
    inputs: Sequence[Tensor | None],
    wire: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    root: int = 0,
) -> Tensor:
    """What every rank holds after a broadcast, the root too. Only ``inputs[root]`` is looked at.

    Args:
        wire: the dtype that travels; None: that of the inputs.
        out_dtype: of the result; None: that of the inputs.
    """
    x = _of_root(inputs, root)
    return _move(x, *_dtypes(x.dtype, wire, out_dtype))


def scatter(
    inputs: Sequence[Tensor | None],
    wire: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    root: int = 0,
) -> list[Tensor]:
    """What each rank holds after the root's tensor was cut along dimension 0 into n equal parts, in rank order.

    Only ``inputs[root]`` is looked at.

    Args:
        wire: the dtype that travels; None: that of the inputs.
        out_dtype: of the result; None: that of the inputs.
    """
    x = _of_root(inputs, root)
    moved = _move(x, *_dtypes(x.dtype, wire, out_dtype))
    return [part.clone() for part in moved.split(_rows(x, len(inputs)))]


def all_to_all(
    inputs: Sequence[Tensor],
    wire: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    splits: Sequence[Sequence[int]] | None = None,
) -> list[Tensor]:
    """What each rank holds after an all-to-all along dimension 0, in rank order.

    Args:
        inputs: what each rank gives, in rank order.
        wire: the dtype that travels; None: that of the inputs.
        out_dtype: of the result; None: that of the inputs.
        splits: ``splits[r][s]`` rows of rank r's tensor go to rank s; None: n equal parts.
    """
    wire, out = _dtypes(inputs[0].dtype, wire, out_dtype)
    n = len(inputs)
    parts = [_move(x, wire, out).split(_rows(x, n, splits[r] if splits else None)) for r, x in enumerate(inputs)]
    return [torch.cat([parts[source][rank] for source in range(n)]) for rank in range(n)]


# How far off a reduction may be, whatever its order.


def bound(
    inputs: Sequence[Tensor],
    op: str = "sum",
    wire: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """What any correct reduction of floats may give: FP64 tensors ``(value, error)`` with the shape of the inputs.

    Whatever the order of combination, with every share and partial result rounded to FP32 (FP64 for FP64) and to the
    wire dtype, the result lies within ``error`` of ``value``. ``error`` is infinite where a partial result may leave
    the range of a dtype, and ``value`` is NaN where it must be. Complex numbers have their parts in a last dimension.
    The proofs are in docs/numerics.md.

    With u the unit roundoff of a type, ``error`` is about ``n (u_fp32 + u_wire) + u_out`` times

    - for "sum", "avg" and "premul_sum": the sum of the absolute values (for an average, divided by n);
    - for "prod": the absolute value of the product; where a partial product may be subnormal, the product of
      the values that are larger than 1.

    "min" and "max" are exact but for the rounding of the shares to the wire dtype and of the result.

    Args:
        inputs: what each rank gives, in rank order.
        wire: the dtype that travels; None: that of the inputs.
        out_dtype: of the result; None: that of the inputs.
        op: one of :func:`ops`.
        scale: what op="premul_sum" multiplies by.

    Raises:
        TypeError: the dtype has no such reduction.
    """
    wire, out = _dtypes(inputs[0].dtype, wire, out_dtype)
    if op not in FLOAT_OPS or not has(op, inputs[0].dtype) or inputs[0].dtype not in (*FLOATS, *COMPLEX):
        raise TypeError(f"there is no bound for {op!r} of {inputs[0].dtype}: only for reductions of floats")
    shape = (*inputs[0].shape, 2) if inputs[0].is_complex() else inputs[0].shape
    shares = torch.stack([_flat(t).double() for t in inputs]).view(len(inputs), *shape)
    wide, wire, out = accumulator(inputs[0].dtype), _real(wire), _real(out)
    x = shares
    if op == "premul_sum":
        x = x * torch.tensor(_scale(op, scale), dtype=torch.float64).to(wide)
    rule = {"min": _bound_of_extreme, "max": _bound_of_extreme, "prod": _bound_of_product}.get(op, _bound_of_sum)
    value, error = rule(x, op, wide, wire, out)
    error = _infinite_where((shares.isfinite() & ~x.isfinite()).any(0), error)  # a product that is too large
    if torch.float8_e4m3fn in (wire, out):  # it has no infinity, and may or may not make a NaN of one
        error = _infinite_where(x.isinf().any(0), error)
    return value, error


def _bound_of_sum(x: Tensor, op: str, wide: torch.dtype, wire: torch.dtype, out: torch.dtype) -> tuple[Tensor, Tensor]:
    n = len(x)
    relative = _growth(_roundings(n, wide, wire, out))
    value, size = x.sum(0), x.where(x.isfinite(), 0.0).abs().sum(0)
    # Each of at most 2 n roundings on either side loses at most half of the smallest number, and later ones add to it.
    error = relative * size + (1 + relative) * n * (_least(wire) + _least(wide)) + _least(out)
    error = _infinite_where(size + error > min(torch.finfo(d).max for d in (wide, wire, out)), error)
    if op == "avg":
        # The roundings after the division are relative to the smaller value, so dividing the error too is enough for
        # all but what is lost below the smallest number.
        value, error = value / n, error / n + _least(wide) + _least(wire) + _least(out)
    return value, error


def _bound_of_extreme(
    x: Tensor, op: str, wide: torch.dtype, wire: torch.dtype, out: torch.dtype
) -> tuple[Tensor, Tensor]:
    # Rounding is monotone. So the result lies between the exact one and the exact one as the wire rounds it, and the
    # output between what these two are cast to.
    value = x.amin(0) if op == "min" else x.amax(0)
    ends = [cast(value.to(wide), out).double(), cast(cast(value.to(wide), wire), out).double()]
    error = torch.maximum(*((end - value).abs() for end in ends)).where(value.isfinite(), 0.0)
    too_large = x.where(x.isfinite(), 0.0).abs().amax(0) > min(torch.finfo(d).max for d in (wire, out))
    return value, _infinite_where(too_large, error)


def _bound_of_product(
    x: Tensor, op: str, wide: torch.dtype, wire: torch.dtype, out: torch.dtype
) -> tuple[Tensor, Tensor]:
    units = _roundings(len(x), wide, wire, out)
    finite = x.where(x.isfinite(), 1.0).abs()
    value, largest, smallest = x.prod(0), finite.clamp(min=1).prod(0), finite.clamp(max=1).prod(0)
    # No partial product is subnormal: every rounding is relative.
    normal = smallest * math.prod(1 - u for u in units) >= max(torch.finfo(d).tiny for d in (wide, wire, out))
    absolute = largest * _growth([u + max(_least(wide), _least(wire), _least(out)) for u in units])
    error = torch.where(normal, _growth(units) * value.abs(), absolute).where((x != 0).all(0), 0.0)
    error = _infinite_where(largest + absolute > min(torch.finfo(d).max for d in (wide, wire, out)), error)
    # An infinity times a product that was rounded to zero is NaN.
    infinite = x.isinf().any(0)
    return value, _infinite_where(infinite & ~normal, error.where(~infinite, 0.0))


def _roundings(n: int, wide: torch.dtype, wire: torch.dtype, out: torch.dtype) -> list[float]:
    # Unit roundoffs of all roundings that one share can go through: n - 1 combinations and either a division or a
    # multiplication in the accumulator's dtype, n times on the wire, as many in the FP64 reference, and the last one.
    unit = lambda dtype: float(torch.finfo(dtype).eps) / 2
    return [unit(wide), unit(wire), 2.0**-53] * n + [unit(out)]


def _growth(units: list[float]) -> float:
    return math.expm1(sum(math.log1p(u) for u in units))


def _least(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).tiny * torch.finfo(dtype).eps)  # the smallest positive number


def _infinite_where(condition: Tensor, error: Tensor) -> Tensor:
    return error.masked_fill(condition, math.inf)


def _real(dtype: torch.dtype) -> torch.dtype:
    return accumulator(dtype) if dtype.is_complex else dtype


# Bits and pieces.


def chunk_size(numel: int, world_size: int) -> int:
    """Elements in a chunk of an all-reduce: an equal share, rounded up. The last chunks may be short, or empty."""
    share = (numel + world_size - 1) // world_size
    return (share + CHUNK_MULTIPLE - 1) // CHUNK_MULTIPLE * CHUNK_MULTIPLE


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` rounded to ``dtype`` as ``torch.Tensor.to`` does: to nearest even, subnormals and signs of zeros kept.

    Too large becomes infinity, in float8_e4m3fn (which has none) what PyTorch makes of it: 448 since 2.13, before NaN.
    """
    return x.to(dtype)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same dtype, the same shape and the same bytes.

    The sign of zero counts. A NaN equals every other NaN: neither PyTorch nor GPUs promise anything of its sign and
    payload.

    Args:
        a: a tensor.
        b: another.
    """
    return a.dtype == b.dtype and a.shape == b.shape and not bool(differing(a, b).any())


def differing(a: Tensor, b: Tensor) -> Tensor:
    """Which elements of two tensors of one dtype and shape differ, in the sense of :func:`same_bits`."""
    different = bits(a) != bits(b)
    if a.dtype in (*FLOATS, *COMPLEX):
        different &= ~(_parts(a).isnan() & _parts(b).isnan())
    return different.any(-1) if a.is_complex() else different


def bits(t: Tensor) -> Tensor:
    """The elements as integers of the same size, on the CPU; complex numbers as two, in a last dimension."""
    return _parts(t).contiguous().view(BITS[_parts(t).element_size()])


def _plain(x: Tensor) -> Tensor:
    return x.detach().cpu().resolve_conj().resolve_neg()


def _parts(x: Tensor) -> Tensor:
    return torch.view_as_real(_plain(x)) if x.is_complex() else _plain(x)


def _flat(x: Tensor) -> Tensor:
    # The numbers that are combined: complex ones are pairs of reals, truth values bytes of 0 and 1.
    flat = _parts(x).reshape(-1)
    return flat.view(torch.uint8) if x.dtype == torch.bool else flat


def _unflat(total: Tensor, out: torch.dtype, shape: Sequence[int]) -> Tensor:
    if out.is_complex or out == torch.bool:
        return total.view(out).view(tuple(shape))
    return cast(total, out).view(tuple(shape))


def _move(x: Tensor, wire: torch.dtype, out: torch.dtype) -> Tensor:
    return cast(cast(_plain(x).clone(), wire), out)


def _reduction(
    collective: str,
    inputs: Sequence[Tensor],
    op: str,
    wire: torch.dtype | None,
    out_dtype: torch.dtype | None,
    algorithm: str,
    scale: float | None,
    node_size: int | None,
) -> tuple[_Reduction, torch.dtype]:
    dtype, n = inputs[0].dtype, len(inputs)
    wire, out = _dtypes(dtype, wire, out_dtype)
    if op not in COMBINE:
        raise ValueError(f"the oracle has no op {op!r}; it can be one of {tuple(COMBINE)}")
    if not has(op, dtype):
        raise TypeError(f"{dtype} has no {op!r}; it has {ops(dtype)}")
    if algorithm not in ALGORITHMS[collective]:
        raise ValueError(
            f"the oracle has no {collective} {algorithm!r}; it can be one of {tuple(ALGORITHMS[collective])}"
        )
    if algorithm == "multimem" and (op not in ("sum", "avg") or wire not in MULTIMEM_WIRES):
        raise ValueError(f"multimem adds: op 'sum' or 'avg', wire one of {MULTIMEM_WIRES}; not {op!r}, {wire}")
    if algorithm == "hierarchical" and (not node_size or n % node_size):
        raise ValueError(f"hierarchical needs a node_size that divides {n} ranks, not {node_size}")
    if dtype == torch.bool:  # sum is or, prod is and
        op = {"sum": "or", "prod": "and"}.get(op, op)
    wire = accumulator(dtype) if dtype in (torch.bool, *COMPLEX) else wire
    return _Reduction(op, n, accumulator(dtype), wire, _scale(op, scale), node_size or n), out


def _dtypes(dtype: torch.dtype, wire: torch.dtype | None, out: torch.dtype | None) -> tuple[torch.dtype, torch.dtype]:
    wire, out = wire or dtype, out or dtype
    if dtype not in DTYPES:
        raise TypeError(f"{dtype} cannot be sent; it can be one of {DTYPES}")
    for other in (wire, out):
        if not converts(dtype, other):
            raise TypeError(f"{dtype} does not convert to {other}: only {SMALL_FLOATS} convert, to one another")
    return wire, out


def _scale(op: str, scale: float | None) -> float | None:
    if (op == "premul_sum") != (scale is not None):
        raise ValueError(f"a scale belongs to op 'premul_sum', and only to it: op is {op!r}, scale is {scale}")
    return scale


def _rows(x: Tensor, n: int, sizes: Sequence[int] | None = None) -> list[int]:
    rows = x.shape[0] if x.dim() else 0
    if sizes is None:
        if not x.dim() or rows % n:
            raise ValueError(f"shape {tuple(x.shape)} cannot be cut along dimension 0 into {n} equal parts")
        return [rows // n] * n
    if not x.dim() or len(sizes) != n or min(sizes) < 0 or sum(sizes) != rows:
        raise ValueError(f"shape {tuple(x.shape)} cannot be cut along dimension 0 into {n} parts of {list(sizes)} rows")
    return list(sizes)


def _rank(root: int, n: int) -> int:
    if not 0 <= root < n:
        raise ValueError(f"root is {root}; with {n} ranks it can be 0 to {n - 1}")
    return root


def _of_root(inputs: Sequence[Tensor | None], root: int) -> Tensor:
    x = inputs[_rank(root, len(inputs))]
    if x is None:
        raise ValueError(f"the root, rank {root}, gives no tensor")
    return x
