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

from . import link, shmem
from .jit import jit
from .tiles import transfer


class Work(NamedTuple):
    """One channel's share of the data. Sizes and places are in elements."""

    x: object
    out: object
    total: object  # elements in all chunks together
    chunk: object
    piece: object
    pieces: object  # a channel
    part: object  # where this channel's part of each chunk starts
    world: object


@jit
def _hop(call, tx, rx, work, ok, first, window, k, source, target, OWN, RECV, KEEP, SEND, OP, BLOCK: tl.constexpr):
    # Pieces first to first + window of one chunk go one rank further, as messages k on. The chunk starts at
    # ``source`` in the input and at ``target`` in the output. Returns the new ``ok``.
    for j in range(0, window):
        at = work.part + (first + j) * work.piece
        n = max(min(min(work.piece, work.chunk - at), work.total - max(source, target) - at), 0)
        sent = k + j
        received = sent - window if RECV else sent  # what is passed on now was sent one step earlier by the left
        if ok == 1:
            if RECV:
                ok = link.await_data(rx, call, received)
        if ok == 1:
            if SEND:
                ok = link.acquire(tx, call, sent)
        if ok == 1:
            own, out = work.x + source + at, work.out + target + at
            recv, send = link.slot(rx, call, received), link.slot(tx, call, sent)
            transfer(own, recv, out, send, n, work.world, OWN, RECV, KEEP, SEND, OP, BLOCK)
            if SEND:
                link.publish(tx, call, sent, n * (send.dtype.element_ty.primitive_bitwidth // 8))
            if RECV:
                link.release(rx, call, received)
    return ok


@jit
def _close(call, tx, rx, ok, counters, channels, messages, me):
    # Count what the links have carried, and this kernel; or pass on that this rank has given up.
    c = shmem.channel()
    if ok == 1:
        shmem.store(counters + c, messages)
        shmem.store(counters + channels + c, call.epoch)
    else:
        link.give_up(tx, rx, call, me)


@jit
def all_reduce(
    x, out, heap, bases, counters, status,
    numel: tl.int64, chunk: tl.int64, piece: tl.int64, pieces: tl.int64,
    me: tl.int32, world: tl.int32, channels: tl.int64, fingerprint: tl.int64, timeout: tl.int64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[i] = sum over ranks of x[i]. x and out have ``numel`` elements; they may be the same memory."""
    piece = piece // 16 * 16  # changes nothing, but lets the compiler see what allows vectors of 16 bytes
    if ALIGNED:
        chunk = chunk // 16 * 16
    c = shmem.channel()
    call = link.Call(
        fingerprint, shmem.load(counters + channels + c) + 1, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT
    )
    tx = link.sender(heap, bases, me, (me + 1) % world, channels, c, c, call, WIRE)
    rx = link.receiver(heap, bases, me, (me + world - 1) % world, channels, c, c, call, WIRE)
    work = Work(x, out, numel, chunk, piece, pieces, c * pieces * piece, world)
    base = shmem.load(counters + c)
    ok = 1
    hops = 2 * world - 2
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        k = base + hops * first
        # Reduce-scatter: start the left neighbour's chunk, add to those that pass.
        at = chunk * ((me + world - 1) % world)
        ok = _hop(call, tx, rx, work, ok, first, window, k, at, at, True, False, False, True, "sum", BLOCK)
        for step in range(1, world - 1):
            at = chunk * ((me + 2 * world - 1 - step) % world)
            ok = _hop(
                call, tx, rx, work, ok, first, window, k + step * window, at, at, True, True, False, True, "sum", BLOCK
            )
        # The own chunk is complete: keep it and send it on.
        at = chunk * me
        ok = _hop(
            call, tx, rx, work, ok, first, window, k + (world - 1) * window, at, at, True, True, True, True, OP, BLOCK
        )
        # All-gather: keep and pass on what the others have completed; the last one goes no further.
        for step in range(world, hops):
            at = chunk * ((me + 2 * world - 1 - step) % world)
            ok = _hop(
                call, tx, rx, work, ok, first, window, k + step * window, at, at, False, True, True, True, "sum", BLOCK
            )
        at = chunk * ((me + 1) % world)
        ok = _hop(
            call, tx, rx, work, ok, first, window, k + hops * window, at, at, False, True, True, False, "sum", BLOCK
        )
    _close(call, tx, rx, ok, counters, channels, base + hops * pieces, me)


@jit
def reduce_scatter(
    x, out, heap, bases, counters, status,
    numel: tl.int64, chunk: tl.int64, piece: tl.int64, pieces: tl.int64,
    me: tl.int32, world: tl.int32, channels: tl.int64, fingerprint: tl.int64, timeout: tl.int64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = chunk ``me`` of the sum over ranks of x. x has ``numel`` = world x chunk elements, out has ``chunk``."""
    piece = piece // 16 * 16  # changes nothing, but lets the compiler see what allows vectors of 16 bytes
    if ALIGNED:
        chunk = chunk // 16 * 16
    c = shmem.channel()
    call = link.Call(
        fingerprint, shmem.load(counters + channels + c) + 1, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT
    )
    tx = link.sender(heap, bases, me, (me + 1) % world, channels, c, c, call, WIRE)
    rx = link.receiver(heap, bases, me, (me + world - 1) % world, channels, c, c, call, WIRE)
    work = Work(x, out, numel, chunk, piece, pieces, c * pieces * piece, world)
    base = shmem.load(counters + c)
    ok = 1
    hops = world - 1
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        k = base + hops * first
        at = chunk * ((me + world - 1) % world)
        ok = _hop(call, tx, rx, work, ok, first, window, k, at, 0, True, False, False, True, "sum", BLOCK)
        for step in range(1, hops):
            at = chunk * ((me + 2 * world - 1 - step) % world)
            ok = _hop(
                call, tx, rx, work, ok, first, window, k + step * window, at, 0, True, True, False, True, "sum", BLOCK
            )
        # Nobody else needs the own chunk: it goes from FP32 to the output, not through the wire dtype.
        ok = _hop(
            call, tx, rx, work, ok, first, window, k + hops * window, chunk * me, 0, True, True, True, False, OP, BLOCK
        )
    _close(call, tx, rx, ok, counters, channels, base + hops * pieces, me)


@jit
def all_gather(
    x, out, heap, bases, counters, status,
    numel: tl.int64, chunk: tl.int64, piece: tl.int64, pieces: tl.int64,
    me: tl.int32, world: tl.int32, channels: tl.int64, fingerprint: tl.int64, timeout: tl.int64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Chunk r of out = x of rank r. x has ``chunk`` elements, out has ``numel`` = world x chunk. OP is not used."""
    piece = piece // 16 * 16  # changes nothing, but lets the compiler see what allows vectors of 16 bytes
    if ALIGNED:
        chunk = chunk // 16 * 16
    c = shmem.channel()
    call = link.Call(
        fingerprint, shmem.load(counters + channels + c) + 1, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT
    )
    tx = link.sender(heap, bases, me, (me + 1) % world, channels, c, c, call, WIRE)
    rx = link.receiver(heap, bases, me, (me + world - 1) % world, channels, c, c, call, WIRE)
    work = Work(x, out, numel, chunk, piece, pieces, c * pieces * piece, world)
    base = shmem.load(counters + c)
    ok = 1
    hops = world - 1
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        k = base + hops * first
        ok = _hop(call, tx, rx, work, ok, first, window, k, 0, chunk * me, True, False, True, True, "sum", BLOCK)
        for step in range(1, hops):
            at = chunk * ((me + world - step) % world)
            ok = _hop(
                call, tx, rx, work, ok, first, window, k + step * window, 0, at, False, True, True, True, "sum", BLOCK
            )
        at = chunk * ((me + 1) % world)
        ok = _hop(
            call, tx, rx, work, ok, first, window, k + hops * window, 0, at, False, True, True, False, "sum", BLOCK
        )
    _close(call, tx, rx, ok, counters, channels, base + hops * pieces, me)
