"""What a tensor that is given to a collective may be: its dtype, its place in memory, and what is done to it."""

from __future__ import annotations

from typing import Any

import torch

from .kernels.jit import TRITON

DTYPES = {str(d).removeprefix("torch."): d for d in TRITON}
SHORT = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "half": "float16",
}
OPS = ("sum", "avg")


def as_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """A dtype given as an object or a name, short names such as "bf16" included."""
    if isinstance(dtype, torch.dtype):
        return dtype
    name = SHORT.get(dtype, dtype) if isinstance(dtype, str) else None
    if name not in DTYPES:
        raise TypeError(f"{dtype!r} is not a dtype that can be sent: one of {sorted(DTYPES)}")
    return DTYPES[name]


def as_op(op: Any) -> str:
    """A reduction given as a string or a ``torch.distributed.ReduceOp``."""
    name = op if isinstance(op, str) else getattr(op, "name", None) or str(op).rpartition(".")[2]
    name = {"mean": "avg", "average": "avg"}.get(name.lower(), name.lower())
    if name not in OPS:
        raise TypeError(f"op is {op!r}; it can be one of {OPS}")
    return name


def can_convert(a: torch.dtype, b: torch.dtype) -> bool:
    """Whether kernels cast one dtype to another: among floats of at most 32 bits, or not at all."""
    small = (torch.float32, torch.float16, torch.bfloat16)
    return a == b or (a in small and b in small)


def plain(t: torch.Tensor) -> torch.Tensor:
    """The tensor's values as one contiguous range of memory: itself if it is one, else a copy."""
    return t.detach().resolve_neg().contiguous().view(-1)


def check_overlap(collective: str, x: torch.Tensor, out: torch.Tensor | None, rank: int) -> None:
    result = x if out is None else out
    extent = 1
    for stride, size in sorted(zip(result.stride(), result.shape, strict=True)):
        if size > 1 and result.numel():
            if stride < extent:
                raise ValueError(
                    f"the result's elements share memory (shape {tuple(result.shape)}, strides {result.stride()}), "
                    "so it cannot be written: give a contiguous tensor"
                )
            extent = stride * (size - 1) + extent
    if out is None or not x.numel() or not out.numel():
        return
    first, last = (out, x) if collective == "all_gather" else (x, out)
    places = {"all_reduce": 0, "reduce_scatter": rank * out.nbytes, "all_gather": rank * x.nbytes}
    same = last.data_ptr() == first.data_ptr() + places[collective] and x.dtype == out.dtype
    if (
        not (same and x.is_contiguous() and out.is_contiguous())
        and _span(x)[0] < _span(out)[1]
        and _span(out)[0] < _span(x)[1]
    ):
        raise ValueError("x and out overlap in memory: give the same tensor (or out=None), or separate ones")


def _span(t: torch.Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()
