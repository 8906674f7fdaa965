"""One-shot all-reduce with the flag inside the data, for the smallest messages on mapped links.

Every rank writes all of its data to every other in words of 8 bytes: 4 of data and 4 of a flag. A word arrives whole,
so who sees the flag has the data: no signal behind it, no fence, and no wait for one. Each rank then adds the shares
in rank order, in FP32, and rounds once, exactly as the one-shot of ``direct.py`` does. One step; twice the bytes.

The flag is 16 bits of the message's generation over 16 bits of the call's fingerprint. A slot holds words of older
messages behind a short one. So that they cannot be taken for new ones when 16 bits have wrapped, every
2^15 generations all of the slot is sent.

Nobody gives a slot back. To send message k, a rank must have received message k - 1 from all, and who has sent that has
read message k - 2: with at least two slots, slot ``k % SLOTS`` is free.
"""

from typing import NamedTuple

import torch
import triton.language as tl

from . import chunks, group, link, shmem
from .jit import TORCH, jit, program
from .numerics import Reduction, accumulator, combine, combine_, enter, finish, finish_, narrow, scale_, widen


class Message(NamedTuple):
    """Message k of all links, in words of 8 bytes."""

    line: object  # slots of the links from rank 0 on, in this rank's memory
    mine: object  # the slot of this rank's link, the same address on every rank
    stride: object
    bases: object
    me: object
    world: object
    flag: object
    words: object  # with data
    sent: object  # at least 1, and now and then all


@jit
def _message(call, net, k, words):
    # Of ``words`` with data.
    place = k % call.SLOTS * call.SLOT
    line = link.from_member(call, net, net.me * 0, tl.int64).slots + place
    mine = link.from_member(call, net, net.me, tl.int64).slots + place
    generation = k // call.SLOTS + 1
    sent = max(words, 1)
    if generation % 32768 == 0:
        sent = sent * 0 + call.SLOT
    flag = generation % 65536 * 65536 + call.fingerprint % 65536
    stride = net.channels * call.SLOTS * call.SLOT
    return Message(line, mine, stride, net.bases, net.me, net.count, flag, words, sent)


@jit
def _pack(x, i, n, red, OP: tl.constexpr, WIRE: tl.constexpr):
    # Word i's 4 bytes of data: one element, or two of 16 bits. Behind the last one they are anything; nobody uses them.
    if WIRE.primitive_bitwidth == 32:
        v = narrow(enter(tl.load(x + i, mask=i < n), red, OP), WIRE)
        r = v.to(tl.uint32, bitcast=True).to(tl.int64)
    else:
        a = narrow(enter(tl.load(x + 2 * i, mask=2 * i < n), red, OP), WIRE)
        b = narrow(enter(tl.load(x + 2 * i + 1, mask=2 * i + 1 < n), red, OP), WIRE)
        r = a.to(tl.uint16, bitcast=True).to(tl.int64) | (b.to(tl.uint16, bitcast=True).to(tl.int64) << 16)
    return r


@jit
def _unpack(word, HALF: tl.constexpr, WIRE: tl.constexpr):
    if WIRE.primitive_bitwidth == 32:
        v = (word & 0xFFFFFFFF).to(tl.uint32).to(WIRE, bitcast=True)
    else:
        v = ((word >> (16 * HALF)) & 0xFFFF).to(tl.uint16).to(WIRE, bitcast=True)
    return widen(v)


def _give(x, n, message, red, OP, WIRE, BLOCK):
    """The twin of :func:`give` in PyTorch."""
    cpu, wire = program(), TORCH[WIRE]
    own = cpu.read(x, n)
    total = own.to(accumulator(own.dtype), copy=True) if OP == "premul_sum" else own
    scale_(total, red, OP)
    data = torch.zeros(message.sent * 4 // wire.itemsize, dtype=wire)
    data[:n].copy_(total)
    flag = (message.flag + 2**31) % 2**32 - 2**31  # the upper half of a signed word
    words = data.view(torch.int32).to(torch.int64) & 0xFFFFFFFF | flag << 32
    for turn in range(1, message.world):
        cpu.store_words(cpu.peer(message.mine, (message.me + turn) % message.world), words, n * wire.itemsize)


@jit(twin=_give)
def give(x, n, message, red, OP: tl.constexpr, WIRE: tl.constexpr, BLOCK: tl.constexpr):
    """Write ``n`` elements of x into this rank's slot on every other rank."""
    nbytes = n * (WIRE.primitive_bitwidth // 8)  # for the accounts, of the whole message
    for at in range(0, message.sent, BLOCK):
        i = at + tl.arange(0, BLOCK)
        word = _pack(x, i, n, red, OP, WIRE) | (message.flag << 32)
        for turn in range(1, message.world):  # everybody starts with another peer, to spread the traffic
            there = shmem.peer(message.mine, message.bases, message.me, (message.me + turn) % message.world)
            shmem.store_words(there + i, word, i < message.sent, nbytes)
        nbytes = nbytes * 0 - 1


def _ready(message, r, call, k):
    # Whether message k of rank r has come; the status block says why not.
    code, seen = program().await_words(
        message.line + r * message.stride, message.sent, message.flag, call.abort, call.epoch, call.timeout
    )
    return code == 0 or bool(link.fail(call, code, r, k, message.flag, seen, 1))


def _take(x, out, n, message, k, call, red, ok, OP, WIRE, BLOCK):
    """The twin of :func:`take` in PyTorch."""
    cpu, wire = program(), TORCH[WIRE]
    others = (r for r in range(message.world) if r != message.me)
    if ok == 0 or not all(_ready(message, r, call, k) for r in others):
        return 0
    if n == 0:
        return 1

    def share(r):
        if r == message.me:
            own = cpu.read(x, n).to(accumulator(TORCH[x.dtype.element_ty]), copy=True)
            scale_(own, red, OP)
            return own.to(wire)
        return (message.line + r * message.stride).view(message.words).to(torch.int32).view(wire)[:n]

    total = share(0).to(accumulator(wire), copy=True)
    for r in range(1, message.world):
        combine_(total, share(r), OP)
    finish_(total, red, OP)
    cpu.write(out, n).copy_(total.to(wire))
    return 1


@jit
def _share(x, i, n, message, r, k, call, red, ok, OP: tl.constexpr, WIRE: tl.constexpr):
    # Words i of rank r's share, and the new ``ok``.
    word = _pack(x, i, n, red, OP, WIRE)
    if r != message.me:
        at, there = message.line + r * message.stride, i < message.sent
        word, code, seen = shmem.load_words(
            at, i, there, message.sent, message.flag, call.abort, call.epoch, call.status + 7, call.timeout
        )
        if (ok == 1) & (code > 0):
            ok = link.fail(call, code, r, k, message.flag, seen, 1)
    return word, ok


@jit(twin=_take)
def take(x, out, n, message, k, call, red, ok, OP: tl.constexpr, WIRE: tl.constexpr, BLOCK: tl.constexpr):
    """Add ``n`` elements of all ranks, this one's from x, into out. Returns 1, or 0 if it gave up and wrote nothing."""
    for at in range(0, message.sent, BLOCK):
        i = at + tl.arange(0, BLOCK)
        word, ok = _share(x, i, n, message, message.me * 0, k, call, red, ok, OP, WIRE)
        a, b = _unpack(word, 0, WIRE), _unpack(word, 1, WIRE)
        for r in range(1, message.world):
            word, ok = _share(x, i, n, message, r, k, call, red, ok, OP, WIRE)
            a, b = combine(a, _unpack(word, 0, WIRE), OP), combine(b, _unpack(word, 1, WIRE), OP)
        a = narrow(widen(narrow(finish(a, red, OP), WIRE)), out.dtype.element_ty)
        if WIRE.primitive_bitwidth == 32:
            tl.store(out + i, a, mask=i < n * ok)
        else:
            b = narrow(widen(narrow(finish(b, red, OP), WIRE)), out.dtype.element_ty)
            tl.store(out + 2 * i, a, mask=2 * i < n * ok)
            tl.store(out + 2 * i + 1, b, mask=2 * i + 1 < n * ok)
    return ok


@jit
def all_reduce(
    x, out, heap, bases, counters, status, edges,
    piece: tl.int64, pieces: tl.int64, me: tl.int32, world: tl.int32, channels: tl.int64,
    fingerprint: tl.int64, timeout: tl.int64, scale: tl.float64,
    WIRE: tl.constexpr, OP: tl.constexpr, MAPPED: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr,
    WINDOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = the reduction over ranks of x. They may be the same memory. SLOT is in words, WIRE has 2 or 4 bytes."""
    c = shmem.channel()
    epoch = shmem.load(counters + c) + 1
    call = link.Call(fingerprint, epoch, timeout, heap, status + 8 * c, MAPPED, SLOTS, SLOT)
    net = link.Net(heap, bases, counters, world, channels, me, me, 0, world)
    red = Reduction(world, scale, None)
    base = shmem.load(counters + channels + c)
    ok = 1
    for j in range(0, pieces):
        at = c * pieces * piece + j * piece
        n = chunks.count(edges, 0, at, piece)
        words = (n * (WIRE.primitive_bitwidth // 8) + 3) // 4
        message = _message(call, net, base + j, words)
        if ok == 1:
            give(x + at, n, message, red, OP, WIRE, BLOCK)
        ok = take(x + at, out + at, n, message, base + j, call, red, ok, OP, WIRE, BLOCK)
        shmem.barrier()  # every thread has read its words before any says so, by sending the next message
    if ok == 1:
        shmem.store(counters + c, epoch)
        shmem.store(counters + channels + c, base + pieces)
    else:
        group.give_up(call, net, WIRE)
