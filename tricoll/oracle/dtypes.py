"""Which types there are, what they can be reduced with, and which convert to which."""

from __future__ import annotations

import torch

SMALL_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
FLOATS = (*SMALL_FLOATS, torch.float64)  # any small one converts to any other; all other types are sent as they are
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *INTEGERS, torch.bool, *COMPLEX)

FLOAT_OPS = ("sum", "avg", "min", "max", "prod", "premul_sum")
INTEGER_OPS = ("sum", "prod", "min", "max", "and", "or", "xor")
COMPLEX_OPS = ("sum", "avg")


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


def chosen(dtype: torch.dtype, wire: torch.dtype | None, out: torch.dtype | None) -> tuple[torch.dtype, torch.dtype]:
    """The dtypes of wire and output for inputs of ``dtype``, which is what None stands for.

    Raises:
        TypeError: there is no such conversion.
    """
    wire, out = wire or dtype, out or dtype
    if dtype not in DTYPES:
        raise TypeError(f"{dtype} cannot be sent; it can be one of {DTYPES}")
    for other in (wire, out):
        if not converts(dtype, other):
            raise TypeError(f"{dtype} does not convert to {other}: only {SMALL_FLOATS} convert, to one another")
    return wire, out
