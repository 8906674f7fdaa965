"""The bulk loops: everything that a step does to a contiguous range of elements, in one pass over memory.

:func:`transfer` is what NCCL calls receive-reduce-copy-send. ``OWN`` reads this rank's input, ``RECV`` the received
slot (the two are combined), ``KEEP`` writes the output and ``SEND`` the slot that goes to the next rank. ``LAST`` says
that the reduction is complete. :func:`merge` has two received slots, :func:`join` those of many ranks. What is both
sent and kept is rounded to the wire dtype first, so that the keeper has the same bits as the others. A switch that is
off means that its pointer is not touched. Where there is a tally, OWN and LAST are also counted (see tally.py).

Each loop exists twice, because Triton's interpreter takes about 80 ns an element: as Triton, and as PyTorch on the same
memory. Both give the same bits.
"""

from typing import NamedTuple

import triton.language as tl

from . import tally
from .jit import TORCH, jit, program
from .numerics import accumulator, combine, combine_, enter, finish, finish_, narrow, scale_, widen
from .shmem import load, peer

# Blocks first, whose masks change at multiples of 16 only, so that loads and stores are vectors of 16 bytes; then the
# fewer than 16 elements that are left.


@jit
def _add(red, mine, done, OWN, LAST):
    # Add to the tally what it counts.
    if red.tally is not None:
        if OWN:
            tally.add(red.tally, 0, mine)
        if LAST:
            tally.add(red.tally, 2, done)


@jit
def _transfer_block(own, recv, out, send, i, n, red, OWN, RECV, KEEP, SEND, LAST, OP: tl.constexpr):
    # Returns this rank's own values (if there are any) and the result.
    mask = i < n
    if OWN:
        mine = widen(tl.load(own + i, mask=mask))
        v = enter(mine, red, OP)
        if RECV:
            v = combine(widen(tl.load(recv + i, mask=mask)), v, OP)
    else:
        mine = widen(tl.load(recv + i, mask=mask))
        v = mine
    if LAST:
        v = finish(v, red, OP)
    if SEND:
        wire = narrow(v, send.dtype.element_ty)
        tl.store(send + i, wire, mask=mask)
        v = widen(wire)
    if KEEP:
        tl.store(out + i, narrow(v, out.dtype.element_ty), mask=mask)
    return mine, v


def _transfer(own, recv, out, send, n, red, OWN, RECV, KEEP, SEND, LAST, OP, BLOCK):
    """The twin of :func:`transfer` in PyTorch."""
    if n == 0:
        return
    cpu = program()
    v = cpu.read(own, n) if OWN else cpu.read(recv, n)
    if OWN:
        tally.add_(red.tally, tally.OWN, v)
    scaled, divided = OWN and OP == "premul_sum", LAST and OP == "avg"
    total = v  # a plain copy: copy_ below converts, and no FP32 in between changes the bits
    if OWN and RECV and not scaled:
        total = cpu.scratch(n, accumulator(v.dtype))
        combine_(total.copy_(cpu.read(recv, n)), v, OP)
    elif scaled or divided:
        total = cpu.scratch(n, accumulator(v.dtype)).copy_(v)
        if scaled:
            scale_(total, red, OP)
        if OWN and RECV:
            combine_(total, cpu.read(recv, n), OP)
    if LAST:
        finish_(total, red, OP)
    if SEND:
        wire = cpu.write(send, n)
        wire.copy_(total)
        total = wire
    if LAST:
        tally.add_(red.tally, tally.RESULTS, total)
    if KEEP:
        cpu.write(out, n).copy_(total)


@jit(twin=_transfer)
def transfer(own, recv, out, send, n, red, OWN, RECV, KEEP, SEND, LAST, OP: tl.constexpr, BLOCK: tl.constexpr):
    """Process ``n`` elements. Loads and stores are as wide as the compiler sees the pointers aligned."""
    whole = n // 16 * 16
    i = tl.arange(0, BLOCK)
    mine, done = tally.nothing(own.dtype.element_ty, BLOCK), tally.nothing(own.dtype.element_ty, BLOCK)
    for at in range(0, whole, BLOCK):
        v, r = _transfer_block(
            own + at, recv + at, out + at, send + at, i, whole - at, red, OWN, RECV, KEEP, SEND, LAST, OP
        )
        if red.tally is not None:
            mine, done = tally.count(mine, v, i < whole - at), tally.count(done, r, i < whole - at)
    _add(red, mine, done, OWN, LAST)
    if whole < n:
        few = tl.arange(0, 16)
        v, r = _transfer_block(
            own + whole, recv + whole, out + whole, send + whole, few, n - whole, red, OWN, RECV, KEEP, SEND, LAST, OP
        )
        if red.tally is not None:
            rest = few < n - whole
            nothing = tally.nothing(own.dtype.element_ty, 16)
            _add(red, tally.count(nothing, v, rest), tally.count(nothing, r, rest), OWN, LAST)


@jit
def _merge_block(own, a, b, send, i, n, red, OP: tl.constexpr):
    # Returns this rank's own values.
    mask = i < n
    mine = widen(tl.load(own + i, mask=mask))
    v = combine(widen(tl.load(a + i, mask=mask)), enter(mine, red, OP), OP)
    v = combine(widen(tl.load(b + i, mask=mask)), v, OP)
    tl.store(send + i, narrow(v, send.dtype.element_ty), mask=mask)
    return mine


def _merge(own, a, b, send, n, red, OP, BLOCK):
    """The twin of :func:`merge` in PyTorch."""
    if n == 0:
        return
    cpu = program()
    v = cpu.read(own, n)
    tally.add_(red.tally, tally.OWN, v)
    total = cpu.scratch(n, accumulator(v.dtype)).copy_(v)
    scale_(total, red, OP)
    combine_(total, cpu.read(a, n), OP)
    combine_(total, cpu.read(b, n), OP)
    cpu.write(send, n).copy_(total)


@jit(twin=_merge)
def merge(own, a, b, send, n, red, OP: tl.constexpr, BLOCK: tl.constexpr):
    """Send own + a + b, rounded: this rank's input and two received slots of ``n`` elements."""
    whole = n // 16 * 16
    i = tl.arange(0, BLOCK)
    mine = tally.nothing(own.dtype.element_ty, BLOCK)
    for at in range(0, whole, BLOCK):
        v = _merge_block(own + at, a + at, b + at, send + at, i, whole - at, red, OP)
        if red.tally is not None:
            mine = tally.count(mine, v, i < whole - at)
    _add(red, mine, mine, True, False)
    if whole < n:
        few = tl.arange(0, 16)
        v = _merge_block(own + whole, a + whole, b + whole, send + whole, few, n - whole, red, OP)
        if red.tally is not None:
            rest = tally.count(tally.nothing(own.dtype.element_ty, 16), v, few < n - whole)
            _add(red, rest, rest, True, False)


class Shares(NamedTuple):
    """A slot of each of the links from ``count`` ranks, to be read. They lie in line, the r-th at ``at + r * stride``.

    It holds message ``received[r * step] + k``, where ``received`` is what the link had carried before this kernel.
    """

    at: object
    stride: object  # elements
    received: object
    step: object
    k: object
    count: object
    SLOTS: object
    SLOT: object


class Peers(NamedTuple):
    """A slot of each of the links to ``count`` ranks from ``first`` on, to be written; message ``sent[r * step] + k``.

    Mapped: at the same place on every one of them. Put: this rank's staging slots, which lie in line.
    """

    at: object
    stride: object  # elements
    bases: object
    me: object
    first: object  # its rank
    count: object
    sent: object
    step: object
    k: object
    MAPPED: object
    SLOTS: object
    SLOT: object


@jit
def _share(shares, r):
    k = load(shares.received + r * shares.step) + shares.k
    return shares.at + (r * shares.stride + k % shares.SLOTS * shares.SLOT)


@jit
def _place(peers, r):
    k = load(peers.sent + r * peers.step) + peers.k
    if peers.MAPPED:
        at = peer(peers.at, peers.bases, peers.me, peers.first + r)
    else:
        at = peers.at + r * peers.stride
    return at + k % peers.SLOTS * peers.SLOT


@jit
def _join_block(
    shares, at, recv, out, send, peers, i, n, red, SHARES, RECV, KEEP, SEND, SPREAD, LAST, ROUND, OP: tl.constexpr
):
    # Returns the result.
    mask = i < n
    if SHARES:
        v = widen(tl.load(_share(shares, 0) + at + i, mask=mask))
        for r in range(1, shares.count):
            v = combine(v, widen(tl.load(_share(shares, r) + at + i, mask=mask)), OP)
        if RECV:
            v = combine(widen(tl.load(recv + at + i, mask=mask)), v, OP)
    else:
        v = widen(tl.load(recv + at + i, mask=mask))
    if LAST:
        v = finish(v, red, OP)
    if ROUND:
        wire = narrow(v, recv.dtype.element_ty)
        v = widen(wire)
        if SEND:
            tl.store(send + at + i, wire, mask=mask)
        if SPREAD:
            for r in range(0, peers.count):
                tl.store(_place(peers, r) + at + i, wire, mask=mask)
    if KEEP:
        tl.store(out + at + i, narrow(v, out.dtype.element_ty), mask=mask)
    return v


def _join(shares, recv, out, send, peers, n, red, SHARES, RECV, KEEP, SEND, SPREAD, LAST, ROUND, OP, BLOCK):
    """The twin of :func:`join` in PyTorch."""
    if n == 0:
        return
    cpu = program()
    places = [_share(shares, r) for r in range(shares.count)] if SHARES else [recv]
    total = cpu.read(places[0], n)
    if len(places) > 1 or (SHARES and RECV) or (LAST and OP == "avg"):
        total = cpu.scratch(n, accumulator(total.dtype)).copy_(total)
    for place in places[1:]:
        combine_(total, cpu.read(place, n), OP)
    if SHARES and RECV:
        combine_(total, cpu.read(recv, n), OP)
    if LAST:
        finish_(total, red, OP)
    if ROUND:
        total = total.to(TORCH[recv.dtype.element_ty])
    if LAST:
        tally.add_(red.tally, tally.RESULTS, total)
    if SEND:
        cpu.write(send, n).copy_(total)
    if SPREAD:
        for r in range(peers.count):
            cpu.write(_place(peers, r), n).copy_(total)
    if KEEP:
        cpu.write(out, n).copy_(total)


@jit(twin=_join)
def join(
    shares, recv, out, send, peers, n, red, SHARES, RECV, KEEP, SEND, SPREAD, LAST, ROUND, OP: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Combine the ``SHARES`` of several ranks in their order, and a partial result before them with ``RECV``.

    ``LAST`` finishes the reduction. ``ROUND`` rounds to the wire dtype, that of ``recv``; then ``SEND`` writes to
    ``send`` and ``SPREAD`` to the slots of the ``peers``. ``KEEP`` writes to ``out``.
    """
    whole = n // 16 * 16
    i = tl.arange(0, BLOCK)
    done = tally.nothing(out.dtype.element_ty, BLOCK)
    for at in range(0, whole, BLOCK):
        v = _join_block(
            shares, at, recv, out, send, peers, i, whole - at, red, SHARES, RECV, KEEP, SEND, SPREAD, LAST, ROUND, OP
        )
        if red.tally is not None:
            done = tally.count(done, v, i < whole - at)
    _add(red, done, done, False, LAST)
    if whole < n:
        few = tl.arange(0, 16)
        v = _join_block(
            shares, whole, recv, out, send, peers, few, n - whole, red,
            SHARES, RECV, KEEP, SEND, SPREAD, LAST, ROUND, OP,
        )  # fmt: skip
        if red.tally is not None:
            rest = tally.count(tally.nothing(out.dtype.element_ty, 16), v, few < n - whole)
            _add(red, rest, rest, False, LAST)
