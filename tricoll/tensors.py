"""What a tensor that is given to a collective may be: its dtype, its place in memory, and what is done to it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .kernels.jit import TRITON

COMPLEX = {torch.complex64: torch.float32, torch.complex128: torch.float64}
DTYPES = {str(d).removeprefix("torch."): d for d in (*TRITON, torch.bool, *COMPLEX)}
SHORT = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "half": "float16",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "float8_e4m3": "float8_e4m3fn",
}
SMALL_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
ARITHMETIC = ("sum", "prod", "min", "max")
BITWISE = ("and", "or", "xor")
OPS = (*ARITHMETIC, "avg", "premul_sum", *BITWISE)
BOOLEAN = {"sum": "or", "max": "or", "or": "or", "prod": "and", "min": "and", "and": "and", "xor": "xor"}
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Op(NamedTuple):
    """A reduction. ``scale`` is what premul_sum multiplies every rank's values by before they are added."""

    name: str
    scale: float = 1.0

    def __str__(self) -> str:
        return f"{self.name}({self.scale!r})" if self.name == "premul_sum" else self.name


def premul_sum(scale: float) -> Op:
    """The sum of the ranks' values, each multiplied by ``scale`` first: in the kernel, in FP32 (float64: in FP64)."""
    return Op("premul_sum", float(scale))


def as_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """A dtype given as an object or a name, short names such as "bf16" included."""
    if isinstance(dtype, torch.dtype):
        return dtype
    name = SHORT.get(dtype, dtype) if isinstance(dtype, str) else None
    if name not in DTYPES:
        raise TypeError(f"{dtype!r} is not a dtype that can be sent: one of {sorted(DTYPES)}")
    return DTYPES[name]


def as_op(op: Any) -> Op:
    """A reduction given as a string, a :func:`premul_sum`, or a ``torch.distributed.ReduceOp``."""
    if isinstance(op, Op):
        return op
    name = op if isinstance(op, str) else getattr(op, "name", None) or str(op).rpartition(".")[2]
    name = {"mean": "avg", "average": "avg", "product": "prod", "band": "and", "bor": "or", "bxor": "xor"}.get(
        name.lower(), name.lower()
    )
    if name == "premul_sum":
        raise TypeError("premul_sum needs its factor: op=tricoll.premul_sum(0.5)")
    if name not in OPS:
        raise TypeError(f"op is {op!r}; it can be one of {OPS}")
    return Op(name)


def check_op(op: Op, dtype: torch.dtype) -> None:
    """TypeError unless tensors of this dtype can be reduced so."""
    if dtype == torch.bool:
        can: tuple[str, ...] = tuple(BOOLEAN)
    elif dtype.is_complex:
        can = ("sum", "avg")
    elif dtype.is_floating_point:
        can = (*ARITHMETIC, "avg", "premul_sum")
    else:
        can = (*ARITHMETIC, *BITWISE)
    if op.name not in can:
        hint = ": convert to a float for an average" if op.name == "avg" else ""
        raise TypeError(f"{dtype} cannot be reduced with {op.name!r}; it can with {can}{hint}")


def can_convert(a: torch.dtype, b: torch.dtype) -> bool:
    """Whether kernels cast one dtype to another: among floats of at most 32 bits, or not at all."""
    return a == b or (a in SMALL_FLOATS and b in SMALL_FLOATS)


def plain(t: torch.Tensor) -> torch.Tensor:
    """The tensor's values as one contiguous range of memory: itself if it is one, else a copy."""
    return t.detach().resolve_conj().resolve_neg().contiguous().view(-1)


def reals(t: torch.Tensor) -> torch.Tensor:
    """A contiguous range as what kernels reduce: complex numbers as pairs of reals, bool as bytes."""
    if t.dtype in COMPLEX:
        return torch.view_as_real(t).view(-1)
    return t.view(torch.uint8) if t.dtype == torch.bool else t


def patterns(t: torch.Tensor) -> torch.Tensor:
    """A contiguous range as integers of the same size, for kernels that only move it: no bit of a NaN changes."""
    t = reals(t)
    return t.view(INTEGERS[t.dtype.itemsize])


def check_writable(result: torch.Tensor) -> None:
    """ValueError if elements of the result share memory."""
    extent = 1
    for stride, size in sorted(zip(result.stride(), result.shape, strict=True)):
        if size > 1 and result.numel():
            if stride < extent:
                raise ValueError(
                    f"the result's elements share memory (shape {tuple(result.shape)}, strides {result.stride()}), "
                    "so it cannot be written: give a contiguous tensor"
                )
            extent = stride * (size - 1) + extent


def check_overlap(x: torch.Tensor, out: torch.Tensor, distance: int | None) -> None:
    """ValueError if x and out overlap in memory, unless out begins ``distance`` elements after x, both contiguous."""
    if not x.numel() or not out.numel():
        return
    same = (
        distance is not None and out.data_ptr() == x.data_ptr() + distance * x.element_size() and x.dtype == out.dtype
    )
    if (
        not (same and x.is_contiguous() and out.is_contiguous())
        and _span(x)[0] < _span(out)[1]
        and _span(out)[0] < _span(x)[1]
    ):
        raise ValueError("x and out overlap in memory: give the same tensor (or out=None), or separate ones")


def _span(t: torch.Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()
