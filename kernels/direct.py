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

from . import chunks, group, link, shmem
from .jit import jit
from .numerics import Reduction
from .tiles import join


class Work(NamedTuple):
    """One channel's share of the data. Sizes and places are in elements."""

    x: object
    out: object
    edges: object  # where each chunk starts, and where the last one ends
    piece: object
    part: object  # where this channel's part of each chunk starts
    root: object  # the first of the ranks that get the result
    roots: object  # how many get it
    ALIGNED: object  # whether chunks start at multiples of 16


@jit
def _wants(work, rank):
    return (rank >= work.root) & (rank < work.root + work.roots)


@jit
def _number(work, rank, first, m):
    # Message m of a link to a rank that gets the result; that of another link, which carries only the first phase.
    number = first
    if _wants(work, rank):
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
        for turn in range(0, net.count):
            to = (net.me + turn) % net.count
            chunk, number = to if SPREAD else to * 0, _number(work, to, first, m) + j
            n = chunks.count(work.edges, chunk, at, work.piece)
            own = work.x + chunks.start(work.edges, chunk, work.ALIGNED) + at
            if SPREAD | _wants(work, to):
                ok = group.give(call, net, to, number, own, n, red, ok, OP, BLOCK, WIRE)
    return ok


@jit
def _add(
    call, net, work, red, ok, first, window, m, chunk, ROUND, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr
):
    # Add messages m on of all ranks, pieces of a chunk, into out.
    for j in range(0, window):
        at = work.part + (first + j) * work.piece
        ok = group.await_all(call, net, ok, m + j, WIRE)
        if ok == 1:
            shares = group.shares(call, net, m + j, WIRE)
            peers = group.peers(call, net, work.root, work.roots, m + j, WIRE)
            recv, n = link.from_member(call, net, net.me, WIRE).slots, chunks.count(work.edges, chunk, at, work.piece)
            out = work.out + at
            join(shares, recv, out, recv, peers, n, red, True, False, True, False, False, True, ROUND, OP, BLOCK)
            group.release_all(call, net, m + j, WIRE)
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
        ok = group.await_all(call, net, ok, m + j, WIRE)
        ok = group.acquire_all(call, net, work.root, work.roots, ok, again, WIRE)
        if ok == 1:
            shares = group.shares(call, net, m + j, WIRE)
            peers = group.peers(call, net, work.root, work.roots, again, WIRE)
            recv = link.from_member(call, net, net.me, WIRE).slots
            out = work.out + chunks.start(work.edges, net.me, work.ALIGNED) + at
            join(shares, recv, out, recv, peers, n, red, True, False, KEEP, False, True, True, True, OP, BLOCK)
            group.publish_all(call, net, work.root, work.roots, again, n * (WIRE.primitive_bitwidth // 8), WIRE)
            group.release_all(call, net, m + j, WIRE)
    return ok


@jit
def _collect(
    call, net, work, red, ok, first, window, m, nearest, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr
):
    # Write messages m on of all ranks into their chunks of out; the own one too if ``nearest`` is 0.
    for j in range(0, window):
        at = work.part + (first + j) * work.piece
        for turn in range(nearest, net.count):
            source = (net.me + turn) % net.count
            n = chunks.count(work.edges, source, at, work.piece)
            out = work.out + chunks.start(work.edges, source, work.ALIGNED) + at
            ok = group.receive(call, net, source, m + j, out, n, red, ok, OP, BLOCK, WIRE)
    return ok


@jit
def _close(call, net, work, ok, once, twice, WIRE: tl.constexpr):
    # Count this kernel and what the links have carried: ``once`` messages to and from every rank, and ``twice`` more to
    # those who want the result. Or pass on that this rank has given up.
    if ok == 1:
        shmem.store(net.counters + shmem.channel(), call.epoch)
        for rank in range(0, net.count):
            link.advance(link.sent(net, rank), once)
            link.advance(link.received(net, rank), once)
            if _wants(work, rank) | (rank == net.me):
                link.advance(link.sent(net, rank), twice)
            if _wants(work, net.me) | (rank == net.me):
                link.advance(link.received(net, rank), twice)
    else:
        group.give_up(call, net, WIRE)


@jit
def two_shot(
    x, out, heap, bases, counters, status, edges, tally,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64,
    root: tl.int32, roots: tl.int32, fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr, ROOTED: tl.constexpr,
):  # fmt: skip
    """out = the reduction over ranks of x. They may be the same memory.

    ROOTED: on ``roots`` ranks from ``root`` on, which is one. Else they are all.
    """
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    net = link.Net(heap, bases, counters, world, channels, me, me, 0, world)
    work = Work(x, out, edges, piece, c * pieces * piece, root, roots, ALIGNED)
    red = Reduction(world, scale, tally)
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
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64,
    root: tl.int32, roots: tl.int32, fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = the reduction over ranks of x: on ``roots`` ranks from ``root`` on. One chunk."""
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    net = link.Net(heap, bases, counters, world, channels, me, me, 0, world)
    work = Work(x, out, edges, piece, c * pieces * piece, root, roots, ALIGNED)
    red = Reduction(world, scale, None)
    ok = 1
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        ok = _give(call, net, work, red, ok, first, window, first, False, OP, BLOCK, WIRE)
        if _wants(work, me):
            ok = _add(call, net, work, red, ok, first, window, first, first * 0, True, OP, BLOCK, WIRE)
    _close(call, net, work, ok, pieces * 0, pieces, WIRE)


@jit
def reduce_scatter(
    x, out, heap, bases, counters, status, edges, tally,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64,
    root: tl.int32, roots: tl.int32, fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = chunk ``me`` of the reduction over ranks of x, which holds all chunks. Roots are all."""
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    net = link.Net(heap, bases, counters, world, channels, me, me, 0, world)
    work = Work(x, out, edges, piece, c * pieces * piece, root, roots, ALIGNED)
    red = Reduction(world, scale, tally)
    ok = 1
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        ok = _give(call, net, work, red, ok, first, window, first, True, OP, BLOCK, WIRE)
        ok = _add(call, net, work, red, ok, first, window, first, me, False, OP, BLOCK, WIRE)
    _close(call, net, work, ok, pieces, pieces * 0, WIRE)
