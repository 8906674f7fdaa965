"""Casts and reduction operators, bit for bit those of ``torch.Tensor.to`` (a NaN stays a NaN; its payload is free).

16-bit floats are added in FP32; every other type is added in itself, and integers wrap.
"""

import triton.language as tl

from .jit import jit
from .shmem import on_cpu


@jit
def widen(v):
    """``v`` in the type that it is added in. Exact."""
    if v.dtype == tl.bfloat16:
        if on_cpu():  # the interpreter's own cast is wrong for some versions of Triton
            r = (v.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
        else:
            r = v.to(tl.float32)
    elif v.dtype == tl.float16:
        r = v.to(tl.float32)
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
def narrow(v, DTYPE: tl.constexpr):
    """``v`` rounded to nearest even in ``DTYPE``."""
    if v.dtype == DTYPE:
        r = v
    elif on_cpu() and DTYPE == tl.bfloat16:
        r = _bf16_bits(v)
    else:
        r = v.to(DTYPE)
    return r


@jit
def finish(v, world, OP: tl.constexpr):
    """Turn the sum over all ranks into the result, before it is rounded: the average divides, correctly rounded."""
    if OP == "avg" and v.dtype == tl.float32:
        r = tl.div_rn(v, world.to(tl.float32))  # a plain / is approximate in FP32, and only there
    elif OP == "avg":
        r = v / world.to(v.dtype)
    else:
        r = v
    return r
