"""In-switch all-reduce (NVLink SHARP): the NVSwitch adds, and its multicast spreads the result.

Every rank puts its share of piece j of every chunk, in the wire dtype, into its own slots, and says so to all. When all
have, rank r reads chunk r through the multicast address: the switch fetches the element from all ranks, adds in FP32,
rounds to the wire dtype and delivers the sum. It is written back to the multicast address, which is the same slot on
every rank; then r says so to all, and everybody copies all chunks to its output. Two steps; a rank sends M bytes (its
shares, which the switch fetches) and M / n (its chunk of the result).

The sum is rounded once. In what order the switch adds is not known; the CPU fabrics emulate rank order. An average is
divided after that rounding, since the switch cannot.

Words of the links are used so: ``ready`` says that the shares of piece k are in place, ``free`` that chunk r of the
result has replaced them. A rank overwrites its slots with piece k + SLOTS when all results of piece k have come, and
whoever reduces that piece waits for it to be there; so a slot is never written too early.
"""

from typing import NamedTuple

import triton.language as tl

from . import chunks, group, link, shmem
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


@jit
def _share(call, net, work, red, ok, at, k, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr):
    # Put this rank's piece of each chunk into the slot of that chunk, and tell its owner.
    for turn in range(0, net.count):
        rank = (net.me + turn) % net.count
        n, own = chunks.count(work.edges, rank, at, work.piece), work.x + chunks.start(work.edges, rank, True) + at
        mine = link.slot(link.from_member(call, net, rank, WIRE), call, k)
        if ok == 1:
            transfer(own, mine, own, mine, n, red, True, False, False, True, False, OP, BLOCK)
            link.publish(link.to_member(call, net, rank, WIRE), call, k, n * (WIRE.primitive_bitwidth // 8))


@jit
def _reduce(call, net, work, multicast, ok, at, k, BLOCK: tl.constexpr, WIRE: tl.constexpr):
    # When the shares of all are in place, replace them by their sum on every rank and tell all. Returns the new ``ok``.
    for turn in range(0, net.count):
        if ok == 1:
            ok = link.await_data(link.from_member(call, net, (net.me + turn) % net.count, WIRE), call, k)
    if ok == 1:
        n = chunks.count(work.edges, net.me, at, work.piece)
        nbytes = n * (WIRE.primitive_bitwidth // 8)
        everywhere = link.Net(
            multicast, net.bases, net.counters, net.links, net.channels, net.me, net.here, net.base, net.count
        )
        shmem.multicast_sum(link.slot(link.from_member(call, everywhere, net.me, WIRE), call, k), n, BLOCK)
        for turn in range(0, net.count):  # this rank first: it, too, must know that its own stores have come back
            link.answer(link.from_member(call, net, (net.me + turn) % net.count, WIRE), call, k, nbytes)
            nbytes = nbytes * 0  # the accounts have it once: it is one store, spread by the switch
    return ok


@jit
def _collect(call, net, work, red, ok, at, k, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr):
    # Copy the results of all chunks to the output, as they come. Returns the new ``ok``.
    for turn in range(0, net.count):
        rank = (net.me + turn) % net.count
        if ok == 1:
            # Waits for the answer to message k.
            ok = link.acquire(link.to_member(call, net, rank, WIRE), call, k + call.SLOTS)
        if ok == 1:
            recv = link.slot(link.from_member(call, net, rank, WIRE), call, k)
            n = chunks.count(work.edges, rank, at, work.piece)
            out = work.out + chunks.start(work.edges, rank, True) + at
            transfer(recv, recv, out, recv, n, red, False, True, True, False, True, OP, BLOCK)
    shmem.barrier()  # every thread has read the slots before this rank says that it has put new shares there
    return ok


@jit
def all_reduce(
    x, out, heap, bases, counters, status, edges, multicast,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64,
    fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = the sum or average over ranks of x. They may be the same memory. ``multicast``: the heap on all ranks."""
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    net = link.Net(heap, bases, counters, world, channels, me, me, 0, world)
    work = Work(x, out, edges, piece, c * pieces * piece)
    red = Reduction(world, scale, None)
    base = shmem.load(counters + channels + c)
    ok = 1
    # The shares of piece j + 1 are put in place before the results of piece j are waited for: SLOTS >= 2.
    for j in range(0, pieces + 1):
        if j < pieces:
            _share(call, net, work, red, ok, work.part + j * piece, base + j, OP, BLOCK, WIRE)
        if j > 0:
            ok = _collect(call, net, work, red, ok, work.part + (j - 1) * piece, base + j - 1, OP, BLOCK, WIRE)
        if j < pieces:
            ok = _reduce(call, net, work, multicast, ok, work.part + j * piece, base + j, BLOCK, WIRE)
    if ok == 1:
        shmem.store(counters + c, epoch)
        shmem.store(counters + channels + c, base + pieces)
    else:
        group.give_up(call, net, WIRE)
