"""The bulk loop: everything that a step does to a contiguous range of elements, in one pass over memory.

What NCCL calls receive-reduce-copy-send. ``OWN`` reads this rank's input, ``RECV`` the received slot (the two are
added), ``KEEP`` writes the output and ``SEND`` the slot that goes to the next rank. What is both sent and kept is
rounded to the wire dtype first, so that the keeper has the same bits as the others. A switch that is off means that
its pointer is not touched.

The loop exists twice, because Triton's interpreter takes about 80 ns an element: as Triton, and as PyTorch on the same
memory. Both give the same bits.
"""

import torch
import triton.language as tl

from .jit import jit, program
from .numerics import finish, narrow, widen


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
    if OP == "avg":
        total.div_(torch.full((1,), world, dtype=total.dtype))  # by a number, PyTorch may multiply by its reciprocal
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
