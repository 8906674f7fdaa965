"""Running a kernel on a CPU: what the fabrics without a GPU share.

A :class:`CpuProgram` is one channel of one rank. It stands behind the device functions of ``kernels/shmem.py``; the
arguments that it gets from them are Python's ints and :class:`Pointer` in a direct run, and ``tl.tensor`` in an
interpreted one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton._C.libtriton import interpreter as native
from triton.runtime import interpreter

from tricoll.kernels import shmem
from tricoll.kernels.jit import Kernel, Pointer

from .base import Counters, Heap

_ONE = np.ones(1, dtype=np.bool_)
_ZERO = np.zeros(1, dtype=np.int64)


def tiles(choice: str | None = None) -> str:
    """How the bulk loops run: "torch" (the default) or "triton", which also interprets all scalar code."""
    choice = choice or os.environ.get("TRICOLL_TILES") or "torch"
    if choice not in ("torch", "triton"):
        raise ValueError(f"TRICOLL_TILES is {choice!r}; it can be 'torch' or 'triton'")
    return choice


def load_word(address: int) -> int:
    """Read a word that another process may write, with acquire semantics."""
    where = np.array([address], dtype=np.uint64)
    return int(native.atomic_rmw(native.RMW_OP.ADD, where, _ZERO, _ONE, native.MEM_SEMANTIC.ACQUIRE)[0])


def store_word(address: int, word: int) -> None:
    """Write a word that another process may read, with release semantics."""
    where, what = np.array([address], dtype=np.uint64), np.array([word], dtype=np.int64)
    native.atomic_rmw(native.RMW_OP.XCHG, where, what, _ONE, native.MEM_SEMANTIC.RELEASE)


def peek_word(address: int) -> int:
    """Read a word without ordering anything: for polling."""
    return ctypes.c_int64.from_address(address).value


def poke_word(address: int, word: int) -> None:
    """Write a word without ordering anything: where all that read it are in this thread."""
    ctypes.c_int64.from_address(address).value = word


_NUMPY = {tl.int64: np.int64, tl.int32: np.int32, tl.float64: np.float64}


def _scalar(value: float, dtype: tl.dtype = tl.int64) -> tl.tensor:
    array = np.array([value], dtype=_NUMPY[dtype])
    return tl.tensor(interpreter.TensorHandle(array, dtype), dtype)


def integer(value: Any) -> int:
    """A scalar argument of a device function as an int."""
    return value if isinstance(value, int) else int(np.asarray(value.handle.data).reshape(-1)[0])


def address(pointer: Any) -> int:
    """A pointer argument of a device function as an address."""
    return pointer.address if isinstance(pointer, Pointer) else integer(pointer)


class CpuProgram:
    """One channel of one rank. Subclasses say how words and data reach other ranks."""

    def __init__(self, channel: int, rank: int, heaps: list[torch.Tensor], interpreted: bool, counters: Counters):
        self.channel, self.rank, self.heaps, self.interpreted, self.counters = (
            channel,
            rank,
            heaps,
            interpreted,
            counters,
        )
        self._scratch: dict[torch.dtype, torch.Tensor] = {}

    # Own memory.

    def load(self, pointer: Any) -> Any:
        word = peek_word(address(pointer))
        return _scalar(word) if self.interpreted else word

    def store(self, pointer: Any, word: Any) -> None:
        store_word(address(pointer), integer(word))

    def barrier(self) -> None:
        """A program is one thread here."""

    def read(self, pointer: Pointer, count: int) -> torch.Tensor:
        return pointer.view(count)

    def write(self, pointer: Pointer, count: int) -> torch.Tensor:
        return pointer.view(count)

    def scratch(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory that holds nothing from one call to the next."""
        have = self._scratch.get(dtype)
        if have is None or have.numel() < count:
            have = self._scratch[dtype] = torch.empty(count, dtype=dtype)
        return have[:count]

    # Other ranks' memory.

    def peer(self, symmetric: Any, pe: Any) -> Any:
        pe = integer(pe)
        distance = self.heaps[pe].data_ptr() - self.heaps[self.rank].data_ptr()
        if self.interpreted:
            return symmetric + distance // (symmetric.dtype.element_ty.primitive_bitwidth // 8)
        return self.peer_of(symmetric, pe)

    def peer_of(self, symmetric: Pointer, pe: int) -> Pointer:
        offset = symmetric.address - self.heaps[self.rank].data_ptr()
        return Pointer(self.heaps[pe], offset, symmetric.dtype, None if pe == self.rank else pe)

    def elsewhere(self, symmetric: Any, pe: int) -> int:
        """The address of rank ``pe``'s copy of a symmetric address."""
        return address(symmetric) - self.heaps[self.rank].data_ptr() + self.heaps[pe].data_ptr()

    def store_signal(self, flag: Any, word: Any, nbytes: Any) -> None:
        raise NotImplementedError

    def put_signal(self, dest: Any, source: Any, nbytes: Any, flag: Any, word: Any, pe: Any) -> None:
        raise NotImplementedError

    def signal(self, flag: Any, word: Any, pe: Any) -> None:
        raise NotImplementedError

    def wait(self, flag: Any, generation: Any, abort: Any, epoch: Any, timeout: Any) -> Any:
        wanted, where, told, until = integer(generation), address(flag), address(abort), integer(epoch)

        seen, stop = ctypes.c_int64.from_address(where), ctypes.c_int64.from_address(told)

        def over() -> bool:
            return seen.value >> 24 >= wanted or 0 < stop.value >> 16 <= until

        if not over() and not self.block(over, integer(timeout) / 1e9):
            word = shmem.TIMED_OUT
        else:
            word = self.acquire(where)
            if word >> 24 < wanted:
                word = shmem.ABORTED
            self.seen(where)
        return _scalar(word) if self.interpreted else word

    def store_words(self, dest: Pointer, words: torch.Tensor, nbytes: int) -> None:
        """Store words of data and flag in a mapped peer's memory; ``nbytes``: of data, -1 if counted before."""
        raise NotImplementedError

    def scatter_words(self, pointers: Any, words: Any, mask: Any, nbytes: Any) -> None:
        """:meth:`store_words` from an interpreted kernel: a block of them, with a mask."""
        count = int(mask.handle.data.sum())
        start = int(pointers.handle.data[0])
        pe = next(r for r, h in enumerate(self.heaps) if h.data_ptr() <= start < h.data_ptr() + h.numel())
        dest = Pointer(self.heaps[pe], start - self.heaps[pe].data_ptr(), tl.pointer_type(tl.int64), pe)
        self.store_words(dest, torch.from_numpy(words.handle.data[:count].copy()), integer(nbytes))

    def await_words(self, source: Any, count: Any, flag: Any, abort: Any, epoch: Any, timeout: Any) -> tuple[Any, Any]:
        """Wait for ``count`` words with the flag. Returns 0, or why not as a status block says it, and a flag seen."""
        where, told, until, wanted = address(source), address(abort), integer(epoch), integer(flag)
        words = np.ctypeslib.as_array((ctypes.c_int64 * integer(count)).from_address(where))
        flags = lambda: (words >> 32) & 0xFFFFFFFF

        def wrong() -> bool:
            seen = flags()
            return bool(((seen >> 16 == wanted >> 16) & (seen != wanted)).any())

        over = lambda: bool((flags() == wanted).all()) or 0 < peek_word(told) >> 16 <= until or wrong()
        code = 0
        if not over() and not self.block(over, integer(timeout) / 1e9):
            code = -shmem.TIMED_OUT
        elif wrong():
            code = 3
        elif not (flags() == wanted).all():
            code = -shmem.ABORTED
        else:
            self.seen(where)
        seen = int(flags()[flags() != wanted].max(initial=0))
        return (_scalar(code), _scalar(seen)) if self.interpreted else (code, seen)

    def multicast_sum(self, at: Any, n: Any) -> None:
        """What the switch does, in rank order: the symmetric address stands for the multicast one."""
        if not isinstance(at, Pointer):
            memory = self.heaps[self.rank]
            at = Pointer(memory, integer(at) - memory.data_ptr(), at.dtype)
        count = integer(n)
        places = [self.peer_of(at, pe) for pe in range(len(self.heaps))]
        shares = [place.view(count) for place in places]
        total = shares[0].to(torch.float32, copy=True)
        for share in shares[1:]:
            total.add_(share)
        for place in places:
            self.write(place, count).copy_(total)

    def acquire(self, flag: int) -> int:
        """Read the word at ``flag``, and after it what its sender wrote before it."""
        return load_word(flag)

    def block(self, over: Callable[[], bool], timeout: float) -> bool:
        """Let others run until ``over()``; False if it does not come within ``timeout`` seconds."""
        raise NotImplementedError

    def seen(self, flag: int) -> None:
        """The word at ``flag`` has been waited for."""


class _Patched:
    """How many interpreted runs there are now, in all threads, and how to undo what they share."""

    lock = threading.Lock()
    runs = 0
    scope: Any = None


@contextlib.contextmanager
def interpreting(kernel: Kernel) -> Iterator[None]:
    """Put Triton's language into the interpreter's hands, for all device functions called inside.

    Several threads may be inside at once. The interpreter has no state of its own that a kernel without a grid uses,
    so all that they must agree on is when to take the language back: when the last one is through. They cannot take
    turns, one kernel after another: one may wait for a rank whose kernel would wait for its turn there.
    """
    with _Patched.lock:
        if not _Patched.runs:
            _Patched.scope = interpreter._patch_lang(kernel.fn)
        _Patched.runs += 1
    try:
        yield
    finally:
        with _Patched.lock:
            _Patched.runs -= 1
            if not _Patched.runs:
                _Patched.scope.restore()


def convert(kernel: Kernel, arguments: dict[str, Any], interpreted: bool) -> dict[str, Any]:
    """The arguments of a launch, as a direct or an interpreted run of the kernel wants them."""
    converted = {}
    for name, parameter in kernel.signature.parameters.items():
        value = arguments[name]
        if value is None or "constexpr" in str(parameter.annotation):
            converted[name] = value
        elif isinstance(value, torch.Tensor):
            converted[name] = interpreter._implicit_cvt(value.detach()) if interpreted else Pointer.to(value)
        else:
            converted[name] = _scalar(value, parameter.annotation) if interpreted else value
    return converted


def byte_heap(heap: Heap) -> torch.Tensor:
    """A heap as the byte tensor that pointers into it are made of."""
    return heap.words.view(torch.uint8)
