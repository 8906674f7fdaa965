"""Every wait, release, flag and barrier of the link protocol is needed: without any one of them, a scenario fails.

A mutant is a device function with a changed text, put in the place of the real one while the simulator runs. Each is
named, says on which links it is wrong, and is killed by a scenario (tests/support/scenarios.py has their kinds); the
real code passes all of them.
"""

import inspect
from typing import NamedTuple

import pytest
import torch
from scenarios import LINKS, Calls, Differ, Impatient, absence, impatience, kinds_of, mismatch, nothing, stream, unlike

import tricoll
from tricoll.kernels import direct, exchange, flagged, group, hierarchical, link, multimem, ring, rooted, tiles, tree

# Scenarios, of which each is of one kernel or few.

SCENARIOS = (stream, mismatch, absence, impatience)
DIRECT = Calls(
    (("two_shot", "all_reduce"), ("two_shot", "reduce_scatter"), ("one_shot", "reduce"), ("two_shot", "reduce"))
)
TWO_SHOT = Calls((("two_shot", "all_reduce"),), seeds=80)
EXCHANGE = Calls(
    tuple(("one_shot", c) for c in ("all_to_all", "gather", "scatter", "send", "barrier"))
    + (("two_shot", "all_gather"),)
)
ROOTED = Calls(tuple((a, c) for a in ("ring", "tree") for c in ("broadcast", "reduce")) + (("one_shot", "broadcast"),))
HIERARCHICAL = Calls(tuple(("hierarchical", c) for c in ("all_reduce", "reduce_scatter", "all_gather")))
TREE = Calls((("tree", "all_reduce"),))
FLAGGED = Calls((("one_shot", "all_reduce"),))
MULTIMEM = Calls((("multimem", "all_reduce"),))
OTHERS = (DIRECT, EXCHANGE, ROOTED, HIERARCHICAL, TREE, FLAGGED, MULTIMEM)
DIFFER = tuple(
    Differ(tuple(c for c in scenario.calls if c[1] in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")))
    for scenario in OTHERS
    if scenario is not ROOTED
)
DIFFER_DIRECT, DIFFER_EXCHANGE, DIFFER_HIERARCHICAL, DIFFER_TREE, DIFFER_FLAGGED, DIFFER_MULTIMEM = DIFFER
IMPATIENT = tuple(Impatient(scenario.calls[-1:]) for scenario in DIFFER)
(
    IMPATIENT_DIRECT,
    IMPATIENT_EXCHANGE,
    IMPATIENT_HIERARCHICAL,
    IMPATIENT_TREE,
    IMPATIENT_FLAGGED,
    IMPATIENT_MULTIMEM,
) = IMPATIENT

# Mutants.


class Mutant(NamedTuple):
    """What is changed: for each device function, old text and new text, once or more often."""

    name: str
    changes: dict  # device function: [(old, new), ...]
    scenario: object = stream
    links: tuple = LINKS


KERNELS = (ring.all_reduce, ring.reduce_scatter, ring.all_gather)
RELEASE = "            if RECV:\n                link.release(rx, call, received)\n"
PUBLISH = (
    "            if SEND:\n"
    "                link.publish(tx, call, sent, n * (send.dtype.element_ty.primitive_bitwidth // 8))\n"
)
TRANSFER = "            transfer(own, recv, out, send, n, red, OWN, RECV, KEEP, SEND, LAST, OP, BLOCK)\n"
PUT = "shmem.put_signal(dest, slot(tx, call, k), nbytes, tx.ready + k % call.SLOTS, _flag(call, k), tx.pe)"

MUTANTS = [
    # Waits.
    Mutant("acquire does not wait", {link.acquire: [("_wait(flag, k // call.SLOTS, call)", "0")]}),
    Mutant("await_data does not wait", {link.await_data: [("_wait(flag, wanted >> 24, call)", "wanted")]}),
    Mutant("await_data looks once", {link.await_data: [("_wait(flag, wanted >> 24, call)", "shmem.load(flag)")]}),
    # Releases.
    Mutant("no release", {ring._hop: [(RELEASE, "")]}),
    Mutant("release before reading", {ring._hop: [(RELEASE, ""), (TRANSFER, RELEASE + TRANSFER)]}),
    Mutant(
        "release another slot", {link.release: [("rx.free + k % call.SLOTS", "rx.free + (k + 1) % call.SLOTS")] * 2}
    ),
    # Data and flag.
    Mutant("publish before writing", {ring._hop: [(PUBLISH, ""), (TRANSFER, PUBLISH + TRANSFER)]}),
    Mutant("no publish", {ring._hop: [(PUBLISH, "")]}),
    Mutant("data without the flag", {link.publish: [("_flag(call, k)", "0")] * 2}),
    Mutant(
        "flag without the data",
        {link.publish: [(PUT, "shmem.signal(tx.ready + k % call.SLOTS, _flag(call, k), tx.pe)")]},
        links=("put",),
    ),
    Mutant(
        "flag apart from the data",
        {
            link.publish: [
                (
                    PUT,
                    "shmem.put_signal(dest, slot(tx, call, k), nbytes, tx.abort + 15, 1, tx.pe); "
                    "shmem.signal(tx.ready + k % call.SLOTS, _flag(call, k), tx.pe)",
                )
            ]
        },
        links=("put",),
    ),
    # Generations.
    Mutant("flags are one generation ahead", {link._flag: [("+ 1)", "+ 2)")]}),
    Mutant("flags are one generation behind", {link._flag: [("+ 1)", "+ 0)")]}),
    Mutant(
        "acquire waits for one generation less",
        {link.acquire: [("(flag, k // call.SLOTS,", "(flag, k // call.SLOTS - 1,")]},
    ),
    Mutant(
        "acquire waits for one generation more",
        {link.acquire: [("(flag, k // call.SLOTS,", "(flag, k // call.SLOTS + 1,")]},
    ),
    Mutant("await_data waits for one generation less", {link.await_data: [("wanted >> 24", "(wanted >> 24) - 1")]}),
    Mutant("await_data waits for one generation more", {link.await_data: [("wanted >> 24", "(wanted >> 24) + 1")]}),
    Mutant("publish says one generation less", {link.publish: [("_flag(call, k)", "_flag(call, k - call.SLOTS)")] * 2}),
    Mutant("publish says one generation more", {link.publish: [("_flag(call, k)", "_flag(call, k + call.SLOTS)")] * 2}),
    Mutant("release says one generation less", {link.release: [("_flag(call, k)", "_flag(call, k - call.SLOTS)")] * 2}),
    Mutant("release says one generation more", {link.release: [("_flag(call, k)", "_flag(call, k + call.SLOTS)")] * 2}),
    Mutant(
        "one counter for all slots",
        {
            link._flag: [("k // call.SLOTS + 1", "k + 1")],
            link.publish: [("tx.ready + k % call.SLOTS", "tx.ready")] * 2,
            link.release: [("rx.free + k % call.SLOTS", "rx.free")] * 2,
            link.acquire: [
                ("tx.free + k % call.SLOTS", "tx.free"),
                ("(flag, k // call.SLOTS,", "(flag, k + 1 - call.SLOTS,"),
            ],
            link.await_data: [
                ("rx.ready + k % call.SLOTS", "rx.ready"),
                ("word != wanted", "(word & 0xFFFFFF) != call.fingerprint"),
            ],
        },
        links=("put",),  # the stores to a mapped peer are seen in order
    ),
    # Barriers of the CTA.
    Mutant("no barrier in acquire", {link.acquire: [("shmem.barrier()", "pass")]}),
    Mutant("no barrier in publish", {link.publish: [("shmem.barrier()", "pass")]}),
    Mutant("no barrier in await_data", {link.await_data: [("shmem.barrier()", "pass")]}),
    Mutant("no barrier in release", {link.release: [("shmem.barrier()", "pass")]}),
    # Slots.
    Mutant(
        "one staging slot",
        {
            ring._hop: [("link.slot(tx, call, sent)", "link.slot(tx, call, 0)")],
            link.publish: [("slot(tx, call, k)", "slot(tx, call, 0)")],
        },
        links=("put",),
    ),
    Mutant("staging in the peer's slots", {link.sender: [("_slots(heap, 1,", "_slots(heap, 0,")]}, links=("put",)),
    Mutant(
        "one slot of the peer", {link.publish: [("tx.dest + k % call.SLOTS * call.SLOT", "tx.dest")]}, links=("put",)
    ),
    Mutant("channels share slots", {link._slots: [("area * links + index", "area * links")]}),
    Mutant("channels share ready words", {link._ready: [("2 * index", "0 * index")]}),
    Mutant("channels share free words", {link._free: [("2 * index", "0 * index")]}),
    Mutant("ready and free are one word", {link._free: [("(2 + 2", "(1 + 2")]}),
    Mutant("messages of one slot are not told apart", {link.slot: [("k % call.SLOTS", "k % 1")]}),
    # Calls.
    Mutant("the fingerprint is not checked", {link.await_data: [("word != wanted", "False")]}, mismatch),
    Mutant("a mismatch is not fatal", {link.await_data: [("ok = fail(call, 3,", "fail(call, 3,")]}, mismatch),
    Mutant("nobody is told", {ring._close: [("link.give_up(tx, rx, call, me)", "pass")]}, mismatch),
    Mutant("the right neighbour is not told", {link.give_up: [("_tell(tx, call, cause)", "pass")]}, impatience),
    Mutant("the left neighbour is not told", {link.give_up: [("_tell(rx, call, cause)", "pass")]}, impatience),
    Mutant("neighbours are told of no epoch", {link.give_up: [("(call.epoch << 16)", "(1 << 16)")]}, mismatch),
    Mutant("epochs are not counted", {ring._close: [("counters + c, call.epoch)", "counters + c, 0)")]}, mismatch),
    Mutant("giving up without a reason", {link.fail: [("shmem.store(call.status, code)", "pass")]}, mismatch),
    Mutant("a timeout is not fatal", {link.fail: [("return 0", "return 1")]}, absence),
    Mutant(
        "the peer is not named", {link.fail: [("store(call.status + 1, peer)", "store(call.status + 1, 0)")]}, absence
    ),
    Mutant("the message is not named", {link.fail: [("shmem.store(call.status + 2, k)", "pass")]}, absence),
    Mutant("what was wanted is not named", {link.fail: [("shmem.store(call.status + 3, wanted)", "pass")]}, absence),
    Mutant("what was seen is not named", {link.fail: [("shmem.store(call.status + 4, seen)", "pass")]}, absence),
    Mutant("data or slot is not named", {link.fail: [("shmem.store(call.status + 5, waits_for)", "pass")]}, absence),
    Mutant(
        "the first to give up is not named",
        {link.give_up: [("shmem.store(call.status + 6, cause)", "pass")]},
        impatience,
    ),
    # The ring.
    Mutant("messages are not counted", {ring._close: [("shmem.store(counters + channels + c, messages)", "pass")]}),
    Mutant(
        "one message too few is counted", {k: [("base + hops * pieces", "base + hops * pieces - 1")] for k in KERNELS}
    ),
    Mutant(
        "sent to the rank after next",
        {k: [("me, (me + 1) % world, channels", "me, (me + 2) % world, channels")] for k in KERNELS},
    ),
    Mutant(
        "received from the rank before last",
        {k: [("(me + world - 1) % world, channels", "(me + world - 2) % world, channels")] for k in KERNELS},
    ),
    Mutant("the window is one message out", {ring._hop: [("sent - window", "sent - window + 1")]}),
    Mutant("later pieces start over", {k: [("k = base + hops * first", "k = base")] for k in KERNELS}),
    Mutant("a partial window counts as a whole one", {k: [("min(WINDOW, pieces - first)", "WINDOW")] for k in KERNELS}),
    Mutant(
        "steps are one message apart",
        {k: [("k + step * window", "k + step")] for k in (ring.reduce_scatter, ring.all_gather)},
    ),
    Mutant(
        "the sum goes round the other way",
        {
            ring.all_reduce: [
                (
                    "for step in range(1, world - 1):\n            chunk = (me + 2 * world - 1 - step) % world",
                    "for step in range(1, world - 1):\n            chunk = (me + step) % world",
                )
            ]
        },
    ),
    Mutant("another rank's chunk is kept", {ring.all_reduce: [("sent, me, True", "sent, (me + 1) % world, True")]}),
    Mutant("averages divide at every hop", {ring._hop: [(TRANSFER, TRANSFER.replace("LAST", "True"))]}),
    Mutant("averages do not divide", {ring._hop: [(TRANSFER, TRANSFER.replace("LAST", "False"))]}),
    Mutant("the owner keeps more bits than it sends", {tiles.transfer: [("        total = wire\n", "")]}),
    Mutant(
        "a chunk runs into the next",
        {ring._hop: [("chunks.count(work.edges, chunk, at, work.piece)", "work.piece")]},
    ),
    Mutant("work goes on after a failure", {ring._hop: [("if ok == 1:", "if True:")] * 3}, mismatch),
]

MAPPED = ("mapped",)


def dropped(kernel, line, scenario, links=LINKS, times=1, instead="pass"):
    """A mutant without a call; what it returned is ``instead``."""
    where = f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.fn.__name__}"
    return Mutant(
        f"{where} ({scenario.calls[0][0]}) without {line[:60]}", {kernel: [(line, instead)] * times}, scenario, links
    )


COUNT_ONCE = "link.advance(link.sent(net, rank), once)"
MUTANTS += [
    # Direct.
    dropped(group.send, "link.acquire(tx, call, k)", DIRECT, instead="1"),
    dropped(group.send, "link.publish(tx, call, k, n * (WIRE.primitive_bitwidth // 8))", DIRECT),
    dropped(direct._add, "ok = group.await_all(call, net, ok, m + j, WIRE)", DIRECT),
    dropped(direct._add, "group.release_all(call, net, m + j, WIRE)", DIRECT),
    dropped(direct._add_and_give, "ok = group.await_all(call, net, ok, m + j, WIRE)", DIRECT),
    dropped(direct._add_and_give, "group.release_all(call, net, m + j, WIRE)", DIRECT),
    dropped(
        direct._add_and_give,
        "ok = group.acquire_all(call, net, work.root, work.roots, ok, again, WIRE)",
        TWO_SHOT,
    ),
    dropped(
        direct._add_and_give,
        "group.publish_all(call, net, work.root, work.roots, again, n * (WIRE.primitive_bitwidth // 8), WIRE)",
        DIRECT,
    ),
    dropped(group.receive, "link.await_data(rx, call, k)", DIRECT, instead="1"),
    dropped(group.receive, "link.release(rx, call, k)", DIRECT),
    dropped(direct._close, COUNT_ONCE, DIRECT),
    dropped(direct._close, "link.advance(link.received(net, rank), once)", DIRECT),
    dropped(direct._close, "link.advance(link.sent(net, rank), twice)", DIRECT),
    dropped(direct._close, "link.advance(link.received(net, rank), twice)", DIRECT),
    dropped(direct._close, "shmem.store(net.counters + shmem.channel(), call.epoch)", DIFFER_DIRECT),
    dropped(direct._close, "group.give_up(call, net, WIRE)", IMPATIENT_DIRECT),
    dropped(group.give_up, "link.give_up(tx, rx, call, net.me)", IMPATIENT_DIRECT),
    Mutant("all links count as those of the root", {direct._number: [("number = first", "number = m")]}, DIRECT),
    Mutant("direct: another's chunk", {direct._give: [("chunk, number = to if", "chunk, number = net.me if")]}, DIRECT),
    Mutant(
        "direct: shares of the message before", {group.shares: [("net.channels, m,", "net.channels, m - 1,")]}, DIRECT
    ),
    Mutant(
        "direct: results in another slot",
        {group.peers: [("net.channels, m,", "net.channels, m + 1,")]},
        DIRECT,
    ),
    Mutant(
        "direct: every part is the first", {direct.two_shot: [("c * pieces * piece", "0 * pieces * piece")]}, DIRECT
    ),
    # Exchange.
    dropped(group.send, "link.acquire(tx, call, k)", EXCHANGE, instead="1"),
    dropped(group.send, "link.publish(tx, call, k, n * (WIRE.primitive_bitwidth // 8))", EXCHANGE),
    dropped(group.receive, "link.await_data(rx, call, k)", EXCHANGE, instead="1"),
    dropped(group.receive, "link.release(rx, call, k)", EXCHANGE),
    dropped(exchange.exchange, "link.advance(link.sent(net, rank), sends)", EXCHANGE),
    dropped(exchange.exchange, "link.advance(link.received(net, rank), receives)", EXCHANGE),
    dropped(exchange.exchange, "link.give_up(tx, rx, call, me)", IMPATIENT_EXCHANGE),
    Mutant("exchange: sizes are not looked at", {exchange._sized: [("size % 16777216 * 40503", "0")]}, unlike),
    Mutant("exchange: every part is the first", {exchange._part: [("share * shmem.channel()", "0")]}, EXCHANGE),
    Mutant("exchange: pieces start over", {exchange._receive: [("part.at + j * work.piece", "part.at")]}, EXCHANGE),
    Mutant("exchange: no message for nothing", {exchange._part: [("// work.piece, 1)", "// work.piece, 0)")]}, nothing),
    # Trees from a root.
    dropped(group.send, "link.acquire(tx, call, k)", ROOTED, instead="1"),
    dropped(group.send, "link.publish(tx, call, k, n * (WIRE.primitive_bitwidth // 8))", ROOTED),
    dropped(rooted._close, "link.advance(link.sent(net, rank), sends)", ROOTED),
    dropped(rooted._close, "link.advance(link.received(net, rank), receives)", ROOTED),
    dropped(rooted.broadcast, "link.await_data(rx, call, k)", ROOTED, instead="1"),
    dropped(rooted.broadcast, "link.release(rx, call, k)", ROOTED),
    dropped(rooted.reduce, "link.await_data(one, call, k)", ROOTED, instead="1"),
    dropped(rooted.reduce, "link.await_data(two, call, m)", ROOTED, instead="1"),
    dropped(rooted.reduce, "link.acquire(tx, call, to)", ROOTED, instead="1"),
    dropped(rooted.reduce, "link.publish(tx, call, to, n * (WIRE.primitive_bitwidth // 8))", ROOTED),
    dropped(rooted.reduce, "link.release(one, call, k)", ROOTED),
    dropped(rooted.reduce, "link.release(two, call, m)", ROOTED),
    Mutant("rooted: pieces start over", {rooted.broadcast: [("work.part + j * piece", "work.part")]}, ROOTED),
    # Hierarchical.
    dropped(group.send, "link.acquire(tx, call, k)", HIERARCHICAL, instead="1"),
    dropped(group.send, "link.publish(tx, call, k, n * (WIRE.primitive_bitwidth // 8))", HIERARCHICAL),
    dropped(hierarchical._hop, "ok = group.await_all(call, net, ok, m + j, WIRE)", HIERARCHICAL),
    dropped(hierarchical._hop, "link.await_data(rx, call, received)", HIERARCHICAL, instead="1"),
    dropped(hierarchical._hop, "link.acquire(tx, call, sent)", HIERARCHICAL, instead="1"),
    dropped(hierarchical._hop, "ok = group.acquire_all(call, net, 0, net.count, ok, again + j, WIRE)", HIERARCHICAL),
    dropped(hierarchical._hop, "link.publish(tx, call, sent, nbytes)", HIERARCHICAL),
    dropped(hierarchical._hop, "group.publish_all(call, net, 0, net.count, again + j, nbytes, WIRE)", HIERARCHICAL),
    dropped(hierarchical._hop, "group.release_all(call, net, m + j, WIRE)", HIERARCHICAL),
    dropped(hierarchical._hop, "link.release(rx, call, received)", HIERARCHICAL),
    dropped(group.receive, "link.await_data(rx, call, k)", HIERARCHICAL, instead="1"),
    dropped(group.receive, "link.release(rx, call, k)", HIERARCHICAL),
    dropped(hierarchical._close, "link.advance(link.sent(net, number), inside)", HIERARCHICAL),
    dropped(hierarchical._close, "link.advance(link.received(net, number), inside)", HIERARCHICAL),
    dropped(hierarchical._close, "link.advance(link.sent(net, work.size), along)", HIERARCHICAL),
    dropped(hierarchical._close, "link.advance(link.received(net, work.size), along)", HIERARCHICAL),
    dropped(hierarchical._close, "shmem.store(net.counters + shmem.channel(), call.epoch)", DIFFER_HIERARCHICAL),
    dropped(hierarchical._close, "group.give_up(call, net, WIRE)", IMPATIENT_HIERARCHICAL),
    dropped(
        hierarchical._close,
        "link.give_up(_to_right(call, net, work, WIRE), _from_left(call, net, work, WIRE), call, net.me)",
        IMPATIENT_HIERARCHICAL,
    ),
    Mutant(
        "hierarchical: one step late on the rail",
        {hierarchical._hop: [("k - window + j", "k - window + j + 1")]},
        HIERARCHICAL,
    ),
    Mutant(
        "hierarchical: another's chunk",
        {hierarchical._give: [("chunk = s * work.size + number", "chunk = s * work.size + work.local")]},
        HIERARCHICAL,
    ),
    # Tree.
    dropped(tree._up, "link.await_data(one, call, k)", TREE, instead="1"),
    dropped(tree._up, "link.await_data(two, call, k)", TREE, instead="1"),
    # Not here: the waits for a free slot. With SLOTS > WINDOW, what comes down says that what went up has been read.
    dropped(tree._up, "link.publish(tx, call, k, nbytes)", TREE, times=2),
    dropped(tree._up, "link.release(one, call, k)", TREE),
    dropped(tree._up, "link.release(two, call, k)", TREE),
    dropped(tree._down, "link.await_data(rx, call, k)", TREE, instead="1"),
    dropped(tree._down, "link.publish(tx, call, k, nbytes)", TREE, times=2),
    dropped(tree._down, "link.release(rx, call, k)", TREE),
    dropped(tree.all_reduce, "shmem.store(counters + channels + c, base + pieces)", TREE),
    dropped(tree.all_reduce, "shmem.store(counters + c, epoch)", DIFFER_TREE, ("put",)),
    Mutant(
        "tree: nobody is told",
        {tree.all_reduce: [(f"_give_up(call, work, _place(nodes, {t}), WIRE)", "pass") for t in (0, 1)]},
        IMPATIENT_TREE,
    ),
    Mutant("tree: pieces start over", {tree._up: [("work.part + j * work.piece", "work.part")]}, TREE),
    Mutant(
        "tree: both halves are the first",
        {tree._up: [("chunks.start(work.edges, place.tree,", "chunks.start(work.edges, 0,")]},
        TREE,
    ),
    # Flags in the data.
    Mutant(
        "flagged: does not wait",
        {flagged.take: [("ok == 0 or not all(", "ok == 0 or any(0 for _ in others) and not all(")]},
        FLAGGED,
        MAPPED,
    ),
    dropped(flagged.all_reduce, "shmem.store(counters + channels + c, base + pieces)", FLAGGED, MAPPED),
    dropped(flagged.all_reduce, "shmem.store(counters + c, epoch)", DIFFER_FLAGGED, MAPPED),
    dropped(flagged.all_reduce, "group.give_up(call, net, WIRE)", IMPATIENT_FLAGGED, MAPPED),
    Mutant(
        "flagged: one slot", {flagged._message: [("place = k % call.SLOTS * call.SLOT", "place = 0")]}, FLAGGED, MAPPED
    ),
    Mutant(
        "flagged: no generation", {flagged._message: [("generation % 65536 * 65536 +", "65536 +")]}, FLAGGED, MAPPED
    ),
    Mutant(
        "flagged: others' words as the own",
        {flagged.give: [("(message.me + turn) % message.world), words", "(message.me + 1) % message.world), words")]},
        FLAGGED,
        MAPPED,
    ),
    # In the switch.
    dropped(
        multimem._share,
        "link.publish(link.to_member(call, net, rank, WIRE), call, k, n * (WIRE.primitive_bitwidth // 8))",
        MULTIMEM,
        MAPPED,
    ),
    dropped(
        multimem._reduce,
        "link.await_data(link.from_member(call, net, (net.me + turn) % net.count, WIRE), call, k)",
        MULTIMEM,
        MAPPED,
        instead="1",
    ),
    dropped(
        multimem._reduce,
        "link.answer(link.from_member(call, net, (net.me + turn) % net.count, WIRE), call, k, nbytes)",
        MULTIMEM,
        MAPPED,
    ),
    dropped(
        multimem._collect,
        "link.acquire(link.to_member(call, net, rank, WIRE), call, k + call.SLOTS)",
        MULTIMEM,
        MAPPED,
        instead="1",
    ),
    dropped(multimem.all_reduce, "shmem.store(counters + channels + c, base + pieces)", MULTIMEM, MAPPED),
    dropped(multimem.all_reduce, "shmem.store(counters + c, epoch)", DIFFER_MULTIMEM, MAPPED),
    dropped(
        multimem.all_reduce,
        "group.give_up(call, net, WIRE)",
        IMPATIENT_MULTIMEM,
        MAPPED,
    ),
    Mutant(
        "multimem: the answer is a message early", {multimem._collect: [("k + call.SLOTS)", "k)")]}, MULTIMEM, MAPPED
    ),
]


def mutated(kernel, changes):
    """The device function with another text, as a Python function."""
    source = inspect.getsource(kernel.twin)
    source = source[source.index("def ") :]
    for old, new in dict.fromkeys(changes):  # listed as often as it occurs
        assert source.count(old) == changes.count((old, new)), f"{old!r} occurs {source.count(old)} times in:\n{source}"
        source = source.replace(old, new)
    made = {}
    exec(compile(source, f"<mutant of {kernel.fn.__name__}>", "exec"), kernel.fn.__globals__, made)
    return made.popitem()[1]


@pytest.mark.parametrize(
    "scenario, kind",
    [(s, k) for s in (*SCENARIOS, *OTHERS, *DIFFER, *IMPATIENT, unlike, nothing) for k in kinds_of(s)],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_the_real_code_passes(scenario, kind):
    scenario(kind)


@pytest.mark.parametrize(
    "mutant, kind", [(m, k) for m in MUTANTS for k in m.links], ids=lambda v: getattr(v, "name", v)
)
def test_a_mutant_is_killed(monkeypatch, mutant, kind):
    for kernel, changes in mutant.changes.items():
        monkeypatch.setattr(kernel, "twin", mutated(kernel, changes))
    killed = (AssertionError, RuntimeError, pytest.fail.Exception)  # the last: an exception that should have come
    with pytest.raises(killed):
        mutant.scenario(kind)


@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("window", [1, 2, 4])
def test_as_many_slots_as_pieces_go_round_would_deadlock(monkeypatch, kind, window):
    """What the rule SLOTS > WINDOW is for."""
    settings = {"link": kind, "window": window, "slots": window, "slot_bytes": 128}
    with pytest.raises(ValueError, match="must be more than window"):
        tricoll.simulate(lambda c: c.all_reduce(torch.ones(1000), algo="ring"), 3, **settings)
    monkeypatch.setattr("tricoll.settings.check_settings", lambda settings: None)
    with pytest.raises(tricoll.CollectiveTimeout, match="waited for a free slot"):
        tricoll.simulate(lambda c: c.all_reduce(torch.ones(1000), algo="ring"), 3, **settings)
