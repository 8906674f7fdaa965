"""What a rank does with the other members of a net: one message to or from one of them, or from all into one sum.

``m`` counts a link's messages from the start of the kernel; ``ok`` is 0 once a wait has given up, and then no more data
are touched. Functions that wait return the new ``ok``. Members come in turn from this rank on, so that everybody starts
with another one and the traffic is spread.
"""

import triton.language as tl

from . import link, shmem
from .jit import jit
from .tiles import Peers, Shares, transfer


@jit
def send(
    call, net, number, m, own, recv, out, n, red, ok, OWN, RECV, KEEP,
    OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr,
):  # fmt: skip
    """Send a member what :func:`tiles.transfer` makes of ``own`` and ``recv``, and with KEEP write it to ``out``."""
    tx, k = link.to_member(call, net, number, WIRE), shmem.load(link.sent(net, number)) + m
    if ok == 1:
        ok = link.acquire(tx, call, k)
    if ok == 1:
        transfer(own, recv, out, link.slot(tx, call, k), n, red, OWN, RECV, KEEP, True, False, OP, BLOCK)
        link.publish(tx, call, k, n * (WIRE.primitive_bitwidth // 8))
    return ok


@jit
def keep(call, net, m, own, n, red, ok, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr):
    """Put ``n`` elements of ``own`` into this rank's own slot, in line with what the others send."""
    k = shmem.load(link.received(net, net.here)) + m
    mine = link.slot(link.from_member(call, net, net.here, WIRE), call, k)
    if ok == 1:
        transfer(own, mine, own, mine, n, red, True, False, False, True, False, OP, BLOCK)


@jit
def give(
    call, net, number, m, own, n, red, ok, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr
):  # fmt: skip
    """Send a member ``n`` elements of ``own``; :func:`keep` what is for this rank."""
    if number == net.here:
        keep(call, net, m, own, n, red, ok, OP, BLOCK, WIRE)
    else:
        ok = send(call, net, number, m, own, own, own, n, red, ok, True, False, False, OP, BLOCK, WIRE)
    return ok


@jit
def receive(
    call, net, number, m, out, n, red, ok, OP: tl.constexpr, BLOCK: tl.constexpr, WIRE: tl.constexpr
):  # fmt: skip
    """Write a member's message to ``out``. This rank's own is in its slot already."""
    rx, k = link.from_member(call, net, number, WIRE), shmem.load(link.received(net, number)) + m
    if (ok == 1) & (number != net.here):
        ok = link.await_data(rx, call, k)
    if ok == 1:
        recv = link.slot(rx, call, k)
        transfer(recv, recv, out, recv, n, red, False, True, True, False, False, OP, BLOCK)
        if number != net.here:
            link.release(rx, call, k)
    return ok


# All members at once, or ``count`` of them from number ``first`` on; this rank is passed over.


@jit
def await_all(call, net, ok, m, WIRE: tl.constexpr):
    """Message m of every member is here."""
    for turn in range(1, net.count):
        number = (net.here + turn) % net.count
        if ok == 1:
            rx = link.from_member(call, net, number, WIRE)
            ok = link.await_data(rx, call, shmem.load(link.received(net, number)) + m)
    return ok


@jit
def release_all(call, net, m, WIRE: tl.constexpr):
    """Give the slots of message m back to every member."""
    for turn in range(1, net.count):
        number = (net.here + turn) % net.count
        rx = link.from_member(call, net, number, WIRE)
        link.release(rx, call, shmem.load(link.received(net, number)) + m)


@jit
def acquire_all(call, net, first, count, ok, m, WIRE: tl.constexpr):
    """Message m to each of them may be written."""
    for turn in range(0, count):
        number = first + (net.here + turn) % count
        if (ok == 1) & (number != net.here):
            tx = link.to_member(call, net, number, WIRE)
            ok = link.acquire(tx, call, shmem.load(link.sent(net, number)) + m)
    return ok


@jit
def publish_all(call, net, first, count, m, nbytes, WIRE: tl.constexpr):
    """Hand message m over to each of them."""
    for turn in range(0, count):
        number = first + (net.here + turn) % count
        if number != net.here:
            tx = link.to_member(call, net, number, WIRE)
            link.publish(tx, call, shmem.load(link.sent(net, number)) + m, nbytes)


@jit
def shares(call, net, m, WIRE: tl.constexpr):
    """Message m of every member, this rank's own slot among them, for :func:`tiles.join` to read."""
    zero = net.here * 0
    line, stride = link.from_member(call, net, zero, WIRE), net.channels * call.SLOTS * call.SLOT
    return Shares(
        line.slots, stride, link.received(net, zero), net.channels, m, net.count, call.SLOTS, call.SLOT
    )  # fmt: skip


@jit
def peers(call, net, first, count, m, WIRE: tl.constexpr):
    """Message m to each of them, for :func:`tiles.join` to write."""
    line, stride = link.outgoing(call, net, first, count, WIRE), net.channels * call.SLOTS * call.SLOT
    return Peers(
        line, stride, net.bases, net.me, net.base + first, count, link.sent(net, first), net.channels, m,
        call.MAPPED, call.SLOTS, call.SLOT,
    )  # fmt: skip


@jit
def give_up(call, net, WIRE: tl.constexpr):
    """Tell every member that this rank has given up."""
    for turn in range(1, net.count):
        number = (net.here + turn) % net.count
        tx, rx = link.to_member(call, net, number, WIRE), link.from_member(call, net, number, WIRE)
        link.give_up(tx, rx, call, net.me)
