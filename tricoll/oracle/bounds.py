"""How far off a reduction of floats may be, whatever its order. The proofs are in docs/numerics.md."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .dtypes import COMPLEX, FLOAT_OPS, FLOATS, accumulator, chosen, has
from .steps import cast, checked_scale
from .views import flat


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
    wire, out = chosen(inputs[0].dtype, wire, out_dtype)
    if op not in FLOAT_OPS or not has(op, inputs[0].dtype) or inputs[0].dtype not in (*FLOATS, *COMPLEX):
        raise TypeError(f"there is no bound for {op!r} of {inputs[0].dtype}: only for reductions of floats")
    shape = (*inputs[0].shape, 2) if inputs[0].is_complex() else inputs[0].shape
    shares = torch.stack([flat(t).double() for t in inputs]).view(len(inputs), *shape)
    wide, wire, out = accumulator(inputs[0].dtype), _real(wire), _real(out)
    x = shares
    if op == "premul_sum":
        x = x * torch.tensor(checked_scale(op, scale), dtype=torch.float64).to(wide)
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
