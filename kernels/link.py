"""A link: a one-directional FIFO of slots from one rank to another, for one channel.

Message k of a link travels in slot ``k % SLOTS``, and each slot has two words of its own: ``ready`` in the receiver's
memory, written by the sender only, and ``free`` in the sender's memory, written by the receiver only. A word never has
two updates in flight, because each update answers the other side's last one; so the order in which puts land does not
matter, which a counter shared by all slots could not say (two puts to one rank may land in either order).

The four steps of message k::

    sender                                          receiver
    acquire  wait until free[k % SLOTS] says        await_data  wait until ready[k % SLOTS] says that
             that message k - SLOTS was taken                   message k is there, and check the call
    (write the slot)                                (read the slot)
    publish  data, then ready[k % SLOTS]            release     free[k % SLOTS]

A word holds a generation, ``k // SLOTS + 1``, above 24 bits of the call's fingerprint. Generations only grow: with 39
bits, at 10 us a message, a link of two slots runs for 127 days before they would wrap. The fingerprint makes a rank
that is in another call visible, where it would otherwise wait for ever or add garbage.

Two kinds of link, one switch. ``MAPPED``: the receiver's memory is mapped here, the sender writes straight into its
slot and sets the word with a release store. Otherwise: the sender writes a staging slot of its own, and a
put-with-signal carries it over.

The heap of a rank (or the part of it that one family of algorithms uses), in lines of 128 bytes: line 0 holds the word
with which others tell this rank to give up; then a line of ready words and a line of free words for each link and
channel; then the slots; then the staging slots.
"""

from typing import NamedTuple

import triton.language as tl

from . import shmem
from .jit import jit

LINE = 128  # bytes
MAX_SLOTS = LINE // 8
STATUS_WORDS = 8  # a channel; see fail() for the fields

# What a status block says. The host turns it into an error.
OK, TIMED_OUT, ABORTED, MISMATCH = 0, 1, 2, 3


class Call(NamedTuple):
    """What all steps of one channel of a kernel share. What is in capitals is known at compile time."""

    fingerprint: object
    epoch: object  # 1 + the number of kernels that this channel has finished, so the same on all ranks
    timeout: object  # nanoseconds a wait
    abort: object  # the word in line 0 of this rank
    status: object  # this channel's status block
    MAPPED: object
    SLOTS: object
    SLOT: object  # elements a slot


class Net(NamedTuple):
    """A link between every two of some ranks, its members, in both directions, in one family's part of the heap.

    ``counters``: the epoch of each channel, then how many messages each link and channel has sent, then received.
    """

    heap: object
    bases: object
    counters: object
    links: object  # into a rank: one from each member, itself included, and perhaps others
    channels: object
    me: object
    here: object  # this rank's number among the members
    base: object  # the rank of member 0; they follow each other
    count: object  # members


class Sender(NamedTuple):
    """The sending end. ``slots`` is where this rank writes: the peer's slots, or its own staging slots."""

    slots: object
    dest: object  # for a put link, the symmetric address of the peer's slots
    ready: object
    free: object
    abort: object  # line 0 of the peer
    peer: object
    pe: object  # which the peer is in puts


class Receiver(NamedTuple):
    """The receiving end."""

    slots: object
    ready: object
    free: object
    abort: object
    peer: object
    pe: object


@jit
def _slots(heap, area, links, index, call, WIRE: tl.constexpr):
    # links: the number of links x channels; area 0 holds the slots, area 1 the staging slots. 16 words a line.
    words = 16 * (1 + 2 * links) + (area * links + index) * (
        call.SLOTS * call.SLOT * (WIRE.primitive_bitwidth // 8) // 8
    )
    return shmem.cast(heap + words, WIRE)


@jit
def _ready(heap, index):
    return heap + 16 * (1 + 2 * index)


@jit
def _free(heap, index):
    return heap + 16 * (2 + 2 * index)


@jit
def sender(heap, bases, me, to, links, index, back, call, WIRE: tl.constexpr):
    """The sending end of a link from rank ``me`` to rank ``to``.

    ``index`` is the link's number at its receiver, ``back`` that of its free words and staging slots here.
    """
    if call.MAPPED:
        there, pe = shmem.peer(heap, bases, me, to), to
        slots = _slots(there, 0, links, index, call, WIRE)
    else:
        there, pe = heap, shmem.pe(bases, to)
        slots = _slots(heap, 1, links, back, call, WIRE)
    dest = _slots(heap, 0, links, index, call, WIRE)
    return Sender(slots, dest, _ready(there, index), _free(heap, back), there, to, pe)


@jit
def receiver(heap, bases, me, source, links, index, back, call, WIRE: tl.constexpr):
    """The receiving end of a link from rank ``source`` to rank ``me``; ``index`` and ``back`` as for its sender."""
    if call.MAPPED:
        there, pe = shmem.peer(heap, bases, me, source), source
    else:
        there, pe = heap, shmem.pe(bases, source)
    slots = _slots(heap, 0, links, index, call, WIRE)
    return Receiver(slots, _ready(heap, index), _free(there, back), there, source, pe)


# A net: link i comes from member i. ``here`` is this rank's number at the other end, ``there`` the other's number here.


@jit
def to_rank(call, net, here, there, rank, WIRE: tl.constexpr):
    """The sending end of the link to ``rank``, which is number ``there``."""
    c = shmem.channel()
    index, back = here * net.channels + c, there * net.channels + c
    return sender(net.heap, net.bases, net.me, rank, net.links * net.channels, index, back, call, WIRE)


@jit
def from_rank(call, net, here, there, rank, WIRE: tl.constexpr):
    """The receiving end of the link from ``rank``, which is number ``there``."""
    c = shmem.channel()
    index, back = there * net.channels + c, here * net.channels + c
    return receiver(net.heap, net.bases, net.me, rank, net.links * net.channels, index, back, call, WIRE)


@jit
def to_member(call, net, number, WIRE: tl.constexpr):
    """The sending end of the link to a member."""
    return to_rank(call, net, net.here, number, net.base + number, WIRE)


@jit
def from_member(call, net, number, WIRE: tl.constexpr):
    """The receiving end of the link from a member."""
    return from_rank(call, net, net.here, number, net.base + number, WIRE)


@jit
def outgoing(call, net, first, count, WIRE: tl.constexpr):
    """Where this rank writes what goes to ``count`` members from ``first`` on: symmetric slots if mapped, else its own
    staging slots; its receiving slots, if it is the only one."""
    c, links = shmem.channel(), net.links * net.channels
    if call.MAPPED:
        at = _slots(net.heap, 0, links, net.here * net.channels + c, call, WIRE)
    else:
        area = 1
        if (count == 1) & (first == net.here):
            area = 0
        at = _slots(net.heap, area, links, first * net.channels + c, call, WIRE)
    return at


@jit
def sent(net, there):
    """The word that counts the messages sent to number ``there``."""
    return net.counters + (1 + there) * net.channels + shmem.channel()


@jit
def received(net, there):
    """The word that counts the messages received from number ``there``."""
    return net.counters + (1 + net.links + there) * net.channels + shmem.channel()


@jit
def advance(counter, messages):
    """Count messages; when a kernel has finished, not before: all of it numbers them from where the counter stands."""
    shmem.store(counter, shmem.load(counter) + messages)


@jit
def slot(end, call, k):
    """Where message k is written (by a sender) or read (by a receiver)."""
    return end.slots + k % call.SLOTS * call.SLOT


@jit
def _flag(call, k):
    return ((k // call.SLOTS + 1) << 24) | call.fingerprint


@jit
def fail(call, code, peer, k, wanted, seen, waits_for):
    # The status block that the host reads: who waits for whom. Returns the new value of ``ok``.
    shmem.store(call.status, code)
    shmem.store(call.status + 1, peer)
    shmem.store(call.status + 2, k)
    shmem.store(call.status + 3, wanted)
    shmem.store(call.status + 4, seen)
    shmem.store(call.status + 5, waits_for)  # 0: a free slot, 1: data
    return 0


@jit
def _wait(flag, generation, call):
    return shmem.wait_until(flag, generation, call.abort, call.epoch, call.status + 7, call.timeout, call.MAPPED)


@jit
def acquire(tx, call, k):
    """Wait until message k may be written into its slot. Returns 1, or 0 if it gave up."""
    ok = 1
    # Orders the receiver's reads of message k - SLOTS, and with them the end of our put of it, before our writes.
    flag = tx.free + k % call.SLOTS
    word = _wait(flag, k // call.SLOTS, call)
    if word < 0:
        ok = fail(call, 0 - word, tx.peer, k, k // call.SLOTS, shmem.load(flag), 0)
    shmem.barrier()  # hands what one thread has seen to all threads, before they write
    return ok


@jit
def publish(tx, call, k, nbytes):
    """Hand over message k, ``nbytes`` long. An empty message is a flag alone."""
    shmem.barrier()  # every thread has written its part of the slot before the flag, or the put, goes out
    if call.MAPPED:
        shmem.store_signal(tx.ready + k % call.SLOTS, _flag(call, k), nbytes)
    else:
        dest = tx.dest + k % call.SLOTS * call.SLOT
        shmem.put_signal(dest, slot(tx, call, k), nbytes, tx.ready + k % call.SLOTS, _flag(call, k), tx.pe)


@jit
def await_data(rx, call, k):
    """Wait until message k is in its slot, and check that it belongs to this call. Returns 1, or 0 if it gave up."""
    ok = 1
    wanted = _flag(call, k)
    # Orders the sender's writes of message k before our reads of it.
    flag = rx.ready + k % call.SLOTS
    word = _wait(flag, wanted >> 24, call)
    if word < 0:
        ok = fail(call, 0 - word, rx.peer, k, wanted, shmem.load(flag), 1)
    elif word != wanted:
        ok = fail(call, 3, rx.peer, k, wanted, word, 1)
    shmem.barrier()  # hands what one thread has seen to all threads, before they read
    return ok


@jit
def release(rx, call, k):
    """Give the slot of message k back to the sender."""
    shmem.barrier()  # every thread has read its part of the slot before the sender may overwrite it
    if call.MAPPED:
        shmem.store_signal(rx.free + k % call.SLOTS, _flag(call, k), 0)
    else:
        shmem.signal(rx.free + k % call.SLOTS, _flag(call, k), rx.pe)


@jit
def answer(rx, call, k, nbytes):
    """Say that what was written in place of message k is there; mapped links only. ``nbytes``: for the accounts."""
    shmem.barrier()  # every thread has made its stores before the word goes out
    shmem.store_signal(rx.free + k % call.SLOTS, _flag(call, k), nbytes)


@jit
def _tell(end, call, cause):
    if call.MAPPED:
        shmem.store_signal(end.abort, cause, 0)
    else:
        shmem.signal(end.abort, cause, end.pe)


@jit
def give_up(tx, rx, call, me):
    """Pass the bad news on to both neighbours, so that nobody waits out its own timeout.

    The epoch goes with it: a neighbour that is still in an earlier call can and must finish that one first.
    """
    cause = shmem.load(call.abort)
    if (cause == 0) | ((cause >> 16) > call.epoch):
        cause = (call.epoch << 16) | (me + 1)  # this rank is the first to give up
    shmem.store(call.status + 6, cause)
    _tell(tx, call, cause)
    _tell(rx, call, cause)
