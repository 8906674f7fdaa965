"""What a reduction can count of the values that pass through it, instead of another pass over memory.

A program's tally is four FP64 numbers: the sum of the squares of this rank's own values and how many of them are not
finite, and the same of the results that this rank completes. Kernels add to it and never clear it. Over all ranks,
every value and every result is counted once, so the sums over ranks are those of the whole tensor.

Squares are added in the type of the reduction over a piece, and in FP64 over pieces. They are infinite where a square
leaves that type: for FP32, from 1.8e19 on.
"""

from typing import NamedTuple

import torch
import triton.language as tl
from triton.runtime import interpreter

from .jit import jit, program
from .shmem import channel

WORDS = 4  # a program
OWN, RESULTS = 0, 2  # where in them


class Sums(NamedTuple):
    """Sums of squares and numbers of odd values, one for four elements of a block."""

    squares: object
    odd: object


def _sum(v, axis):
    # For the interpreter, which does not have tl.sum outside of kernels of its own.
    array = v.handle.data.sum(axis, keepdims=not axis, dtype=v.handle.data.dtype)
    shape = list(array.shape) if axis else []
    handle = interpreter.TensorHandle(array.reshape(-1), v.dtype.scalar)
    return tl.tensor(handle, tl.block_type(v.dtype.scalar, shape) if axis else v.dtype.scalar)


@jit(cpu=_sum)
def total(v, axis: tl.constexpr):
    """The sum along the last axis."""
    return tl.sum(v, axis)


@jit
def nothing(dtype, BLOCK: tl.constexpr):
    """The sums of nothing, of values that are reduced as those of ``dtype`` are."""
    squares = tl.full([BLOCK // 4], 0.0, tl.float64 if dtype == tl.float64 else tl.float32)
    return Sums(squares, tl.full([BLOCK // 4], 0, tl.int32))


@jit
def count(sums, v, mask):
    """The sums with those of ``v`` where ``mask``."""
    # What a masked load leaves behind the mask is anything on a GPU.
    # Four elements that lie side by side are one thread's: their sum takes a quarter of the registers, and no exchange.
    v = tl.reshape(tl.where(mask, v, 0.0), [v.shape[0] // 4, 4])
    return Sums(sums.squares + total(v * v, 1), sums.odd + total(((v - v) != 0.0).to(tl.int32), 1))


@jit
def add(tally, at, sums):
    """Add all elements of the sums to the tally."""
    # Every thread reads the word and the first one writes it: that one reads what it wrote itself last time, and what
    # the others may have read too early is not used.
    here = tally + (4 * channel() + at)
    tl.store(here, tl.load(here) + total(sums.squares, 0).to(tl.float64))
    tl.store(here + 1, tl.load(here + 1) + total(sums.odd, 0).to(tl.float64))


def add_(tally, at: int, v: torch.Tensor) -> None:
    """The same for a whole tensor in PyTorch, if there is a tally."""
    if tally is None:
        return
    here = (tally + (WORDS * program().channel + at)).view(2)
    v = v if v.dtype == torch.float64 else v.float()
    squares = float(torch.dot(v, v))
    here[0] += squares
    if squares - squares != 0:  # seldom: nothing is counted where the sum is finite
        here[1] += int((v - v).ne_(0).sum())
