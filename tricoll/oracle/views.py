"""A tensor as the numbers that are combined, moved or compared: on the CPU, complex ones as pairs of reals."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .steps import cast


def plain(x: Tensor) -> Tensor:
    """The same elements, conjugated and negated not only on paper."""
    return x.detach().cpu().resolve_conj().resolve_neg()


def parts(x: Tensor) -> Tensor:
    """The same, and complex numbers as two reals in a last dimension."""
    return torch.view_as_real(plain(x)) if x.is_complex() else plain(x)


def flat(x: Tensor) -> Tensor:
    """In one dimension, what is combined: truth values are bytes of 0 and 1."""
    line = parts(x).reshape(-1)
    return line.view(torch.uint8) if x.dtype == torch.bool else line


def unflat(total: Tensor, out: torch.dtype, shape: Sequence[int]) -> Tensor:
    """The way back: ``total`` cast to ``out``, in the shape that the inputs had."""
    if out.is_complex or out == torch.bool:
        return total.view(out).view(tuple(shape))
    return cast(total, out).view(tuple(shape))
