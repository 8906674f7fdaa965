"""All-reduce along a chain: partial sums go up from rank 0 to the last one, and the result comes down again.

A rank adds its own share to what comes from below, in FP32, and sends that on, rounded to the wire dtype; the last rank
finishes the sum, rounds it, and keeps what it sends. 2(n-1) steps a piece, and 2M bytes a rank, M at the ends. A rank
sends a piece up and waits for its result before it takes the next one; the last rank waits for nothing but pieces, so
there is always somebody who can go on.
"""

import triton.language as tl

from tricoll.kernels import chunks, group, link, shmem
from tricoll.kernels.jit import jit
from tricoll.kernels.numerics import Reduction
from tricoll.kernels.tiles import transfer


@jit
def all_reduce(
    x, out, heap, bases, counters, status, edges,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64,
    fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out = the reduction over ranks of x. They may be the same memory."""
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    net = link.Net(heap, bases, counters, world, channels, me, me, 0, world)
    red = Reduction(world, scale, None)
    below, above, last = max(me - 1, 0), min(me + 1, world - 1), world - 1
    ok = 1
    for j in range(0, pieces):
        at = c * pieces * piece + j * piece
        n, own, result = chunks.count(edges, 0, at, piece), x + at, out + at
        # Up.
        rx, k = link.from_member(call, net, below, WIRE), shmem.load(link.received(net, below)) + j
        partial = link.slot(rx, call, k)
        if (ok == 1) & (me > 0):
            ok = link.await_data(rx, call, k)
        if me == 0:
            ok = group.send(call, net, above, j, own, own, own, n, red, ok, True, False, False, OP, BLOCK, WIRE)
        elif me < last:
            ok = group.send(call, net, above, j, own, partial, own, n, red, ok, True, True, False, OP, BLOCK, WIRE)
        else:  # the sum is complete: what is sent is also kept
            tx, m = link.to_member(call, net, below, WIRE), shmem.load(link.sent(net, below)) + j
            if ok == 1:
                ok = link.acquire(tx, call, m)
            if ok == 1:
                send = link.slot(tx, call, m)
                transfer(own, partial, result, send, n, red, True, True, True, True, True, OP, BLOCK)
                link.publish(tx, call, m, n * (WIRE.primitive_bitwidth // 8))
        if (ok == 1) & (me > 0):
            link.release(rx, call, k)
        # Down.
        if me < last:
            back, m = link.from_member(call, net, above, WIRE), shmem.load(link.received(net, above)) + j
            total = link.slot(back, call, m)
            if ok == 1:
                ok = link.await_data(back, call, m)
            if me > 0:
                ok = group.send(
                    call, net, below, j, total, total, result, n, red, ok, False, True, True, OP, BLOCK, WIRE
                )  # fmt: skip
            elif ok == 1:
                transfer(total, total, result, total, n, red, False, True, True, False, False, OP, BLOCK)
            if ok == 1:
                link.release(back, call, m)
    if ok == 1:
        shmem.store(counters + c, epoch)
        if me > 0:
            link.advance(link.sent(net, below), pieces)
            link.advance(link.received(net, below), pieces)
        if me < last:
            link.advance(link.sent(net, above), pieces)
            link.advance(link.received(net, above), pieces)
    else:
        group.give_up(call, net, WIRE)
