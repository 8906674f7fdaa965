"""The steps that every reduction is made of: enter, combine, travel, finish, and the cast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` rounded to ``dtype`` as ``torch.Tensor.to`` does: to nearest even, subnormals and signs of zeros kept.

    Too large becomes infinity, in float8_e4m3fn (which has none) what PyTorch makes of it: 448 since 2.13, before NaN.
    """
    return x.to(dtype)


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


@dataclass(frozen=True)
class Steps:
    """Of one reduction over ``n`` ranks."""

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


def checked_scale(op: str, scale: float | None) -> float | None:
    """``scale``, if it belongs to ``op``.

    Raises:
        ValueError: op="premul_sum" without a scale, or another one with it.
    """
    if (op == "premul_sum") != (scale is not None):
        raise ValueError(f"a scale belongs to op 'premul_sum', and only to it: op is {op!r}, scale is {scale}")
    return scale
