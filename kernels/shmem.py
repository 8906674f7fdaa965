"""The device's one-sided API, in OpenSHMEM's words. Everything that leaves a channel goes through this file.

On a GPU these are NVSHMEM calls and system-scope atomics. On a CPU they are calls of the program that the fabric has
bound (:class:`tricoll.fabric.base.Program`). A *word* is a 64-bit flag. ``bases`` is the table by which ranks are
reached: of the addresses at which their heaps are mapped here or, for put links, of their PE numbers.

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


@jit(cpu=lambda bases, rank: rank)
def pe(bases, rank):
    """The PE number of a rank: of a group of some of the PEs, the ranks have numbers of their own."""
    return tl.load(bases + rank).to(rank.dtype)


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
    """Set a word of PE ``pe``, without data. ``flag`` is the symmetric address."""
    # A scalar extern is called by every thread of the CTA; one signal is enough.
    if _thread() == 0:
        _signal(flag, word, pe)


@jit
def put_signal(dest, source, nbytes, flag, word, pe):
    """Start a copy of ``nbytes`` to ``dest`` on PE ``pe`` and set ``flag`` there once the data have arrived.

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


# Words of data and flag: 32 bits of each, so that a word needs no order with any other.


@primitive(lambda pointers, words, mask, nbytes: program().scatter_words(pointers, words, mask, nbytes))
def store_words(pointers, words, mask, nbytes, _semantic=None):
    """Store int64 words where ``mask`` is true, each at once and visible to other GPUs. ``nbytes`` is for the accounts
    of the CPU fabrics: the data in the whole message, or -1 if they have been counted."""
    text = "{ .reg .pred p; setp.ne.s32 p, $3, 0; @p st.relaxed.sys.global.b64 [$1], $2; mov.u32 $0, 0; }"
    return core.inline_asm_elementwise(
        text,
        "=r,l,l,r",
        [pointers, words, mask.to(core.int32, _semantic=_semantic)],
        dtype=core.int32,
        is_pure=False,
        pack=1,
        _semantic=_semantic,
    )


def _load_words(at, i, mask, count, flag, abort, epoch, scratch, timeout):
    code, seen = program().await_words(at, count, flag, abort, epoch, timeout)
    return tl.load(at + i, mask=mask, other=0), code, seen


@jit(cpu=_load_words)
def load_words(at, i, mask, count, flag, abort, epoch, scratch, timeout):
    """Wait until the words ``at + i`` (of ``count`` from ``at`` on) all have the flag in their upper 32 bits.

    Returns them, 0 and 0. Else, with a flag that was seen, 1 after ``timeout`` nanoseconds, 2 if the word ``abort``
    says first that another rank has given up in this epoch or an earlier one, and 3 if a word has the generation, but
    not the fingerprint. Each thread reads what it has waited for, so it takes no barrier.
    """
    word = tl.load(at + i, mask=mask, other=0, volatile=True)
    late = tl.max(tl.where(mask & (((word >> 32) & 0xFFFFFFFF) != flag), 1, 0))
    code, seen = 0, flag * 0
    if late == 1:
        start = _uniform(cuda.globaltimer(), scratch)
        while late == 1:
            word = tl.load(at + i, mask=mask, other=0, volatile=True)
            wrong = mask & (((word >> 32) & 0xFFFFFFFF) != flag)
            late = tl.max(tl.where(wrong, 1, 0))
            if late == 1:
                told = tl.atomic_add(abort, 0, sem="acquire", scope="sys")
                if tl.max(tl.where(wrong & (((word >> 48) & 0xFFFF) == flag // 65536), 1, 0)) == 1:
                    late, code = 0, 3
                elif (told != 0) & ((told >> 16) <= epoch):
                    late, code = 0, 2
                elif _uniform(cuda.globaltimer(), scratch) - start > timeout:
                    late, code = 0, 1
        if code > 0:
            seen = tl.max(tl.where(mask, (word >> 32) & 0xFFFFFFFF, 0))
    return word, code, seen


# NVLink SHARP: a multicast address stands for the same place on all GPUs.


@primitive(None)
def _multimem(address, mask, DTYPE: core.constexpr, _semantic=None):
    # 16 bytes a thread: the sum of all GPUs' elements, in FP32 and rounded, is stored to all of them.
    kind = {core.bfloat16: "acc::f32.v4.bf16x2", core.float16: "acc::f32.v4.f16x2", core.float32: "v4.f32"}
    dtype = core._unwrap_if_constexpr(DTYPE)
    register, stored = ("f32", "v4.f32") if dtype == core.float32 else ("b32", kind[dtype].removeprefix("acc::f32."))
    text = f"""{{
        .reg .{register} a, b, c, d;
        .reg .pred p;
        setp.ne.s32 p, $2, 0;
        @p multimem.ld_reduce.relaxed.sys.global.add.{kind[dtype]} {{a, b, c, d}}, [$1];
        @p multimem.st.relaxed.sys.global.{stored} [$1], {{a, b, c, d}};
        mov.u32 $0, 0;
    }}"""
    mask = mask.to(core.int32, _semantic=_semantic)
    return core.inline_asm_elementwise(
        text, "=r,l,r", [address, mask], dtype=core.int32, is_pure=False, pack=1, _semantic=_semantic
    )


@jit(cpu=lambda at, n, BLOCK: program().multicast_sum(at, n))
def multicast_sum(at, n, BLOCK: tl.constexpr):
    """Replace ``n`` elements at a multicast address by their sum over all ranks, rounded once, on all ranks.

    What lies behind them up to a multiple of 16 elements is worked on, too.
    """
    VECTOR: tl.constexpr = 128 // at.dtype.element_ty.primitive_bitwidth
    vectors = (n + 15) // 16 * (16 // VECTOR)
    for start in range(0, vectors, BLOCK // VECTOR):
        i = start + tl.arange(0, BLOCK // VECTOR)
        _multimem(at + i * VECTOR, i < vectors, at.dtype.element_ty)
