"""Casts and reduction operators, bit for bit those of ``torch.Tensor.to`` (a NaN stays a NaN; its payload is free).

Floats of 8 and 16 bits are reduced in FP32; every other type in itself, and integers wrap. The PyTorch twins at the end
do the same for whole tensors.
"""

from typing import NamedTuple

import torch
import triton.language as tl

from .jit import jit
from .shmem import on_cpu


class Reduction(NamedTuple):
    """The numbers of a reduction. Its operator, OP, is "sum", "avg", "min", "max", "prod", "premul_sum", "and", "or" or
    "xor", and goes beside it, since it is known at compile time."""

    world: object  # what an average divides by
    scale: object  # what premul_sum multiplies every rank's values by
    tally: object  # where values are counted, see tally.py; None: they are not


# Casts.


@jit
def _from_e4m3(v):
    # Exponent and mantissa are those of a float with another bias, subnormals included.
    u = v.to(tl.uint8, bitcast=True).to(tl.uint32)
    r = ((u & 0x7F) << 20).to(tl.float32, bitcast=True) * 2.0**120
    r = tl.where((u & 0x7F) == 0x7F, float("nan"), r)
    return (r.to(tl.uint32, bitcast=True) | ((u & 0x80) << 24)).to(tl.float32, bitcast=True)


@jit
def _from_e5m2(v):
    return (v.to(tl.uint8, bitcast=True).to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)


@jit
def widen(v):
    """``v`` in the type that it is reduced in. Exact."""
    if v.dtype == tl.bfloat16:
        if on_cpu():  # the interpreter's own cast is wrong for some versions of Triton
            r = (v.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
        else:
            r = v.to(tl.float32)
    elif v.dtype == tl.float16:
        r = v.to(tl.float32)
    elif v.dtype == tl.float8e4nv:
        r = _from_e4m3(v)
    elif v.dtype == tl.float8e5:
        r = _from_e5m2(v)
    else:
        r = v
    return r


@jit
def _bf16_bits(v):
    # Round to nearest even by hand: the interpreter's cast of FP32 to BF16 truncates (Triton 3.6 to 3.9).
    u = v.to(tl.uint32, bitcast=True)
    r = (u + 0x7FFF + ((u >> 16) & 1)) >> 16
    r = tl.where(v != v, (u >> 16) | 0x40, r)
    return r.to(tl.uint16).to(tl.bfloat16, bitcast=True)


@jit
def _fp8_bits(v, DTYPE: tl.constexpr, M: tl.constexpr, BIAS: tl.constexpr, MAGIC: tl.constexpr, OVER: tl.constexpr):
    # Round FP32 to nearest even with M bits of mantissa, as PyTorch 2.13 does, by hand also on GPUs, whose instruction
    # knows nothing but saturation. OVER is what is too large: infinity, or the largest number if there is no infinity.
    u = v.to(tl.uint32, bitcast=True)
    size = u & 0x7FFFFFFF
    normal = (size - ((127 - BIAS) << 23) + ((1 << (22 - M)) - 1) + ((size >> (23 - M)) & 1)) >> (23 - M)
    # Below the smallest normal number: adding MAGIC, whose last bit is the smallest subnormal, rounds to a multiple.
    small = (size.to(tl.float32, bitcast=True) + MAGIC).to(tl.uint32, bitcast=True) - ((151 - BIAS - M) << 23)
    r = tl.where(size < ((128 - BIAS) << 23), small, tl.minimum(normal, OVER))
    r = tl.where(size > 0x7F800000, 0x7F, r)
    return (r | ((u >> 24) & 0x80)).to(tl.uint8).to(DTYPE, bitcast=True)


@jit
def narrow(v, DTYPE: tl.constexpr):
    """``v`` rounded to nearest even in ``DTYPE``."""
    if v.dtype == DTYPE:
        r = v
    elif DTYPE == tl.float8e4nv:
        r = _fp8_bits(v, DTYPE, 3, 7, 2.0**14, 0x7E)
    elif DTYPE == tl.float8e5:
        r = _fp8_bits(v, DTYPE, 2, 15, 2.0**7, 0x7C)
    elif on_cpu() and DTYPE == tl.bfloat16:
        r = _bf16_bits(v)
    else:
        r = v.to(DTYPE)
    return r


# Operators.


@jit
def enter(v, red, OP: tl.constexpr):
    """A rank's own values as they enter the reduction."""
    v = widen(v)
    if OP == "premul_sum":
        v = v * red.scale.to(v.dtype)
    return v


@jit
def _ordered(a, b, MIN: tl.constexpr):
    # NaN if one is, and -0.0 < +0.0: what the hardware does, and the same in either order. NumPy, which is under the
    # interpreter, takes one of two zeros by their order.
    if MIN:
        r = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    else:
        r = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    if on_cpu() and a.dtype.is_floating():
        bits = tl.uint64 if a.dtype == tl.float64 else tl.uint32
        p, q = a.to(bits, bitcast=True), b.to(bits, bitcast=True)
        both = (p | q) if MIN else (p & q)
        r = tl.where(a == b, both.to(a.dtype, bitcast=True), r)
    return r


@jit
def combine(a, b, OP: tl.constexpr):
    """Two values, or partial results, in one. Both as :func:`enter` gives them."""
    if OP == "min":
        r = _ordered(a, b, True)
    elif OP == "max":
        r = _ordered(a, b, False)
    elif OP == "prod":
        r = a * b
    elif OP == "and":
        r = a & b
    elif OP == "or":
        r = a | b
    elif OP == "xor":
        r = a ^ b
    else:
        r = a + b
    return r


@jit
def finish(v, red, OP: tl.constexpr):
    """Turn the reduction over all ranks into the result, not rounded yet: an average divides, correctly rounded."""
    if OP == "avg" and v.dtype == tl.float32:
        r = tl.div_rn(v, red.world.to(tl.float32))  # a plain / is approximate in FP32, and only there
    elif OP == "avg":
        r = v / red.world.to(v.dtype)
    else:
        r = v
    return r


# The same for tensors.

BITS = {4: torch.int32, 8: torch.int64}


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The type that values of ``dtype`` are reduced in."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def scale_(v: torch.Tensor, red: Reduction, op: str) -> None:
    """In place: multiply by the scale of a premul_sum."""
    if op == "premul_sum":
        v.mul_(torch.full((1,), red.scale, dtype=v.dtype, device=v.device))


def combine_(total: torch.Tensor, v: torch.Tensor, op: str) -> None:
    """In place: ``total`` = combine(``total``, ``v``)."""
    if op in ("sum", "avg", "premul_sum"):
        total.add_(v if v.dtype.itemsize > 1 else v.to(total.dtype))
        return
    v = v.to(total.dtype)
    if op in ("min", "max"):
        order, both = (torch.minimum, torch.bitwise_or) if op == "min" else (torch.maximum, torch.bitwise_and)
        result = order(total, v)
        if v.dtype.is_floating_point:  # PyTorch takes one of two zeros by their order
            bits = BITS[v.dtype.itemsize]
            result = torch.where(total == v, both(total.view(bits), v.view(bits)).view(v.dtype), result)
        total.copy_(result)
    elif op == "prod":
        total.mul_(v)
    else:
        {"and": total.bitwise_and_, "or": total.bitwise_or_, "xor": total.bitwise_xor_}[op](v)


def finish_(total: torch.Tensor, red: Reduction, op: str) -> None:
    """In place: ``total`` = finish(``total``)."""
    if op == "avg":  # by a tensor: by a number, PyTorch may multiply by its reciprocal
        total.div_(torch.full((1,), red.world, dtype=total.dtype, device=total.device))
