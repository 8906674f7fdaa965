"""Moving data in one step: every rank sends a part of its own to each rank that wants one.

One kernel for all that only moves: all-gather, all-to-all, gather, scatter, send and receive, and the barrier, which
moves nothing. A table says what goes where, so parts may be of any size: for each rank, where in x what is sent to it
begins and how many elements it has, and the same of what comes from it in out. -1 elements: no message; 0: a message
without data.

Every element is rounded to the wire dtype, the own part too. A message's fingerprint holds its size, so two ranks that
do not agree on it are told.

Piece j goes out while piece j - WINDOW comes in. With SLOTS > WINDOW it cannot deadlock: a rank about to send piece j
needs the slot of piece j - SLOTS, which its peer gives back in its turn j - SLOTS + WINDOW <= j - 1; so the rank that
is furthest behind always finds it free.

Bytes sent a rank: what it has for others. Steps: 1.
"""

from typing import NamedTuple

import triton.language as tl

from . import chunks, group, link, shmem
from .jit import jit
from .numerics import Reduction
from .tiles import transfer


class Work(NamedTuple):
    """What goes where."""

    x: object
    out: object
    table: object  # four rows of ``world`` words
    world: object
    piece: object  # elements
    ALIGNED: object  # whether parts begin at multiples of 16 elements


class Part(NamedTuple):
    """This channel's share of what goes from one rank to another. Sizes and places are in elements."""

    at: object
    size: object
    messages: object


@jit
def _part(net, work, row, rank):
    # ``row`` of the table: 0 for what is sent to a rank, 2 for what comes from it.
    at = chunks.start(work.table, row * work.world + rank, work.ALIGNED)
    size = shmem.load(work.table + (row + 1) * work.world + rank)
    share = (max(size, 0) + net.channels - 1) // net.channels
    share = (share + 15) // 16 * 16
    start = share * shmem.channel()
    mine = max(min(share, size - start), 0)
    messages = max((mine + work.piece - 1) // work.piece, 1)
    if size < 0:
        messages = messages * 0
    return Part(at + start, mine, messages)


@jit
def _sized(call, work, row, rank):
    # The call's fingerprint, with the size of what goes from one rank to the other.
    size = max(shmem.load(work.table + (row + 1) * work.world + rank), 0)
    return (call.fingerprint + size % 16777216 * 40503) % 16777216


@jit
def _send(call, net, work, red, ok, j, to, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr):
    # Piece j of what goes to a rank, if there is one. Returns the new ``ok``.
    part = _part(net, work, 0, to)
    if j < part.messages:
        own, n = work.x + part.at + j * work.piece, max(min(work.piece, part.size - j * work.piece), 0)
        if to == net.me:
            keep = work.out + _part(net, work, 2, to).at + j * work.piece
            mine = link.slot(link.from_member(call, net, to, WIRE), call, j)
            if ok == 1:
                transfer(own, mine, keep, mine, n, red, True, False, True, True, False, OP, BLOCK)
        else:
            sized = link.Call(
                _sized(call, work, 0, to), call.epoch, call.timeout, call.abort, call.status,
                call.MAPPED, call.SLOTS, call.SLOT,
            )  # fmt: skip
            ok = group.send(sized, net, to, j, own, own, own, n, red, ok, True, False, False, OP, BLOCK, WIRE)
    return ok


@jit
def _receive(call, net, work, red, ok, j, source, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr):
    # Piece j of what comes from another rank, if there is one. Returns the new ``ok``.
    part = _part(net, work, 2, source)
    if j < part.messages:
        sized = link.Call(
            _sized(call, work, 2, source), call.epoch, call.timeout, call.abort, call.status,
            call.MAPPED, call.SLOTS, call.SLOT,
        )  # fmt: skip
        out, n = work.out + part.at + j * work.piece, max(min(work.piece, part.size - j * work.piece), 0)
        ok = group.receive(sized, net, source, j, out, n, red, ok, OP, BLOCK, WIRE)
    return ok


@jit
def exchange(
    x, out, heap, bases, counters, status, table,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64, counted: tl.int64,
    fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Move parts of x into parts of out. ``pieces``: the most of any part of this rank; ``counted``: 1 if all ranks
    take part, else 0. x and out may be the same memory if what is sent to a rank and what comes from it have one place.
    """
    piece = piece // 16 * 16  # as in chunks.start
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    net = link.Net(heap, bases, counters, world, channels, me, me, 0, world)
    work = Work(x, out, table, world, piece, ALIGNED)
    red = Reduction(world, scale, None)
    ok = 1
    for j in range(0, pieces + WINDOW):
        for turn in range(0, world):
            ok = _send(call, net, work, red, ok, j, (me + turn) % world, OP, BLOCK, WIRE)
        if j >= WINDOW:
            for turn in range(1, world):
                ok = _receive(call, net, work, red, ok, j - WINDOW, (me + world - turn) % world, OP, BLOCK, WIRE)
    if ok == 1:
        shmem.store(counters + c, epoch - 1 + counted)
    for turn in range(1, world):
        rank = (me + turn) % world
        sends, receives = _part(net, work, 0, rank).messages, _part(net, work, 2, rank).messages
        if ok == 1:
            link.advance(link.sent(net, rank), sends)
            link.advance(link.received(net, rank), receives)
        elif sends + receives > 0:
            tx, rx = link.to_member(call, net, rank, WIRE), link.from_member(call, net, rank, WIRE)
            link.give_up(tx, rx, call, me)
