"""What to feed collectives: values that break reductions, different on every rank, from a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import oracle

KINDS = ("small", "random", "special", "ties", "cancelling", "huge", "bits", "mixed")
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)


def make_inputs(
    world_size: int,
    shape: Sequence[int],
    dtype: torch.dtype,
    kind: str = "mixed",
    seed: int = 0,
    sizes: Sequence[int] | None = None,
) -> list[Tensor]:
    """One tensor a rank, all different.

    Args:
        world_size: ranks.
        dtype: theirs.
        kind: "small" integers, whose sum over up to 8 ranks is exact in any order and in the dtype itself; "random",
            over twelve orders of magnitude (float8: four); "special", zeros of both signs, infinities, NaN, subnormals
            and the ends of the range; "ties", half way between two bfloat16 or float16, or next to it; "cancelling",
            large and of alternating sign; "huge", near overflow; "bits", anything; or "mixed", each element of another
            kind.
        seed: the same seed gives the same values.
        sizes: rows of dimension 0 on each rank, in place of ``shape[0]``.
    """
    rows = [list(shape[:1])] * world_size if sizes is None else [[size] for size in sizes]
    return [_values((*rows[rank], *shape[1:]), dtype, kind, seed, rank) for rank in range(world_size)]


def _values(shape: tuple[int, ...], dtype: torch.dtype, kind: str, seed: int, rank: int) -> Tensor:
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it can be one of {KINDS}")
    if dtype.is_complex:
        return torch.view_as_complex(_values((*shape, 2), oracle.accumulator(dtype), kind, seed, rank))
    # Kinds must not share random numbers, or "mixed" would choose an element's kind by its value.
    own = torch.Generator().manual_seed((seed * 4096 + rank) * len(KINDS) + KINDS.index(kind))
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=own).to(dtype)
    if kind == "mixed":
        each = [oracle.bits(_values(shape, dtype, k, seed, rank)) for k in KINDS[:-1]]
        choice = torch.randint(0, len(each), shape, generator=own)
        return torch.stack(each).gather(0, choice[None])[0].view(dtype)
    if kind == "small":
        return _small(shape, dtype, own)
    if kind == "special":
        table = torch.tensor(_specials(dtype), dtype=dtype)
        return table[torch.randint(0, len(table), shape, generator=own)]
    if kind == "bits" or not dtype.is_floating_point:
        integer = oracle.BITS[dtype.itemsize]
        ends = torch.iinfo(integer)
        return torch.randint(ends.min, ends.max, shape, generator=own, dtype=integer).view(dtype)
    if kind == "cancelling":
        return _cancelling(shape, dtype, own, torch.Generator().manual_seed(seed), rank)
    return {"random": _random, "ties": _ties, "huge": _huge}[kind](shape, dtype, own)


def _small(shape: tuple[int, ...], dtype: torch.dtype, own: torch.Generator) -> Tensor:
    most = {torch.float8_e4m3fn: 2, torch.float8_e5m2: 1}.get(dtype, 8)
    return torch.randint(0 if dtype == torch.uint8 else -most, most + 1, shape, generator=own).to(dtype)


def _specials(dtype: torch.dtype) -> list[float]:
    if not dtype.is_floating_point:
        whole = torch.iinfo(dtype)
        return [0, 1, 2, whole.min, whole.max, whole.max - 1]
    info = torch.finfo(dtype)
    least = info.tiny * info.eps
    positive = [0.0, 1.0, 1 + info.eps, info.eps / 2, info.tiny, info.tiny - least, least, 2 * least, info.max]
    return [*positive, math.inf, *(-v for v in positive), -math.inf, math.nan]


def _random(shape: tuple[int, ...], dtype: torch.dtype, own: torch.Generator) -> Tensor:
    x = torch.randn(shape, generator=own, dtype=torch.float64)
    orders = (-2, 3) if dtype in EIGHT_BITS else (-6, 7)
    return (x * 10.0 ** torch.randint(*orders, shape, generator=own)).to(dtype)


def _ties(shape: tuple[int, ...], dtype: torch.dtype, own: torch.Generator) -> Tensor:
    # An odd number of halves of a unit in the last place, of the type that keeps fewest bits here or there.
    digits = torch.randint(8, 12, shape, generator=own)
    x = 1 + torch.randint(0, 2048, shape, generator=own) / 2.0**digits
    off = torch.randint(-1, 2, shape, generator=own) * 2.0**-23
    scale = 2.0 ** torch.randint(-4, 5, shape, generator=own)
    return ((x + off) * scale).to(dtype)


def _cancelling(
    shape: tuple[int, ...], dtype: torch.dtype, own: torch.Generator, everyone: torch.Generator, rank: int
) -> Tensor:
    large = torch.randn(shape, generator=everyone)
    large = large * 2.0 ** torch.randint(0, 6 if dtype in EIGHT_BITS else 14, shape, generator=everyone)
    return (large * (-1) ** rank + torch.randn(shape, generator=own)).to(dtype)


def _huge(shape: tuple[int, ...], dtype: torch.dtype, own: torch.Generator) -> Tensor:
    x = 0.2 + 0.8 * torch.rand(shape, generator=own, dtype=torch.float64)
    sign = torch.randint(0, 2, shape, generator=own) * 2 - 1
    return (x * sign * torch.finfo(dtype).max).to(dtype)
