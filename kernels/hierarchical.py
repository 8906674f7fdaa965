"""Hierarchical collectives: for several nodes of several ranks, with fast links inside a node and slow ones between.

The data are cut into one chunk a rank. Rank ``local`` of every node is on the same *rail*, and stands for chunks
``local``, ``size + local``, ``2 size + local`` ..., one a node. Reduce-scatter: the ranks of a node give each other
their shares directly, and the sums go round the rail as in a ring: to the chunk that will end at node s, node s + 1
gives its sum first and node s adds its own last. All-gather: each finished chunk goes round the rail, and whoever gets
one gives it to the others of its node. All-reduce is the one after the other.

A node's shares, each rounded to the wire dtype, are added in the order of its ranks, in FP32; what came along the rail
is added to that, and what goes on is rounded. So an element is rounded once, and once more at every node.

``WINDOW`` pieces go through each step together: while one is on the rail, the ranks of a node are at the next. With
SLOTS > WINDOW it cannot deadlock, for the reasons that the ring and the direct algorithms have.

Bytes sent a rank, of M: over the rail (nodes - 1) / nodes of M / size for each half, which is the minimum; inside the
node (size - 1) / size of M for each half. Steps: ``nodes`` for each half.

Links of a rank: number l from rank l of its node, and number ``size`` from the node on its left.
"""

from typing import NamedTuple

import triton.language as tl

from . import chunks, group, link, shmem
from .jit import jit
from .numerics import Reduction
from .tiles import join


class Work(NamedTuple):
    """One channel's share of the data, and this rank's place. Sizes and places are in elements."""

    x: object
    out: object
    edges: object  # where each chunk starts, and where the last one ends
    piece: object
    part: object  # where this channel's part of each chunk starts
    node: object
    nodes: object
    local: object  # which rank of its node
    size: object  # ranks a node
    ALIGNED: object  # whether chunks start at multiples of 16


@jit
def _to_right(call, net, work, WIRE: tl.constexpr):
    rank = (work.node + 1) % work.nodes * work.size + work.local
    return link.to_rank(call, net, work.size, work.size, rank, WIRE)


@jit
def _from_left(call, net, work, WIRE: tl.constexpr):
    rank = (work.node + work.nodes - 1) % work.nodes * work.size + work.local
    return link.from_rank(call, net, work.size, work.size, rank, WIRE)


@jit
def _give(
    call, net, work, red, ok, first, window, m, s, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr
):  # fmt: skip
    # Pieces first to first + window of what will end at node s: each rank of this node gets its chunk of it, as
    # messages m on. Returns the new ``ok``.
    for j in range(0, window):
        at = work.part + (first + j) * work.piece
        for turn in range(0, work.size):
            number = (work.local + turn) % work.size
            chunk = s * work.size + number
            n = chunks.count(work.edges, chunk, at, work.piece)
            own = work.x + chunks.start(work.edges, chunk, work.ALIGNED) + at
            ok = group.give(call, net, number, m + j, own, n, red, ok, OP, BLOCK, WIRE)
    return ok


@jit
def _hop(
    call, net, work, red, ok, first, window, m, again, k, s, target, SHARES, RECV, KEEP, SEND, SPREAD, LAST, ROUND,
    OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr,
):  # fmt: skip
    # Pieces first to first + window of this rank's chunk for node s. SHARES: add those of this node, its messages m
    # on. RECV: take what was message k - window on of the rail. SEND: pass it on as k on. SPREAD: give it to the
    # others of this node as messages ``again`` on. Without SHARES and RECV, it lies in this rank's own slot. The
    # switches are known at run time only, so that the bulk loop is written once: each copy would have to be compiled.
    chunk = s * work.size + work.local
    tx, rx = _to_right(call, net, work, WIRE), _from_left(call, net, work, WIRE)
    mine = link.from_member(call, net, work.local, WIRE)
    for j in range(0, window):
        at = work.part + (first + j) * work.piece
        n = chunks.count(work.edges, chunk, at, work.piece)
        sent = shmem.load(link.sent(net, work.size)) + k + j
        received = shmem.load(link.received(net, work.size)) + k - window + j
        own = shmem.load(link.received(net, work.local)) + again + j
        recv = link.slot(mine, call, own)
        if RECV:
            recv = link.slot(rx, call, received)
        if SHARES:
            ok = group.await_all(call, net, ok, m + j, WIRE)
        if RECV & (ok == 1):
            ok = link.await_data(rx, call, received)
        if SEND & (ok == 1):
            ok = link.acquire(tx, call, sent)
        if SPREAD:
            ok = group.acquire_all(call, net, 0, net.count, ok, again + j, WIRE)
        if ok == 1:
            shares = group.shares(call, net, m + j, WIRE)
            peers = group.peers(call, net, 0, net.count, again + j, WIRE)
            join(
                shares, recv, work.out + target + at, link.slot(tx, call, sent), peers, n, red,
                SHARES, RECV, KEEP, SEND, SPREAD, LAST, ROUND, OP, BLOCK,
            )  # fmt: skip
            nbytes = n * (WIRE.primitive_bitwidth // 8)
            if SEND:
                link.publish(tx, call, sent, nbytes)
            if SPREAD:
                group.publish_all(call, net, 0, net.count, again + j, nbytes, WIRE)
            if SHARES:
                group.release_all(call, net, m + j, WIRE)
            if RECV:
                link.release(rx, call, received)
    return ok


@jit
def _collect(
    call, net, work, red, ok, first, window, m, s, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr
):  # fmt: skip
    # Write what the others of this node give as messages m on, their chunks of node s, into out.
    for j in range(0, window):
        at = work.part + (first + j) * work.piece
        for turn in range(1, work.size):
            number = (work.local + turn) % work.size
            chunk = s * work.size + number
            n = chunks.count(work.edges, chunk, at, work.piece)
            out = work.out + chunks.start(work.edges, chunk, work.ALIGNED) + at
            ok = group.receive(call, net, number, m + j, out, n, red, ok, OP, BLOCK, WIRE)
    return ok


@jit
def _close(call, net, work, ok, inside, along, WIRE: tl.constexpr):
    # Count this kernel, and the messages of the links inside the node and along the rail; or pass on that this rank
    # has given up.
    if ok == 1:
        shmem.store(net.counters + shmem.channel(), call.epoch)
        for number in range(0, work.size):
            link.advance(link.sent(net, number), inside)
            link.advance(link.received(net, number), inside)
        link.advance(link.sent(net, work.size), along)
        link.advance(link.received(net, work.size), along)
    else:
        group.give_up(call, net, WIRE)
        link.give_up(_to_right(call, net, work, WIRE), _from_left(call, net, work, WIRE), call, net.me)


@jit
def all_reduce(
    x, out, heap, bases, counters, status, edges, tally,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64, node_size: tl.int32,
    fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = the reduction over ranks of x. They may be the same memory."""
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    node, nodes, local = me // node_size, world // node_size, me % node_size
    net = link.Net(heap, bases, counters, node_size + 1, channels, me, local, node * node_size, node_size)
    work = Work(x, out, edges, piece, c * pieces * piece, node, nodes, local, node_size, ALIGNED)
    red = Reduction(world, scale, tally)
    ok = 1
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        m, k = 2 * nodes * first, (2 * nodes - 2) * first
        for step in range(0, 2 * nodes - 1):  # the chunk for this node is complete at step nodes - 1
            s, mine = (node + 2 * nodes - 1 - step) % nodes, m + step * window
            at = chunks.start(work.edges, s * work.size + work.local, work.ALIGNED)
            summing, done = step < nodes, step >= nodes - 1
            if summing:
                ok = _give(call, net, work, red, ok, first, window, mine, s, OP, BLOCK, WIRE)
            ok = _hop(
                call, net, work, red, ok, first, window, mine, mine + window, k + step * window, s, at,
                summing, step > 0, done, step < 2 * nodes - 2, done, step == nodes - 1, True, OP, BLOCK, WIRE,
            )  # fmt: skip
            if done:
                ok = _collect(call, net, work, red, ok, first, window, mine + window, s, OP, BLOCK, WIRE)
    _close(call, net, work, ok, 2 * nodes * pieces, (2 * nodes - 2) * pieces, WIRE)


@jit
def reduce_scatter(
    x, out, heap, bases, counters, status, edges, tally,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64, node_size: tl.int32,
    fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = chunk ``me`` of the reduction over ranks of x, which holds all chunks."""
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    node, nodes, local = me // node_size, world // node_size, me % node_size
    net = link.Net(heap, bases, counters, node_size + 1, channels, me, local, node * node_size, node_size)
    work = Work(x, out, edges, piece, c * pieces * piece, node, nodes, local, node_size, ALIGNED)
    red = Reduction(world, scale, tally)
    ok = 1
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        m, k = nodes * first, (nodes - 1) * first
        for step in range(0, nodes):
            s, mine, last = (node + nodes - 1 - step) % nodes, m + step * window, step == nodes - 1
            ok = _give(call, net, work, red, ok, first, window, mine, s, OP, BLOCK, WIRE)
            # The own chunk, the last, goes from the accumulator to the output, not through the wire dtype.
            ok = _hop(
                call, net, work, red, ok, first, window, mine, mine, k + step * window, s, 0,
                True, step > 0, last, step < nodes - 1, False, last, step < nodes - 1, OP, BLOCK, WIRE,
            )  # fmt: skip
    _close(call, net, work, ok, nodes * pieces, (nodes - 1) * pieces, WIRE)


@jit
def all_gather(
    x, out, heap, bases, counters, status, edges,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64, node_size: tl.int32,
    fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Chunk r of out = x of rank r. OP is not used."""
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    node, nodes, local = me // node_size, world // node_size, me % node_size
    net = link.Net(heap, bases, counters, node_size + 1, channels, me, local, node * node_size, node_size)
    work = Work(x, out, edges, piece, c * pieces * piece, node, nodes, local, node_size, ALIGNED)
    red = Reduction(world, scale, None)
    ok = 1
    for first in range(0, pieces, WINDOW):
        window = min(WINDOW, pieces - first)
        m, k = nodes * first, (nodes - 1) * first
        for j in range(0, window):  # into the own slot, in the wire dtype
            at = work.part + (first + j) * piece
            n = chunks.count(work.edges, me, at, work.piece)
            group.keep(call, net, m + j, x + at, n, red, ok, OP, BLOCK, WIRE)
        for step in range(0, nodes):
            s, mine = (node + nodes - step) % nodes, m + step * window
            at = chunks.start(work.edges, s * work.size + work.local, work.ALIGNED)
            ok = _hop(
                call, net, work, red, ok, first, window, mine, mine, k + step * window, s, at,
                False, step > 0, True, step < nodes - 1, True, False, True, OP, BLOCK, WIRE,
            )  # fmt: skip
            ok = _collect(call, net, work, red, ok, first, window, mine, s, OP, BLOCK, WIRE)
    _close(call, net, work, ok, nodes * pieces, (nodes - 1) * pieces, WIRE)
