"""What the ranks give: numbers whose result is exact in any order, and random ones.

Every rank can make every other rank's, so that what must come out is computed without the collective that is judged.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from .collective import Part

PERIODS = (65521, 262139)  # elements; primes, so that no chunk of a size that occurs looks like another


def exact(dtype: torch.dtype, wire: torch.dtype, op: str, n: int, seed: int) -> Part:
    """Small integers, different on every rank, whose ``op`` over ``n`` ranks is exact in ``dtype`` and on the wire.

    That holds for partial results in any order, too, so that every algorithm must give the same bits.
    """
    digits = min(_digits(dtype), _digits(wire))
    most = 2**digits - (not dtype.is_floating_point)
    largest = max(1, most // n // (2 if op == "mulsum" else 1))
    return functools.partial(
        _part, "prod" if op == "prod" else "avg" if op == "avg" else "sum", dtype, largest, n, seed
    )


def normal(dtype: torch.dtype, positive: bool, n: int, seed: int) -> Part:
    """Normal random numbers (mean 0, variance 1), or their absolute values, rounded to ``dtype``."""
    return functools.partial(_part, "positive" if positive else "normal", dtype, 0, n, seed)


def _digits(dtype: torch.dtype) -> int:
    """Integers up to 2 to the power of this are exact."""
    if dtype.is_floating_point:
        return 1 - round(math.log2(torch.finfo(dtype).eps))
    return min(20, torch.iinfo(dtype).bits - 1)


def _part(kind: str, dtype: torch.dtype, largest: int, n: int, seed: int, rank: int, start: int, stop: int) -> Tensor:
    period = PERIODS[0] if stop <= PERIODS[0] else PERIODS[1]
    pattern = _pattern(kind, dtype, largest, n, seed, rank, period)
    first, numel = start % period, stop - start
    return pattern.repeat(-(-(first + numel) // period) or 1)[first : first + numel]


@functools.lru_cache(maxsize=64)
def _pattern(kind: str, dtype: torch.dtype, largest: int, n: int, seed: int, rank: int, period: int) -> Tensor:
    own = torch.Generator().manual_seed(seed * 65536 + rank)
    if kind == "sum" and largest == 1 and rank >= 2 ** _digits(dtype) // 2:
        return torch.zeros(period, dtype=dtype)  # more ranks than can be added up exactly
    if kind in ("normal", "positive"):
        x = torch.randn(period, generator=own)
        return (x.abs() if kind == "positive" else x).to(dtype)
    signed = dtype.is_signed
    if kind == "prod":  # 1 or -1, and a factor of 2 on one rank
        sign = (
            torch.randint(0, 2, (period,), generator=own) * 2 - 1 if signed else torch.ones(period, dtype=torch.int64)
        )
        return (sign * (1 + (torch.arange(period) % n == rank))).to(dtype)
    least = -largest if signed else 0
    if kind == "sum":
        return torch.randint(least, largest + 1, (period,), generator=own).to(dtype)
    # The average is a number that all ranks share: what rank r adds to it, rank n - 1 - r takes away.
    shared = torch.Generator().manual_seed(seed * 65536 + 65535)
    base = torch.randint(-(largest // 2), largest // 2 + 1, (period,), generator=shared)
    pair = torch.Generator().manual_seed(seed * 65536 + 32768 + min(rank, n - 1 - rank))
    away = torch.randint(-(largest // 2), largest // 2 + 1, (period,), generator=pair)
    side = (2 * rank < n - 1) - (2 * rank > n - 1)  # 0 in the middle
    return (base + side * away).to(dtype)
