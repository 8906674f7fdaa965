"""The bulk loops: everything that a step does to a contiguous range of elements, in one pass over memory.

:func:`transfer` is what NCCL calls receive-reduce-copy-send. ``OWN`` reads this rank's input, ``RECV`` the received
slot (the two are added), ``KEEP`` writes the output and ``SEND`` the slot that goes to the next rank. :func:`combine`
adds the slots of all ranks. What is both sent and kept is rounded to the wire dtype first, so that the keeper has the
same bits as the others. A switch that is off means that its pointer is not touched.

Each loop exists twice, because Triton's interpreter takes about 80 ns an element: as Triton, and as PyTorch on the same
memory. Both give the same bits.
"""

import torch
import triton.language as tl

from .jit import jit, program
from .numerics import finish, narrow, widen
from .shmem import peer


@jit
def _block(own, recv, out, send, i, n, world, OWN, RECV, KEEP, SEND, OP: tl.constexpr, MASKED: tl.constexpr):
    mask = i < n if MASKED else None
    if OWN:
        v = widen(tl.load(own + i, mask=mask))
        if RECV:
            v += widen(tl.load(recv + i, mask=mask))
    else:
        v = widen(tl.load(recv + i, mask=mask))
    v = finish(v, world, OP)
    if SEND:
        wire = narrow(v, send.dtype.element_ty)
        tl.store(send + i, wire, mask=mask)
        v = widen(wire)
    if KEEP:
        tl.store(out + i, narrow(v, out.dtype.element_ty), mask=mask)


def _divide(total, world, OP):
    if OP == "avg":  # by a tensor: by a number, PyTorch may multiply by its reciprocal
        total.div_(torch.full((1,), world, dtype=total.dtype))


def _transfer(own, recv, out, send, n, world, OWN, RECV, KEEP, SEND, OP, BLOCK):
    """The twin of :func:`transfer` in PyTorch."""
    if n == 0:
        return
    cpu = program()
    v = cpu.read(own, n) if OWN else cpu.read(recv, n)
    if v.dtype == torch.bfloat16 or v.dtype == torch.float16 or (OWN and RECV) or OP == "avg":
        total = cpu.scratch(n, torch.float32 if v.dtype.itemsize == 2 and v.is_floating_point() else v.dtype)
    else:
        total = v
    if OWN and RECV:
        total.copy_(cpu.read(recv, n)).add_(v)
    elif total is not v and OP == "avg":
        total.copy_(v)
    else:
        total = v  # a plain copy: copy_ below converts, and no FP32 in between changes the bits
    _divide(total, world, OP)
    if SEND:
        wire = cpu.write(send, n)
        wire.copy_(total)
        total = wire
    if KEEP:
        cpu.write(out, n).copy_(total)


@jit(twin=_transfer)
def transfer(own, recv, out, send, n, world, OWN, RECV, KEEP, SEND, OP: tl.constexpr, BLOCK: tl.constexpr):
    """Process ``n`` elements. Loads and stores are as wide as the compiler sees the pointers aligned."""
    # Whole blocks without a mask, so that loads and stores are vectors of 16 bytes; the rest with one.
    whole = n // BLOCK * BLOCK
    i = tl.arange(0, BLOCK)
    for start in range(0, whole, BLOCK):
        _block(own + start, recv + start, out + start, send + start, i, n, world, OWN, RECV, KEEP, SEND, OP, False)
    if whole < n:
        _block(
            own + whole, recv + whole, out + whole, send + whole, i, n - whole, world, OWN, RECV, KEEP, SEND, OP, True
        )


@jit
def _sum(
    recv, stride, out, send, i, n, bases, me, world, KEEP, SEND, SPREAD, ROUND, OP: tl.constexpr, MASKED: tl.constexpr
):
    mask = i < n if MASKED else None
    v = widen(tl.load(recv + i, mask=mask))
    for r in range(1, world):
        v += widen(tl.load(recv + r * stride + i, mask=mask))
    v = finish(v, world, OP)
    if ROUND:
        wire = narrow(v, recv.dtype.element_ty)
        v = widen(wire)
        if SPREAD:
            for pe in range(0, world):
                tl.store(peer(send, bases, me, pe) + i, wire, mask=mask)
        elif SEND:
            tl.store(send + i, wire, mask=mask)
    if KEEP:
        tl.store(out + i, narrow(v, out.dtype.element_ty), mask=mask)


def _combine(recv, stride, out, send, n, bases, me, world, KEEP, SEND, SPREAD, ROUND, OP, BLOCK):
    """The twin of :func:`combine` in PyTorch."""
    if n == 0:
        return
    cpu = program()
    first = cpu.read(recv, n)
    total = cpu.scratch(n, torch.float32 if first.dtype.itemsize == 2 and first.is_floating_point() else first.dtype)
    total.copy_(first)
    for r in range(1, world):
        total.add_(cpu.read(recv + r * stride, n))
    _divide(total, world, OP)
    if ROUND and total.dtype != first.dtype:
        total = total.to(first.dtype)
    if SPREAD:
        for pe in range(world):
            cpu.write(cpu.peer(send, pe), n).copy_(total)
    elif SEND:
        cpu.write(send, n).copy_(total)
    if KEEP:
        cpu.write(out, n).copy_(total)


@jit(twin=_combine)
def combine(
    recv, stride, out, send, n, bases, me, world, KEEP, SEND, SPREAD, ROUND, OP: tl.constexpr, BLOCK: tl.constexpr
):
    """Add the shares of all ranks in rank order: rank r's ``n`` elements lie at ``recv + r * stride``.

    ``ROUND`` rounds the result to the wire dtype, once; ``SEND`` writes it to ``send`` then, or with ``SPREAD`` to that
    symmetric address on every rank; ``KEEP`` writes it to ``out``.
    """
    whole = n // BLOCK * BLOCK
    i = tl.arange(0, BLOCK)
    for at in range(0, whole, BLOCK):
        _sum(recv + at, stride, out + at, send + at, i, n, bases, me, world, KEEP, SEND, SPREAD, ROUND, OP, False)
    if whole < n:
        at = whole
        _sum(recv + at, stride, out + at, send + at, i, n - at, bases, me, world, KEEP, SEND, SPREAD, ROUND, OP, True)


@jit
def _merge_block(own, a, b, send, i, n, MASKED: tl.constexpr):
    mask = i < n if MASKED else None
    v = widen(tl.load(own + i, mask=mask))
    v += widen(tl.load(a + i, mask=mask))
    v += widen(tl.load(b + i, mask=mask))
    tl.store(send + i, narrow(v, send.dtype.element_ty), mask=mask)


def _merge(own, a, b, send, n, BLOCK):
    """The twin of :func:`merge` in PyTorch."""
    if n == 0:
        return
    cpu = program()
    first = cpu.read(a, n)
    total = cpu.scratch(n, torch.float32 if first.dtype.itemsize == 2 and first.is_floating_point() else first.dtype)
    cpu.write(send, n).copy_(total.copy_(first).add_(cpu.read(own, n)).add_(cpu.read(b, n)))


@jit(twin=_merge)
def merge(own, a, b, send, n, BLOCK: tl.constexpr):
    """Send own + a + b, rounded: this rank's input and two received slots of ``n`` elements."""
    whole = n // BLOCK * BLOCK
    i = tl.arange(0, BLOCK)
    for start in range(0, whole, BLOCK):
        _merge_block(own + start, a + start, b + start, send + start, i, n, False)
    if whole < n:
        _merge_block(own + whole, a + whole, b + whole, send + whole, i, n - whole, True)
