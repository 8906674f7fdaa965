"""The double binary tree: two trees at once, each with half of the data.

In a tree, partial sums go up to the root and the result comes down again: 2 log2(n) steps, where a ring takes
2 (n - 1). A rank sends its half up once, and down to at most two children. Since a rank that is an inner node of one
tree is a leaf of the other, the two use all links evenly, and each rank sends at most about twice the data.

A rank adds x + first child + second child, in FP32, and what goes up is rounded to the wire dtype; so is the result. An
element is rounded once a level. Which tree an element is in depends on its place.

Pieces follow each other, and all levels of both trees are at work at once. A rank goes through turns; at depth d of a
tree of height H it passes piece j up in turn j + LAG (H - d), and down in turn j + LAG (H + d). So what it takes was
sent LAG turns earlier, and while that is on its way there are other pieces to work on. With LAG = SLOTS / 2, as many
turns are left for the word that gives a slot back. It cannot deadlock: in its turn i a rank waits for nothing that
another does in a later turn than i - 1, since LAG < SLOTS.

Links of a rank, for each tree: 0 and 1 from its children, 2 from its parent; the same numbers for the links to them.
"""

from typing import NamedTuple

import triton.language as tl

from . import chunks, link, shmem
from .jit import jit
from .numerics import Reduction
from .tiles import merge, transfer


class Work(NamedTuple):
    """One channel's share of the data, and of the heap. Sizes and places are in elements."""

    heap: object
    bases: object
    x: object
    out: object
    edges: object  # where each tree's half starts, and where the second ends
    piece: object
    part: object  # where this channel's part of each half starts
    channels: object
    me: object


class Place(NamedTuple):
    """This rank's place in one tree: ranks, or -1 for nobody; ``side`` is which child of its parent it is."""

    tree: object
    parent: object
    side: object
    first: object
    second: object
    depth: object


@jit
def _place(nodes, tree):
    at = nodes + 5 * tree
    return Place(
        tree, shmem.load(at), shmem.load(at + 1), shmem.load(at + 2), shmem.load(at + 3), shmem.load(at + 4)
    )  # fmt: skip


@jit
def _sender(call, work, place, to, number, back, WIRE: tl.constexpr):
    c = shmem.channel()
    index = (3 * place.tree + number) * work.channels + c
    free = (3 * place.tree + back) * work.channels + c
    return link.sender(work.heap, work.bases, work.me, to, 6 * work.channels, index, free, call, WIRE)


@jit
def _receiver(call, work, place, source, number, back, WIRE: tl.constexpr):
    c = shmem.channel()
    index = (3 * place.tree + number) * work.channels + c
    free = (3 * place.tree + back) * work.channels + c
    return link.receiver(work.heap, work.bases, work.me, source, 6 * work.channels, index, free, call, WIRE)


@jit
def _to_parent(call, work, place, WIRE: tl.constexpr):
    return _sender(call, work, place, max(place.parent, 0), place.side, 2, WIRE)


@jit
def _from_parent(call, work, place, WIRE: tl.constexpr):
    return _receiver(call, work, place, max(place.parent, 0), 2, place.side, WIRE)


@jit
def _to_child(call, work, place, child, side, WIRE: tl.constexpr):
    return _sender(call, work, place, max(child, 0), 2, side, WIRE)


@jit
def _from_child(call, work, place, child, side, WIRE: tl.constexpr):
    return _receiver(call, work, place, max(child, 0), side, 2, WIRE)


@jit
def _up(call, work, red, place, ok, j, base, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr):
    # Piece j: add the children's partial sums to the own share, and pass the sum on. The root completes it, keeps it
    # and sends it down. Returns the new ``ok``.
    at, k = work.part + j * work.piece, base + j
    n, at = chunks.count(work.edges, place.tree, at, work.piece), chunks.start(work.edges, place.tree, True) + at
    nbytes = n * (WIRE.primitive_bitwidth // 8)
    own, out = work.x + at, work.out + at
    one, two = (
        _from_child(call, work, place, place.first, 0, WIRE),
        _from_child(call, work, place, place.second, 1, WIRE),
    )
    if (ok == 1) & (place.first >= 0):
        ok = link.await_data(one, call, k)
    if (ok == 1) & (place.second >= 0):
        ok = link.await_data(two, call, k)
    a, b = link.slot(one, call, k), link.slot(two, call, k)
    if place.parent >= 0:
        tx = _to_parent(call, work, place, WIRE)
        if ok == 1:
            ok = link.acquire(tx, call, k)
        if ok == 1:
            send = link.slot(tx, call, k)
            if place.second >= 0:
                merge(own, a, b, send, n, red, OP, BLOCK)
            elif place.first >= 0:
                transfer(own, a, own, send, n, red, True, True, False, True, False, OP, BLOCK)
            else:
                transfer(own, send, own, send, n, red, True, False, False, True, False, OP, BLOCK)
            link.publish(tx, call, k, nbytes)
    else:  # the root has a second child only
        tx = _to_child(call, work, place, place.second, 1, WIRE)
        if ok == 1:
            ok = link.acquire(tx, call, k)
        if ok == 1:
            transfer(own, b, out, link.slot(tx, call, k), n, red, True, True, True, True, True, OP, BLOCK)
            link.publish(tx, call, k, nbytes)
    if (ok == 1) & (place.first >= 0):
        link.release(one, call, k)
    if (ok == 1) & (place.second >= 0):
        link.release(two, call, k)
    return ok


@jit
def _down(call, work, red, place, ok, j, base, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr):
    # Piece j: keep the result that comes from the parent, and pass it on to the children. Returns the new ``ok``.
    at, k = work.part + j * work.piece, base + j
    n, at = chunks.count(work.edges, place.tree, at, work.piece), chunks.start(work.edges, place.tree, True) + at
    nbytes = n * (WIRE.primitive_bitwidth // 8)
    out = work.out + at
    rx = _from_parent(call, work, place, WIRE)
    recv = link.slot(rx, call, k)
    if ok == 1:
        ok = link.await_data(rx, call, k)
    if place.first >= 0:
        tx = _to_child(call, work, place, place.first, 0, WIRE)
        if ok == 1:
            ok = link.acquire(tx, call, k)
        if ok == 1:
            transfer(recv, recv, out, link.slot(tx, call, k), n, red, False, True, True, True, False, OP, BLOCK)
            link.publish(tx, call, k, nbytes)
    elif ok == 1:
        transfer(recv, recv, out, recv, n, red, False, True, True, False, False, OP, BLOCK)
    if place.second >= 0:
        tx = _to_child(call, work, place, place.second, 1, WIRE)
        if ok == 1:
            ok = link.acquire(tx, call, k)
        if ok == 1:
            transfer(recv, recv, out, link.slot(tx, call, k), n, red, False, True, False, True, False, OP, BLOCK)
            link.publish(tx, call, k, nbytes)
    if ok == 1:
        link.release(rx, call, k)
    return ok


@jit
def _give_up(call, work, place, WIRE: tl.constexpr):
    if place.parent >= 0:
        parent = _to_parent(call, work, place, WIRE)
        link.give_up(parent, _from_parent(call, work, place, WIRE), call, work.me)
    if place.first >= 0:
        child = _to_child(call, work, place, place.first, 0, WIRE)
        link.give_up(child, _from_child(call, work, place, place.first, 0, WIRE), call, work.me)
    if place.second >= 0:
        child = _to_child(call, work, place, place.second, 1, WIRE)
        link.give_up(child, _from_child(call, work, place, place.second, 1, WIRE), call, work.me)


@jit
def all_reduce(
    x, out, heap, bases, counters, status, edges, tally, nodes,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64,
    fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = the reduction over ranks of x. They may be the same memory.

    ``nodes``: parent, side, first and second child and depth of this rank, for each of the two trees; the height.
    """
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    work = Work(heap, bases, x, out, edges, piece, c * pieces * piece, channels, me)
    red = Reduction(world, scale, tally)
    base = shmem.load(counters + channels + c)
    lag, height = max(SLOTS // 2, 1), shmem.load(nodes + 10)
    ok = 1
    for i in range(0, pieces + 2 * lag * height):
        for tree in range(0, 2):
            place = _place(nodes, tree)
            up, down = lag * (height - place.depth), lag * (height + place.depth)
            if (i >= up) & (i < pieces + up):
                ok = _up(call, work, red, place, ok, i - up, base, OP, BLOCK, WIRE)
            if (i >= down) & (i < pieces + down) & (place.parent >= 0):
                ok = _down(call, work, red, place, ok, i - down, base, OP, BLOCK, WIRE)
    if ok == 1:
        shmem.store(counters + c, epoch)
        shmem.store(counters + channels + c, base + pieces)
    else:
        _give_up(call, work, _place(nodes, 0), WIRE)
        _give_up(call, work, _place(nodes, 1), WIRE)
