"""How one source runs: compiled for a GPU, in Triton's interpreter, or directly by Python.

Every device function is decorated with :func:`jit` (Triton code) or :func:`primitive` (code that exists once for the
GPU and once for the CPU). On a GPU both are ordinary Triton. On a CPU a fabric binds a *program* (one channel of one
rank) with :func:`bind` and calls the kernel, which then runs in one of two ways:

* **interpreted**: scalars are ``tl.tensor`` and every statement goes through Triton's interpreter, which checks types
  and overflow. Exact, about 60 us a scalar operation.
* **direct**: the same text is called as the Python function that it is. Scalars are ints, pointers are
  :class:`Pointer`, and the bulk loop of ``tiles.py`` is replaced by its twin in PyTorch. The control flow (waits,
  slots, peers, order) is still the kernel's, at the price of Python.

For that, control code keeps to what means the same everywhere: ``+ - * // % << >> & |``, comparisons, ``min``, ``max``,
``if``, ``while`` and ``for ... in range`` on non-negative integers, named tuples, and calls of other device functions.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton.language as tl
from triton.language import core
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction


class _Here(threading.local):
    """What is bound in a thread: communicators run their kernels in threads of their own."""

    program: Any = None  # the CPU program that is running now; None on a GPU


_here = _Here()


def bind(program: Any) -> Any:
    """Make ``program`` the one that primitives act for, in this thread. Returns the one bound before."""
    previous, _here.program = _here.program, program
    return previous


def program() -> Any:
    """The CPU program that is running now, in this thread."""
    bound = _here.program
    if bound is None:
        raise RuntimeError("a device function was called outside a kernel: launch it through a fabric")
    return bound


TORCH = {  # Triton's element types as PyTorch's
    tl.float64: torch.float64,
    tl.float32: torch.float32,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
    tl.int64: torch.int64,
    tl.int32: torch.int32,
    tl.int16: torch.int16,
    tl.int8: torch.int8,
    tl.uint8: torch.uint8,
}
TRITON = {theirs: ours for ours, theirs in TORCH.items()}


class Pointer:
    """What a direct run passes for a pointer: a place in a byte tensor, and the type of the elements there.

    ``pe`` is the rank in whose memory it points when that is a mapped peer's, else None.
    """

    __slots__ = ("dtype", "memory", "offset", "pe")

    def __init__(self, memory: torch.Tensor, offset: int, dtype: tl.pointer_type, pe: int | None = None) -> None:
        self.memory = memory
        self.offset = offset
        self.dtype = dtype
        self.pe = pe

    @classmethod
    def to(cls, tensor: torch.Tensor) -> Pointer:
        """The address of the first element of a contiguous tensor."""
        # A lone element counts as contiguous whatever its stride.
        flat = tensor.detach().as_strided((tensor.numel(),), (1,))
        return cls(flat.view(torch.uint8), 0, tl.pointer_type(TRITON[tensor.dtype]))

    def __add__(self, elements: int) -> Pointer:
        nbytes = elements * (self.dtype.element_ty.primitive_bitwidth // 8)
        return Pointer(self.memory, self.offset + nbytes, self.dtype, self.pe)

    @property
    def address(self) -> int:
        return self.memory.data_ptr() + self.offset

    def view(self, count: int) -> torch.Tensor:
        """The ``count`` elements that start here, as a tensor on the same memory."""
        dtype = TORCH[self.dtype.element_ty]
        return self.memory[self.offset : self.offset + count * dtype.itemsize].view(dtype)


class Kernel(JITFunction):
    """A Triton function that can also be called from Python while a CPU program is bound.

    Numbers are not specialised, neither by value nor by divisibility, so that a kernel has one binary for each set of
    dtypes, pointer alignments and constexprs: few enough to compile ahead of time.
    """

    def __init__(self, fn: Callable, cpu: Callable | None = None, twin: Callable | None = None) -> None:
        parameters = inspect.signature(fn).parameters.values()
        numbers = [p.name for p in parameters if str(p.annotation).startswith(("int", "fp"))]
        super().__init__(fn, do_not_specialize=numbers)
        self.cpu = cpu
        self.twin = cpu or twin or fn

    @property
    def cache_key(self) -> str:
        """What Triton's cache is looked up by: with all of the device code, since its own key leaves primitives out."""
        return super().cache_key + _sources()

    @functools.cached_property
    def interpreted(self) -> Callable:
        """The function with its assignments rewritten the way Triton's interpreter wants them."""
        return self.cpu or interpreter.InterpretedFunction(self.fn).rewrite()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        running = _here.program or program()
        return (self.interpreted if running.interpreted else self.twin)(*args, **kwargs)


@functools.cache
def _sources() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def jit(fn: Callable | None = None, *, cpu: Callable | None = None, twin: Callable | None = None) -> Any:
    """Decorate a device function written in Triton.

    ``cpu`` takes its place whenever the kernel runs on a CPU, ``twin`` only when it runs directly.
    """
    return Kernel(fn, cpu, twin) if fn is not None else functools.partial(Kernel, cpu=cpu, twin=twin)


def primitive(cpu: Callable) -> Callable:
    """Decorate the GPU half of a device function whose CPU half is ``cpu``.

    The GPU half is a Triton builtin (it gets ``_semantic``); ``cpu`` gets the same arguments without it.
    """

    def decorate(gpu: Callable) -> Callable:
        @functools.wraps(gpu)
        def call(*args: Any, _semantic: Any = None, **kwargs: Any) -> Any:
            return cpu(*args, **kwargs) if _semantic is None else gpu(*args, _semantic=_semantic, **kwargs)

        setattr(call, core.TRITON_BUILTIN, True)
        return call

    return decorate
