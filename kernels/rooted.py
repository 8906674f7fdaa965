"""Broadcast down, and reduce up, a tree of any shape whose root is the rank that has, or gets, the data.

A chain (every rank has one child: algorithm ``ring``) sends each byte once per rank and takes n - 1 steps, pipelined:
for large data. A binary tree (``tree``) takes about log2(n) steps, and its inner ranks send everything twice. A star
(all others are the root's children: ``one_shot``, broadcast only) takes one, and the root sends all n - 1 times.

Going up, a rank adds x + first child + second child, in FP32, and what goes up is rounded to the wire dtype; so is the
result. Going down, every rank keeps the value as it travels, the root too.

Piece follows piece down or up the same path, and every rank sends on what it has received before it takes the next, so
there is nothing to deadlock on.
"""

from typing import NamedTuple

import triton.language as tl

from . import chunks, group, link, shmem
from .jit import jit
from .numerics import Reduction
from .tiles import merge, transfer


class Work(NamedTuple):
    """One channel's share of the data, and this rank's place in the tree. Sizes and places are in elements."""

    edges: object  # where the data begin and end
    piece: object
    part: object  # where this channel's part starts
    parent: object  # -1: this rank is the root
    children: object  # how many
    nodes: object  # parent, number of children, children


@jit
def _child(work, number):
    return shmem.load(work.nodes + 2 + number)


@jit
def _close(call, net, work, ok, down, up, WIRE: tl.constexpr):
    # Count this kernel and what the links have carried: ``down`` messages from parents, ``up`` messages from children.
    # Or pass on that this rank has given up.
    if ok == 1:
        shmem.store(net.counters + shmem.channel(), call.epoch)
    for number in range(0, work.children + 1):
        rank, sends, receives = work.parent, up, down
        if number < work.children:
            rank, sends, receives = _child(work, number), down, up
        if rank >= 0:
            if ok == 1:
                link.advance(link.sent(net, rank), sends)
                link.advance(link.received(net, rank), receives)
            else:
                tx, rx = link.to_member(call, net, rank, WIRE), link.from_member(call, net, rank, WIRE)
                link.give_up(tx, rx, call, net.me)


@jit
def broadcast(
    x, out, heap, bases, counters, status, edges, nodes,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64,
    fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = x of the root. They may be the same memory."""
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    net = link.Net(heap, bases, counters, world, channels, me, me, 0, world)
    red = Reduction(world, scale, None)
    parent, children = shmem.load(nodes), shmem.load(nodes + 1)
    work = Work(edges, piece, c * pieces * piece, parent, children, nodes)
    ok = 1
    for j in range(0, pieces):
        at = work.part + j * piece
        n, source, target = chunks.count(work.edges, 0, at, work.piece), x + at, out + at
        rx, k = link.from_member(call, net, max(parent, 0), WIRE), shmem.load(link.received(net, max(parent, 0))) + j
        recv = link.slot(rx, call, k)
        if parent < 0:
            ok = group.send(
                call, net, _child(work, 0), j, source, recv, target, n, red, ok, True, False, True, OP, BLOCK, WIRE
            )  # fmt: skip
            for number in range(1, children):
                child = _child(work, number)
                ok = group.send(
                    call, net, child, j, source, recv, target, n, red, ok, True, False, False, OP, BLOCK, WIRE
                )  # fmt: skip
        else:
            if ok == 1:
                ok = link.await_data(rx, call, k)
            if children > 0:
                ok = group.send(
                    call, net, _child(work, 0), j, recv, recv, target, n, red, ok, False, True, True, OP, BLOCK, WIRE
                )  # fmt: skip
                for number in range(1, children):
                    child = _child(work, number)
                    ok = group.send(
                        call, net, child, j, recv, recv, target, n, red, ok, False, True, False, OP, BLOCK, WIRE
                    )  # fmt: skip
            elif ok == 1:
                transfer(recv, recv, target, recv, n, red, False, True, True, False, False, OP, BLOCK)
            if ok == 1:
                link.release(rx, call, k)
    _close(call, net, work, ok, pieces, pieces * 0, WIRE)


@jit
def reduce(
    x, out, heap, bases, counters, status, edges, nodes,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64,
    fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out of the root = the reduction over ranks of x. A rank has two children at most, and the root has one."""
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    net = link.Net(heap, bases, counters, world, channels, me, me, 0, world)
    red = Reduction(world, scale, None)
    parent, children = shmem.load(nodes), shmem.load(nodes + 1)
    work = Work(edges, piece, c * pieces * piece, parent, children, nodes)
    ok = 1
    for j in range(0, pieces):
        at = work.part + j * piece
        n, own, mine = chunks.count(work.edges, 0, at, work.piece), x + at, link.from_member(call, net, me, WIRE).slots
        first, second, up = _child(work, 0), _child(work, 1), max(parent, 0)
        one, k = link.from_member(call, net, first, WIRE), shmem.load(link.received(net, first)) + j
        two, m = link.from_member(call, net, second, WIRE), shmem.load(link.received(net, second)) + j
        a, b = link.slot(one, call, k), link.slot(two, call, m)
        if (ok == 1) & (children > 0):
            ok = link.await_data(one, call, k)
        if (ok == 1) & (children > 1):
            ok = link.await_data(two, call, m)
        if parent < 0:
            if ok == 1:  # nobody is sent the result; the slot is where it is rounded
                transfer(own, a, out + at, mine, n, red, True, True, True, True, True, OP, BLOCK)
        else:
            tx, to = link.to_member(call, net, up, WIRE), shmem.load(link.sent(net, up)) + j
            send = link.slot(tx, call, to)
            if ok == 1:
                ok = link.acquire(tx, call, to)
            if ok == 1:
                if children > 1:
                    merge(own, a, b, send, n, red, OP, BLOCK)
                elif children > 0:
                    transfer(own, a, own, send, n, red, True, True, False, True, False, OP, BLOCK)
                else:
                    transfer(own, send, own, send, n, red, True, False, False, True, False, OP, BLOCK)
                link.publish(tx, call, to, n * (WIRE.primitive_bitwidth // 8))
        if (ok == 1) & (children > 0):
            link.release(one, call, k)
        if (ok == 1) & (children > 1):
            link.release(two, call, m)
    _close(call, net, work, ok, pieces * 0, pieces, WIRE)
