"""Direct collectives: every rank reaches every other in one step.

*Two-shot*: rank r collects chunk r from all ranks and adds it (a reduce-scatter), then gives the result to all (an
all-gather). Two steps, and the minimum of bytes. *One-shot*: every rank gives all of its data to all, and each adds
them itself. One step, and n - 1 times the data: for small messages.

Both add in rank order, x[0] + x[1] + ... + x[n-1], in FP32, and round once. What is added has the wire dtype, the own
share included, so an element's bits depend on the ranks' values only: not on where it lies, on the size of the message,
or on how it is cut into chunks, channels and pieces. This is the reproducible mode.

It takes a link between every two ranks, so it is for one NVLink domain or a few ranks. Link r of a rank carries what
rank r sends to it; its own link carries nothing, and its slots hold the rank's own share, in line with the others'.

``WINDOW`` pieces go through each phase together, so that one is on its way while another is worked on. With SLOTS >
WINDOW it cannot deadlock: the sum of piece j needs slots that were given back after the sum of piece j - 1.
"""

from typing import NamedTuple

import triton.language as tl

from . import link, shmem
from .jit import jit
from .tiles import combine, transfer


class Work(NamedTuple):
    """One channel's share of the data, and of the heap. Sizes and places are in elements."""

    heap: object
    bases: object
    x: object
    out: object
    total: object  # elements in all chunks together
    chunk: object
    piece: object
    part: object  # where this channel's part of each chunk starts
    channels: object
    me: object
    world: object


@jit
def _sender(call, work, to, WIRE: tl.constexpr):
    c = shmem.channel()
    index, back = work.me * work.channels + c, to * work.channels + c
    return link.sender(work.heap, work.bases, work.me, to, work.world * work.channels, index, back, call, WIRE)


@jit
def _receiver(call, work, source, WIRE: tl.constexpr):
    c = shmem.channel()
    index, back = source * work.channels + c, work.me * work.channels + c
    return link.receiver(work.heap, work.bases, work.me, source, work.world * work.channels, index, back, call, WIRE)


@jit
def _count(work, at, offset):
    # Elements of the piece that starts ``at`` in the chunk that starts at ``offset``.
    return max(min(min(work.piece, work.chunk - at), work.total - offset - at), 0)


@jit
def _give(call, work, ok, first, window, k, spread, BLOCK: tl.constexpr, WIRE: tl.constexpr):
    # Send pieces first to first + window of x, as messages k on. Rank p gets those of the chunk at p * spread.
    for j in range(0, window):
        at = work.part + (first + j) * work.piece
        for turn in range(0, work.world):
            to = (work.me + turn) % work.world  # everybody starts with another peer, to spread the traffic
            n = _count(work, at, to * spread)
            own = work.x + to * spread + at
            if to == work.me:
                mine = link.slot(_receiver(call, work, to, WIRE), call, k + j)
                if ok == 1:
                    transfer(own, mine, own, mine, n, work.world, True, False, False, True, "sum", BLOCK)
            else:
                tx = _sender(call, work, to, WIRE)
                if ok == 1:
                    ok = link.acquire(tx, call, k + j)
                if ok == 1:
                    send = link.slot(tx, call, k + j)
                    transfer(own, send, own, send, n, work.world, True, False, False, True, "sum", BLOCK)
                    link.publish(tx, call, k + j, n * (WIRE.primitive_bitwidth // 8))
    return ok


@jit
def _await_all(call, work, ok, k, WIRE: tl.constexpr):
    # Message k of every rank is here.
    for turn in range(1, work.world):
        if ok == 1:
            ok = link.await_data(_receiver(call, work, (work.me + turn) % work.world, WIRE), call, k)
    return ok


@jit
def _release_all(call, work, k, WIRE: tl.constexpr):
    for turn in range(1, work.world):
        link.release(_receiver(call, work, (work.me + turn) % work.world, WIRE), call, k)


@jit
def _add(
    call, work, ok, first, window, k, source, target, ROUND, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr
):
    # Add messages k on of all ranks into out: the chunk at ``source`` of the data, at ``target`` of the output.
    line = _receiver(call, work, 0, WIRE)
    stride = work.channels * call.SLOTS * call.SLOT
    for j in range(0, window):
        at = work.part + (first + j) * work.piece
        ok = _await_all(call, work, ok, k + j, WIRE)
        if ok == 1:
            recv, out, n = link.slot(line, call, k + j), work.out + target + at, _count(work, at, source)
            combine(recv, stride, out, recv, n, work.bases, work.me, work.world, True, False, False, ROUND, OP, BLOCK)
            _release_all(call, work, k + j, WIRE)
    return ok


@jit
def _add_and_give(call, work, ok, first, window, k, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr):
    # Like _add, for the own chunk, and send the result to every rank as messages k + window on, in the same pass.
    line = _receiver(call, work, 0, WIRE)
    stride = work.channels * call.SLOTS * call.SLOT
    offset = work.me * work.chunk
    for j in range(0, window):
        at = work.part + (first + j) * work.piece
        n = _count(work, at, offset)
        again = k + window + j
        ok = _await_all(call, work, ok, k + j, WIRE)
        for turn in range(1, work.world):
            if ok == 1:
                ok = link.acquire(_sender(call, work, (work.me + turn) % work.world, WIRE), call, again)
        if ok == 1:
            recv, out = link.slot(line, call, k + j), work.out + offset + at
            # Mapped: into the slot of the own link on every rank. Put: into one staging slot, which all puts read.
            own = _sender(call, work, work.me, WIRE)
            send = link.slot(own, call, again)
            combine(
                recv, stride, out, send, n, work.bases, work.me, work.world, True, True, call.MAPPED, True, OP, BLOCK
            )
            for turn in range(1, work.world):
                tx = _sender(call, work, (work.me + turn) % work.world, WIRE)
                same = link.Sender(own.slots, tx.dest, tx.ready, tx.free, tx.abort, tx.peer)
                link.publish(same, call, again, n * (WIRE.primitive_bitwidth // 8))
            _release_all(call, work, k + j, WIRE)
    return ok


@jit
def _collect(call, work, ok, first, window, k, nearest, BLOCK: tl.constexpr, WIRE: tl.constexpr):
    # Write messages k on of all ranks into their chunks of out; the own one too if ``nearest`` is 0.
    for j in range(0, window):
        at = work.part + (first + j) * work.piece
        for turn in range(nearest, work.world):
            source = (work.me + turn) % work.world
            n = _count(work, at, source * work.chunk)
            rx = _receiver(call, work, source, WIRE)
            if source != work.me:
                if ok == 1:
                    ok = link.await_data(rx, call, k + j)
            if ok == 1:
                recv, out = link.slot(rx, call, k + j), work.out + source * work.chunk + at
                transfer(recv, recv, out, recv, n, work.world, False, True, True, False, "sum", BLOCK)
                if source != work.me:
                    link.release(rx, call, k + j)
    return ok


@jit
def _close(call, work, ok, counters, messages, WIRE: tl.constexpr):
    # Count what the links have carried, and this kernel; or pass on that this rank has given up.
    c = shmem.channel()
    if ok == 1:
        shmem.store(counters + c, messages)
        shmem.store(counters + work.channels + c, call.epoch)
    else:
        for turn in range(1, work.world):
            peer = (work.me + turn) % work.world
            link.give_up(_sender(call, work, peer, WIRE), _receiver(call, work, peer, WIRE), call, work.me)


@jit
def two_shot_all_reduce(
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
    epoch = shmem.load(counters + channels + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    work = Work(heap, bases, x, out, numel, chunk, piece, c * pieces * piece, channels, me, world)
    base = shmem.load(counters + c)
    ok = 1
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        k = base + 2 * first
        ok = _give(call, work, ok, first, window, k, chunk, BLOCK, WIRE)
        ok = _add_and_give(call, work, ok, first, window, k, OP, BLOCK, WIRE)
        ok = _collect(call, work, ok, first, window, k + window, 1, BLOCK, WIRE)
    _close(call, work, ok, counters, base + 2 * pieces, WIRE)


@jit
def one_shot_all_reduce(
    x, out, heap, bases, counters, status,
    numel: tl.int64, chunk: tl.int64, piece: tl.int64, pieces: tl.int64,
    me: tl.int32, world: tl.int32, channels: tl.int64, fingerprint: tl.int64, timeout: tl.int64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[i] = sum over ranks of x[i], with one chunk of ``numel`` elements. They may be the same memory."""
    piece = piece // 16 * 16  # changes nothing, but lets the compiler see what allows vectors of 16 bytes
    c = shmem.channel()
    epoch = shmem.load(counters + channels + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    work = Work(heap, bases, x, out, numel, chunk, piece, c * pieces * piece, channels, me, world)
    base = shmem.load(counters + c)
    ok = 1
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        ok = _give(call, work, ok, first, window, base + first, chunk * 0, BLOCK, WIRE)
        ok = _add(call, work, ok, first, window, base + first, chunk * 0, chunk * 0, True, OP, BLOCK, WIRE)
    _close(call, work, ok, counters, base + pieces, WIRE)


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
    epoch = shmem.load(counters + channels + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    work = Work(heap, bases, x, out, numel, chunk, piece, c * pieces * piece, channels, me, world)
    base = shmem.load(counters + c)
    ok = 1
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        ok = _give(call, work, ok, first, window, base + first, chunk, BLOCK, WIRE)
        ok = _add(call, work, ok, first, window, base + first, me * chunk, chunk * 0, False, OP, BLOCK, WIRE)
    _close(call, work, ok, counters, base + pieces, WIRE)


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
    epoch = shmem.load(counters + channels + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    work = Work(heap, bases, x, out, numel, chunk, piece, c * pieces * piece, channels, me, world)
    base = shmem.load(counters + c)
    ok = 1
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        ok = _give(call, work, ok, first, window, base + first, chunk * 0, BLOCK, WIRE)
        ok = _collect(call, work, ok, first, window, base + first, 0, BLOCK, WIRE)
    _close(call, work, ok, counters, base + pieces, WIRE)
