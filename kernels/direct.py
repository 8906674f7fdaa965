"""Direct reductions: every rank reaches every other in one step.

*Two-shot*: rank r collects chunk r from all ranks and reduces it (a reduce-scatter), then gives the result to all (an
all-gather). Two steps, and the minimum of bytes. *One-shot*: every rank gives all of its data to all, and each reduces
them itself. One step, and n - 1 times the data: for small messages. Both can also leave the result on one rank, the
root, only: then a second step goes to the root alone, and a single one too.

Both go through the ranks in their order, x[0] + x[1] + ... + x[n-1], in FP32, and round once. What is added has the
wire dtype, the own share included, so an element's bits depend on the ranks' values only: not on where it lies, on the
size of the message, or on how it is cut into chunks, channels and pieces. This is the reproducible mode.

It takes a link between every two ranks, so it is for one NVLink domain or a few ranks. A rank's link to itself carries
nothing; its slots hold the rank's own share, in line with the others'.

``WINDOW`` pieces go through each phase together, so that one is on its way while another is worked on. With SLOTS >
WINDOW it cannot deadlock: the sum of piece j needs slots that were given back after the sum of piece j - 1.
"""

from typing import NamedTuple

import triton.language as tl

from . import chunks, link, shmem
from .jit import jit
from .numerics import Reduction
from .tiles import Peers, Shares, join, transfer


class Work(NamedTuple):
    """One channel's share of the data. Sizes and places are in elements."""

    x: object
    out: object
    edges: object  # where each chunk starts, and where the last one ends
    piece: object
    part: object  # where this channel's part of each chunk starts
    root: object  # the rank that gets the result; the world size if all do
    world: object
    ALIGNED: object  # whether chunks start at multiples of 16


@jit
def _to(call, net, rank, WIRE: tl.constexpr):
    return link.to_rank(call, net, net.me, rank, rank, WIRE)


@jit
def _from(call, net, rank, WIRE: tl.constexpr):
    return link.from_rank(call, net, net.me, rank, rank, WIRE)


@jit
def _number(work, rank, first, m):
    # Message m of a link to a rank that gets the result; that of another link, which carries only the first phase.
    number = first
    if (work.root == work.world) | (work.root == rank):
        number = m
    return number


@jit
def _give(
    call, net, work, red, ok, first, window, m, SPREAD, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr
):
    # Send pieces first to first + window of x, as messages m on of this kernel, or as _number says: with SPREAD chunk p
    # to rank p, else the one chunk there is to every rank that wants it. Returns the new ``ok``.
    for j in range(0, window):
        at = work.part + (first + j) * work.piece
        for turn in range(0, work.world):
            to = (net.me + turn) % work.world  # everybody starts with another peer, to spread the traffic
            chunk, number = to if SPREAD else to * 0, _number(work, to, first, m) + j
            n = chunks.count(work.edges, chunk, at, work.piece)
            own = work.x + chunks.start(work.edges, chunk, work.ALIGNED) + at
            if to == net.me:
                mine = link.slot(_from(call, net, to, WIRE), call, shmem.load(link.received(net, to)) + number)
                if ok == 1:
                    transfer(own, mine, own, mine, n, red, True, False, False, True, False, OP, BLOCK)
            elif SPREAD | (work.root == work.world) | (work.root == to):
                tx, k = _to(call, net, to, WIRE), shmem.load(link.sent(net, to)) + number
                if ok == 1:
                    ok = link.acquire(tx, call, k)
                if ok == 1:
                    send = link.slot(tx, call, k)
                    transfer(own, send, own, send, n, red, True, False, False, True, False, OP, BLOCK)
                    link.publish(tx, call, k, n * (WIRE.primitive_bitwidth // 8))
    return ok


@jit
def _await_all(call, net, work, ok, m, WIRE: tl.constexpr):
    # Message m of every rank is here.
    for turn in range(1, work.world):
        source = (net.me + turn) % work.world
        if ok == 1:
            ok = link.await_data(_from(call, net, source, WIRE), call, shmem.load(link.received(net, source)) + m)
    return ok


@jit
def _release_all(call, net, work, m, WIRE: tl.constexpr):
    for turn in range(1, work.world):
        source = (net.me + turn) % work.world
        link.release(_from(call, net, source, WIRE), call, shmem.load(link.received(net, source)) + m)


@jit
def _shares(call, net, work, m, WIRE: tl.constexpr):
    # Message m of every rank, to be read.
    received, stride = link.received(net, net.me * 0), net.channels * call.SLOTS * call.SLOT
    line = _from(call, net, net.me * 0, WIRE)
    return Shares(line.slots, stride, received, net.channels, m, work.world, call.SLOTS, call.SLOT)


@jit
def _peers(call, net, work, m, WIRE: tl.constexpr):
    # Message m to every rank that wants the result, to be written.
    first, count, staging = work.root, net.me * 0 + 1, net.me * 0 + 1
    if work.root == work.world:
        first, count = net.me * 0, work.world
    elif work.root == net.me:
        staging = net.me * 0
    stride = net.channels * call.SLOTS * call.SLOT
    line = link.outgoing(call, net, net.me, first, staging, WIRE)
    sent = link.sent(net, first)
    return Peers(
        line, stride, net.bases, net.me, first, count, sent, net.channels, m, call.MAPPED, call.SLOTS, call.SLOT
    )  # fmt: skip


@jit
def _add(
    call, net, work, red, ok, first, window, m, chunk, ROUND, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr
):
    # Add messages m on of all ranks, pieces of a chunk, into out.
    for j in range(0, window):
        at = work.part + (first + j) * work.piece
        ok = _await_all(call, net, work, ok, m + j, WIRE)
        if ok == 1:
            shares, peers = _shares(call, net, work, m + j, WIRE), _peers(call, net, work, m + j, WIRE)
            recv, n = _from(call, net, net.me, WIRE).slots, chunks.count(work.edges, chunk, at, work.piece)
            out = work.out + at
            join(shares, recv, out, recv, peers, n, red, True, False, True, False, False, True, ROUND, OP, BLOCK)
            _release_all(call, net, work, m + j, WIRE)
    return ok


@jit
def _add_and_give(
    call, net, work, red, ok, first, window, m, result, KEEP,
    OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr,
):  # fmt: skip
    # Like _add, for the own chunk, and send the result to those who want it, as messages ``result`` on, in one pass.
    for j in range(0, window):
        at = work.part + (first + j) * work.piece
        n, again = chunks.count(work.edges, net.me, at, work.piece), result + j
        ok = _await_all(call, net, work, ok, m + j, WIRE)
        for turn in range(1, work.world):
            to = (net.me + turn) % work.world
            if (ok == 1) & ((work.root == work.world) | (work.root == to)):
                ok = link.acquire(_to(call, net, to, WIRE), call, shmem.load(link.sent(net, to)) + again)
        if ok == 1:
            shares, peers = _shares(call, net, work, m + j, WIRE), _peers(call, net, work, again, WIRE)
            recv, out = (
                _from(call, net, net.me, WIRE).slots,
                work.out + chunks.start(work.edges, net.me, work.ALIGNED) + at,
            )
            join(shares, recv, out, recv, peers, n, red, True, False, KEEP, False, True, True, True, OP, BLOCK)
            for turn in range(1, work.world):
                to = (net.me + turn) % work.world
                if (work.root == work.world) | (work.root == to):
                    k = shmem.load(link.sent(net, to)) + again
                    link.publish(_to(call, net, to, WIRE), call, k, n * (WIRE.primitive_bitwidth // 8))
            _release_all(call, net, work, m + j, WIRE)
    return ok


@jit
def _collect(
    call, net, work, red, ok, first, window, m, nearest, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr
):
    # Write messages m on of all ranks into their chunks of out; the own one too if ``nearest`` is 0.
    for j in range(0, window):
        at = work.part + (first + j) * work.piece
        for turn in range(nearest, work.world):
            source = (net.me + turn) % work.world
            rx, k = _from(call, net, source, WIRE), shmem.load(link.received(net, source)) + m + j
            if (ok == 1) & (source != net.me):
                ok = link.await_data(rx, call, k)
            if ok == 1:
                recv, out = link.slot(rx, call, k), work.out + chunks.start(work.edges, source, work.ALIGNED) + at
                n = chunks.count(work.edges, source, at, work.piece)
                transfer(recv, recv, out, recv, n, red, False, True, True, False, False, OP, BLOCK)
                if source != net.me:
                    link.release(rx, call, k)
    return ok


@jit
def _close(call, net, work, ok, once, twice, WIRE: tl.constexpr):
    # Count this kernel and what the links have carried: ``once`` messages to and from every rank, and ``twice`` more to
    # those who want the result. Or pass on that this rank has given up.
    if ok == 1:
        shmem.store(net.counters + shmem.channel(), call.epoch)
        for rank in range(0, work.world):
            link.advance(link.sent(net, rank), once)
            link.advance(link.received(net, rank), once)
            if (work.root == work.world) | (work.root == rank) | (rank == net.me):
                link.advance(link.sent(net, rank), twice)
            if (work.root == work.world) | (work.root == net.me) | (rank == net.me):
                link.advance(link.received(net, rank), twice)
    else:
        for turn in range(1, work.world):
            rank = (net.me + turn) % work.world
            link.give_up(_to(call, net, rank, WIRE), _from(call, net, rank, WIRE), call, net.me)


@jit
def two_shot(
    x, out, heap, bases, counters, status, edges,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64, root: tl.int32,
    fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr, ROOTED: tl.constexpr,
):  # fmt: skip
    """out = the reduction over ranks of x. They may be the same memory.

    ROOTED: on rank ``root`` only. Else ``root`` is the world size.
    """
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    net = link.Net(heap, bases, counters, world, channels, me)
    work = Work(x, out, edges, piece, c * pieces * piece, root, world, ALIGNED)
    red = Reduction(world, scale)
    ok = 1
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        m, result = _number(work, me, first, 2 * first), 2 * first + window
        ok = _give(call, net, work, red, ok, first, window, 2 * first, True, OP, BLOCK, WIRE)
        if ROOTED:
            ok = _add_and_give(call, net, work, red, ok, first, window, m, result, False, OP, BLOCK, WIRE)
            if me == root:
                ok = _collect(call, net, work, red, ok, first, window, result, 0, OP, BLOCK, WIRE)
        else:
            ok = _add_and_give(call, net, work, red, ok, first, window, m, result, True, OP, BLOCK, WIRE)
            ok = _collect(call, net, work, red, ok, first, window, result, 1, OP, BLOCK, WIRE)
    _close(call, net, work, ok, pieces, pieces, WIRE)


@jit
def one_shot(
    x, out, heap, bases, counters, status, edges,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64, root: tl.int32,
    fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = the reduction over ranks of x: on rank ``root`` only, or on all if that is the world size. One chunk."""
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    net = link.Net(heap, bases, counters, world, channels, me)
    work = Work(x, out, edges, piece, c * pieces * piece, root, world, ALIGNED)
    red = Reduction(world, scale)
    ok = 1
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        ok = _give(call, net, work, red, ok, first, window, first, False, OP, BLOCK, WIRE)
        if (root == world) | (root == me):
            ok = _add(call, net, work, red, ok, first, window, first, first * 0, True, OP, BLOCK, WIRE)
    _close(call, net, work, ok, pieces * 0, pieces, WIRE)


@jit
def reduce_scatter(
    x, out, heap, bases, counters, status, edges,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64, root: tl.int32,
    fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = chunk ``me`` of the reduction over ranks of x, which holds all chunks. ``root`` is the world size."""
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    net = link.Net(heap, bases, counters, world, channels, me)
    work = Work(x, out, edges, piece, c * pieces * piece, root, world, ALIGNED)
    red = Reduction(world, scale)
    ok = 1
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        ok = _give(call, net, work, red, ok, first, window, first, True, OP, BLOCK, WIRE)
        ok = _add(call, net, work, red, ok, first, window, first, me, False, OP, BLOCK, WIRE)
    _close(call, net, work, ok, pieces, pieces * 0, WIRE)
