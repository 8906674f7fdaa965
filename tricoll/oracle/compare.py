"""When two results are the same."""

from __future__ import annotations

import torch
from torch import Tensor

from .dtypes import COMPLEX, FLOATS
from .views import parts

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of an element


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
        different &= ~(parts(a).isnan() & parts(b).isnan())
    return different.any(-1) if a.is_complex() else different


def bits(t: Tensor) -> Tensor:
    """The elements as integers of the same size, on the CPU; complex numbers as two, in a last dimension."""
    return parts(t).contiguous().view(BITS[parts(t).element_size()])
