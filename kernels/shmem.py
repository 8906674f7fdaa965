"""The device's one-sided API, in OpenSHMEM's words. Everything that leaves a channel goes through this file.

On a GPU these are NVSHMEM calls and system-scope atomics. On a CPU they are calls of the program that the fabric has
bound (:class:`tricoll.fabric.base.Program`). A *word* is a 64-bit flag; ``bases`` is the table of the addresses at
which the peers' heaps are mapped here.

Two rules of the memory model are used everywhere (NVSHMEM's documentation, "Memory model" and "Signaling"):
a put-with-signal orders its own data before its own signal and nothing else, and a word written with ``signal`` or
``put_signal`` may only be read with ``signal_fetch`` and ``signal_wait_until``.
"""

import triton.language as tl
from triton.language import core
from triton.language.extra.cuda import utils as cuda

from .jit import Pointer, jit, primitive, program

TIMED_OUT = -1  # what wait_until returns instead of a word
ABORTED = -2


def _extern(symbol, arguments, result, signature, semantic):
    """Call an NVSHMEM device function. Every thread of the CTA makes the call."""
    types = tuple(core.dtype(name) for name in signature)
    arguments = [semantic.to_tensor(a) for a in arguments]
    arguments = [a.to(t, bitcast=a.dtype.is_ptr(), _semantic=semantic) for a, t in zip(arguments, types, strict=True)]
    table = {types: (symbol, core.dtype(result))}
    return core.extern_elementwise("", "", arguments, table, is_pure=False, _semantic=semantic)


@primitive(lambda: program().channel)
def channel(_semantic=None):
    """Which channel this program is."""
    return core.program_id(0, _semantic=_semantic)


@primitive(lambda: True)
def on_cpu(_semantic=None):
    """Whether the kernel runs on a CPU; a compile-time constant."""
    return core.constexpr(False)


def _cast(pointer, dtype):
    if isinstance(pointer, Pointer):
        return Pointer(pointer.memory, pointer.offset, tl.pointer_type(dtype), pointer.pe)
    return pointer.to(tl.pointer_type(dtype))


@primitive(_cast)
def cast(pointer, dtype, _semantic=None):
    """The same address as a pointer to elements of ``dtype``."""
    return pointer.to(core.pointer_type(core._unwrap_if_constexpr(dtype)), _semantic=_semantic)


@primitive(lambda: program().barrier())
def barrier(_semantic=None):
    """CTA barrier: what any thread did before it is done, and visible to every thread of the CTA, after it."""
    return core.debug_barrier(_semantic=_semantic)


@jit(cpu=lambda symmetric, bases, me, pe: program().peer(symmetric, pe))
def peer(symmetric, bases, me, pe):
    """Where rank ``pe``'s copy of a symmetric address is mapped here (OpenSHMEM's ``shmem_ptr``)."""
    # Heaps start at multiples of 128 bytes; said this way, the compiler sees that slots stay aligned.
    elements = 128 // (symmetric.dtype.element_ty.primitive_bitwidth // 8)
    return symmetric + (tl.load(bases + pe) - tl.load(bases + me)) // 128 * elements


@jit(cpu=lambda pointer: program().load(pointer))
def load(pointer):
    """Read a word of this rank's own memory."""
    return tl.load(pointer)


@jit(cpu=lambda pointer, word: program().store(pointer, word))
def store(pointer, word):
    """Write a word of this rank's own memory."""
    tl.store(pointer, word)


@jit(cpu=lambda flag, word, nbytes: program().store_signal(flag, word, nbytes))
def store_signal(flag, word, nbytes):
    """Set a word of a mapped peer with release semantics, after ``nbytes`` of data that were stored before it.

    Call it after a :func:`barrier`: one thread performs the release, and the barrier makes the stores of the other
    threads happen before it. ``nbytes`` is for the accounts of the CPU fabrics.
    """
    tl.atomic_xchg(flag, word, sem="release", scope="sys")


@primitive(lambda dest, source, nbytes, flag, word, pe: program().put_signal(dest, source, nbytes, flag, word, pe))
def _put_signal(dest, source, nbytes, flag, word, pe, _semantic=None):
    return _extern(
        "nvshmemx_putmem_signal_nbi_block",
        [dest, source, nbytes, flag, word, 9, pe],  # 9: NVSHMEM_SIGNAL_SET
        "int32",
        ("int64", "int64", "uint64", "int64", "uint64", "int32", "int32"),
        _semantic,
    )


@primitive(lambda flag, word, pe: program().signal(flag, word, pe))
def _signal(flag, word, pe, _semantic=None):
    signature = ("int64", "uint64", "int32", "int32")
    return _extern("nvshmemx_signal_op", [flag, word, 9, pe], "int32", signature, _semantic)


@primitive(lambda: 0)
def _thread(_semantic=None):
    return core.inline_asm_elementwise(
        "mov.u32 $0, %tid.x;", "=r", [], dtype=core.int32, is_pure=True, pack=1, _semantic=_semantic
    )


@jit
def signal(flag, word, pe):
    """Set a word of rank ``pe``, without data. ``flag`` is the symmetric address."""
    # A scalar extern is called by every thread of the CTA; one signal is enough.
    if _thread() == 0:
        _signal(flag, word, pe)


@jit
def put_signal(dest, source, nbytes, flag, word, pe):
    """Start a copy of ``nbytes`` to ``dest`` on rank ``pe`` and set ``flag`` there once the data have arrived.

    ``dest`` and ``flag`` are symmetric addresses. ``source`` must not change until the receiver says that it has the
    data. Call it after a :func:`barrier`, because each thread of the CTA copies what others have written.
    """
    if nbytes > 0:
        _put_signal(dest, source, nbytes, flag, word, pe)
    else:
        signal(flag, word, pe)


@primitive(None)
def _signal_fetch(flag, _semantic=None):
    return _extern("nvshmem_signal_fetch", [flag], "int64", ("int64",), _semantic)


@primitive(None)
def _signal_wait_until(flag, word, _semantic=None):
    signature = ("int64", "int32", "uint64")
    return _extern("nvshmem_signal_wait_until", [flag, 5, word], "int64", signature, _semantic)  # 5: NVSHMEM_CMP_GE


@jit
def _uniform(value, scratch):
    # Each thread has read its own value; all go on with one thread's, or the CTA would take both sides of a branch
    # that holds barriers. The first barrier keeps the store behind the others' last load, the second before this one.
    tl.debug_barrier()
    tl.store(scratch, value)
    tl.debug_barrier()
    return tl.load(scratch, volatile=True)


@jit
def _observe(flag, scratch, MAPPED: tl.constexpr):
    if MAPPED:
        word = tl.atomic_add(flag, 0, sem="acquire", scope="sys")  # by one thread, broadcast by Triton
    else:
        word = _uniform(_signal_fetch(flag), scratch)
    return word


@jit(cpu=lambda flag, generation, abort, epoch, *rest: program().wait(flag, generation, abort, epoch, rest[1]))
def wait_until(flag, generation, abort, epoch, scratch, timeout, MAPPED: tl.constexpr):
    """Wait until the generation in a word is at least ``generation``; return the word.

    Returns TIMED_OUT after ``timeout`` nanoseconds, and ABORTED if the word ``abort`` says first that another rank has
    given up in this epoch or an earlier one. Orders what the sender did before setting the word before what the
    observing thread does next: follow it with :func:`barrier` before other threads read.
    """
    word = _observe(flag, scratch, MAPPED)
    waiting = (word >> 24) < generation
    if waiting:
        start = _uniform(cuda.globaltimer(), scratch)
        while waiting:
            word = _observe(flag, scratch, MAPPED)
            waiting = (word >> 24) < generation
            if waiting:
                told = tl.atomic_add(abort, 0, sem="acquire", scope="sys")
                if (told != 0) & ((told >> 16) <= epoch):
                    word = word * 0 - 2
                    waiting = False
                elif _uniform(cuda.globaltimer(), scratch) - start > timeout:
                    word = word * 0 - 1
                    waiting = False
    if not MAPPED:
        if word >= 0:
            # Returns at once; it is the call that the memory model lets order the put's data before later reads.
            _signal_wait_until(flag, word)
    return word
