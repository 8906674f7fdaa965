"""Ring collectives: every rank sends to the right and receives from the left.

The data are cut into one chunk a rank, each chunk into one part a channel, each part into pieces of at most a slot.
A *hop* moves one piece one rank further. Reduce-scatter takes n - 1 hops: the chunk that will end at rank r starts at
rank r + 1, and each rank adds its own share as it passes. All-gather takes n - 1 more: each owner's chunk goes round.
All-reduce is the one after the other, with the owner's last addition and its first send in the same pass.

Chunk c is added in the order x[c+1] + x[c+2] + ... + x[c], in FP32, and rounded to the wire dtype at every hop.

``WINDOW`` pieces go round together: while the first is on its way, the others are worked on. With SLOTS > WINDOW it
cannot deadlock: a rank about to send message k needs the slot of message k - SLOTS, which its right neighbour gives
back after it has sent message k - SLOTS + WINDOW <= k - 1; so the rank that is furthest behind always finds it free.

Bytes sent a rank: (n-1)/n of the data for each of the two halves, which is the minimum. Steps: n - 1 each, so for small
messages or many ranks other algorithms win.
"""

from typing import NamedTuple

import triton.language as tl

from . import chunks, link, shmem
from .jit import jit
from .numerics import Reduction
from .tiles import transfer


class Work(NamedTuple):
    """One channel's share of the data. Sizes and places are in elements."""

    x: object
    out: object
    edges: object  # where each chunk starts, and where the last one ends
    piece: object
    part: object  # where this channel's part of each chunk starts
    world: object
    scale: object
    tally: object  # None: nothing is counted
    FROM: object  # 1 if x has all chunks, 0 if it has this rank's
    TO: object  # 1 if out has all chunks, 0 if it has this rank's
    ALIGNED: object  # whether chunks start at multiples of 16


@jit
def _hop(
    call, tx, rx, work, ok, first, window, k, chunk, OWN, RECV, KEEP, SEND, LAST, OP: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    # Pieces first to first + window of a chunk go one rank further, as messages k on. Returns the new ``ok``.
    start = chunks.start(work.edges, chunk, work.ALIGNED)
    for j in range(0, window):
        at = work.part + (first + j) * work.piece
        n = chunks.count(work.edges, chunk, at, work.piece)
        sent = k + j
        received = sent - window if RECV else sent  # what is passed on now was sent one step earlier by the left
        if ok == 1:
            if RECV:
                ok = link.await_data(rx, call, received)
        if ok == 1:
            if SEND:
                ok = link.acquire(tx, call, sent)
        if ok == 1:
            own, out = work.x + start * work.FROM + at, work.out + start * work.TO + at
            recv, send = link.slot(rx, call, received), link.slot(tx, call, sent)
            red = Reduction(work.world, work.scale, work.tally)
            transfer(own, recv, out, send, n, red, OWN, RECV, KEEP, SEND, LAST, OP, BLOCK)
            if SEND:
                link.publish(tx, call, sent, n * (send.dtype.element_ty.primitive_bitwidth // 8))
            if RECV:
                link.release(rx, call, received)
    return ok


@jit
def _close(call, tx, rx, ok, counters, channels, messages, me):
    # Count this kernel, and what the links have carried; or pass on that this rank has given up.
    c = shmem.channel()
    if ok == 1:
        shmem.store(counters + c, call.epoch)
        shmem.store(counters + channels + c, messages)
    else:
        link.give_up(tx, rx, call, me)


@jit
def all_reduce(
    x, out, heap, bases, counters, status, edges, tally,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64,
    fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = the reduction over ranks of x, element by element. They may be the same memory."""
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    tx = link.sender(heap, bases, me, (me + 1) % world, channels, c, c, call, WIRE)
    rx = link.receiver(heap, bases, me, (me + world - 1) % world, channels, c, c, call, WIRE)
    work = Work(x, out, edges, piece, c * pieces * piece, world, scale, tally, 1, 1, ALIGNED)
    base = shmem.load(counters + channels + c)
    ok = 1
    hops = 2 * world - 2
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        k = base + hops * first
        # Reduce-scatter: start the left neighbour's chunk, add to those that pass.
        chunk = (me + world - 1) % world
        ok = _hop(call, tx, rx, work, ok, first, window, k, chunk, True, False, False, True, False, OP, BLOCK)
        for step in range(1, world - 1):
            chunk = (me + 2 * world - 1 - step) % world
            sent = k + step * window
            ok = _hop(call, tx, rx, work, ok, first, window, sent, chunk, True, True, False, True, False, OP, BLOCK)
        # The own chunk is complete: keep it and send it on.
        sent = k + (world - 1) * window
        ok = _hop(call, tx, rx, work, ok, first, window, sent, me, True, True, True, True, True, OP, BLOCK)
        # All-gather: keep and pass on what the others have completed; the last one goes no further.
        for step in range(world, hops):
            chunk = (me + 2 * world - 1 - step) % world
            sent = k + step * window
            ok = _hop(call, tx, rx, work, ok, first, window, sent, chunk, False, True, True, True, False, OP, BLOCK)
        chunk, sent = (me + 1) % world, k + hops * window
        ok = _hop(call, tx, rx, work, ok, first, window, sent, chunk, False, True, True, False, False, OP, BLOCK)
    _close(call, tx, rx, ok, counters, channels, base + hops * pieces, me)


@jit
def reduce_scatter(
    x, out, heap, bases, counters, status, edges, tally,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64,
    fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = chunk ``me`` of the reduction over ranks of x, which holds all chunks."""
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    tx = link.sender(heap, bases, me, (me + 1) % world, channels, c, c, call, WIRE)
    rx = link.receiver(heap, bases, me, (me + world - 1) % world, channels, c, c, call, WIRE)
    work = Work(x, out, edges, piece, c * pieces * piece, world, scale, tally, 1, 0, ALIGNED)
    base = shmem.load(counters + channels + c)
    ok = 1
    hops = world - 1
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        k = base + hops * first
        chunk = (me + world - 1) % world
        ok = _hop(call, tx, rx, work, ok, first, window, k, chunk, True, False, False, True, False, OP, BLOCK)
        for step in range(1, hops):
            chunk = (me + 2 * world - 1 - step) % world
            sent = k + step * window
            ok = _hop(call, tx, rx, work, ok, first, window, sent, chunk, True, True, False, True, False, OP, BLOCK)
        # Nobody else needs the own chunk: it goes from the accumulator to the output, not through the wire dtype.
        sent = k + hops * window
        ok = _hop(call, tx, rx, work, ok, first, window, sent, me, True, True, True, False, True, OP, BLOCK)
    _close(call, tx, rx, ok, counters, channels, base + hops * pieces, me)


@jit
def all_gather(
    x, out, heap, bases, counters, status, edges,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64,
    fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Chunk r of out = x of rank r. OP is not used."""
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    tx = link.sender(heap, bases, me, (me + 1) % world, channels, c, c, call, WIRE)
    rx = link.receiver(heap, bases, me, (me + world - 1) % world, channels, c, c, call, WIRE)
    work = Work(x, out, edges, piece, c * pieces * piece, world, scale, None, 0, 1, ALIGNED)
    base = shmem.load(counters + channels + c)
    ok = 1
    hops = world - 1
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        k = base + hops * first
        ok = _hop(call, tx, rx, work, ok, first, window, k, me, True, False, True, True, False, OP, BLOCK)
        for step in range(1, hops):
            chunk = (me + world - step) % world
            sent = k + step * window
            ok = _hop(call, tx, rx, work, ok, first, window, sent, chunk, False, True, True, True, False, OP, BLOCK)
        chunk, sent = (me + 1) % world, k + hops * window
        ok = _hop(call, tx, rx, work, ok, first, window, sent, chunk, False, True, True, False, False, OP, BLOCK)
    _close(call, tx, rx, ok, counters, channels, base + hops * pieces, me)
