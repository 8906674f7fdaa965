"""What the algorithms cost in the simulator, steps and bytes, and who is named if somebody is missing."""

import random

import pytest
import torch
from streams import CALLS, FP32, Played, Step, callable_in, played

from tricoll import LinkProfile, testing

LINKS = ("mapped", "put")
HALVES = ("reduce_scatter", "all_gather")  # of an all-reduce
UNEVEN = (("tree", "all_reduce"), ("tree", "broadcast"))  # what a rank sends depends on its place
WORLDS = ((2, 2), (3, 3), (4, 2), (5, 5), (6, 2), (6, 3), (8, 4), (16, 4))  # ranks, and ranks a node


def name(v):
    return " ".join(v) if isinstance(v, tuple) else str(v)


def there(n, node_size):
    """(call, link) of a world."""
    return [(call, link) for call in CALLS for link in LINKS if call in callable_in(n, node_size, link == "mapped")]


def one(call, n, numel):
    """A call that moves ``numel`` FP32 elements, all ranks' parts together where they have parts."""
    each = numel // n if call[1] in ("all_gather", "gather") else numel
    return Step(*call, (each,), FP32, root=1, peer=0, kind="small")


@pytest.mark.parametrize("link", LINKS)
def test_bits_depend_on_the_values_only(simulate, link):
    """The same values in other messages: other sizes, places, cuts, channels and alignments; one shot or two."""
    n = 5
    values = testing.make_inputs(n, (64,), torch.float32, "mixed", 1)
    expected = None
    for seed in range(30):
        chance = random.Random(seed)
        before, after = chance.randrange(300), chance.randrange(300)
        window = chance.choice((1, 2))
        links = {"link": link, "channels": chance.choice((1, 2, 3)), "window": window, "slots": window + 1}
        inputs = [torch.cat([torch.randn(before), v, torch.randn(after)]) for v in values]

        def work(comm, algorithm, offset):
            x = torch.empty(inputs[0].numel() + 3)[offset : offset + inputs[0].numel()]
            x.copy_(inputs[comm.rank])
            return comm.all_reduce(x, "avg", wire="bf16", algo=algorithm)[before : before + 64].clone()

        algorithm = chance.choice(("one_shot", "two_shot"))
        slot_bytes = n * 128 * chance.choice((1, 2, 8))
        options = {"seed": seed, "slot_bytes": slot_bytes, "block": chance.choice((16, 64)), **links}
        for result in simulate(work, n, algorithm, chance.randrange(3), **options).results:
            expected = result if expected is None else expected
            testing.assert_same_bits(result, expected)


# Bytes.


def bytes_sent(algorithm, collective, n, root=1):
    """What each rank sends, as shares of all the data: docs/how-it-works.md. Not for UNEVEN calls."""
    everybody = lambda share: [share] * n
    others, part = n - 1, (n - 1) / n
    at_root = lambda root_sends, others_send: [root_sends if r == root else others_send for r in range(n)]
    table = {
        ("ring", "broadcast"): [0.0 if r == (root - 1) % n else 1.0 for r in range(n)],
        ("ring", "reduce"): at_root(0.0, 1.0),
        ("tree", "reduce"): at_root(0.0, 1.0),
        ("two_shot", "reduce"): at_root(part, 1.0),  # its chunk is complete where it is
        ("multimem", "all_reduce"): everybody(1 + 1 / n),
        ("one_shot", "all_reduce"): everybody(others),
        ("one_shot", "broadcast"): at_root(others, 0.0),
        ("one_shot", "reduce"): at_root(0.0, 1.0),
        ("one_shot", "gather"): at_root(0.0, 1 / n),
        ("one_shot", "scatter"): at_root(part, 0.0),
        ("one_shot", "all_to_all"): everybody(part),
        ("one_shot", "barrier"): everybody(0.0),
        ("one_shot", "send"): at_root(1.0, 0.0),
    }
    if (algorithm, collective) in table:
        return table[algorithm, collective]
    if algorithm not in ("ring", "two_shot", "hierarchical"):
        pytest.fail(f"nobody has said what {algorithm} sends in {collective}: enter it in bytes_sent(), or in UNEVEN")
    return everybody(part if collective in HALVES else 2 * part)


BYTES = [(n, link, call) for n in (2, 3, 4, 8) for call, link in there(n, n // 2) if call not in UNEVEN]


@pytest.mark.parametrize("n, link, call", BYTES, ids=name)
def test_bytes_sent(simulate, n, link, call):
    """Ring, two_shot and hierarchical send the minimum."""
    node_size, numel = n // 2, 16 * n * n
    expected = bytes_sent(*call, n)
    step = one(call, n, numel)
    stats = played(simulate, n, [step], node_size, link=link, slots=3, window=2, slot_bytes=2048).stats
    assert [s["payload_bytes"] for s in stats] == [round(share * numel * 4) for share in expected]
    step = step._replace(dtypes=(torch.float32, torch.bfloat16, torch.float32))
    stats = played(simulate, n, [step], node_size, link=link).stats
    assert [s["payload_bytes"] for s in stats] == [round(share * numel * 2) for share in expected]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_bytes_sent_by_a_tree(simulate, n, link):
    """All ranks together send the data n - 1 times up and n - 1 times down; none more than twice, and a bit."""
    numel = 2 * 16 * 5
    sent = [s["payload_bytes"] for s in simulate(tree, n, numel, link=link).stats]
    assert sum(sent) == 2 * (n - 1) * numel * 2
    assert max(sent) <= (2 if n % 2 == 0 else 2.5) * numel * 2


def tree(comm, numel):
    comm.all_reduce(torch.ones(numel), wire="bf16", algo="tree")


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_bytes_sent_by_a_tree_from_a_root(simulate, n):
    """A broadcast is sent n - 1 times altogether, and by nobody more than twice."""
    stats = played(simulate, n, [one(("tree", "broadcast"), n, 160)]).stats
    sent = [s["payload_bytes"] for s in stats]
    assert sum(sent) == (n - 1) * 160 * 4 and max(sent) <= 2 * 160 * 4


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("n, node_size", [(4, 2), (6, 2), (6, 3), (8, 4), (12, 4)])
def test_bytes_between_nodes(simulate, n, node_size, link):
    """Of a node's data, a rank sends its share over the slow links: (nodes - 1) / nodes of M / size for each half."""
    nodes, numel = n // node_size, 16 * n * 6
    for collective, halves in (("all_reduce", 2), ("reduce_scatter", 1), ("all_gather", 1)):
        step = one(("hierarchical", collective), n, numel)
        trace = played(simulate, n, [step], node_size, link=link, slots=3, window=2, slot_bytes=2048).trace
        slow = [0] * n
        for event in trace:
            if event.rank // node_size != event.peer // node_size:
                slow[event.rank] += event.nbytes
        assert slow == [halves * (nodes - 1) * numel * 4 // nodes // node_size] * n


def test_flags_in_the_data_need_no_signals(simulate):
    """Neither a flag apart, nor giving back a slot."""
    for n in (2, 5):
        steps = [one(("one_shot", "all_reduce"), n, numel) for numel in (0, 1, 16, 3000)]
        stats = played(simulate, n, steps, link="mapped", slots=2, window=1, slot_bytes=2048).stats
        # Empty messages are words with a flag and nothing else.
        assert {s["signals"] for s in stats} == {n - 1}
        assert {s["payload_bytes"] for s in stats} == {(n - 1) * 3017 * 4}


# Steps: the critical path with infinite bandwidth, in latencies.


def steps_taken(algorithm, collective, n, node_size):
    """One number, or what it is at most."""
    nodes = n // node_size
    if algorithm == "ring":
        return n - 1 if collective != "all_reduce" else 2 * (n - 1)
    if algorithm == "tree":
        return (n - 1).bit_length() * (2 if collective == "all_reduce" else 1)
    if algorithm == "hierarchical":
        return nodes if collective in HALVES else 2 * nodes
    if algorithm == "two_shot":
        return 1 if collective in HALVES else 2
    if algorithm not in ("one_shot", "multimem"):
        pytest.fail(f"nobody has said how many steps {algorithm} takes: enter it in steps_taken()")
    return 2 if algorithm == "multimem" else 1


@pytest.mark.parametrize("call, link", there(16, 4), ids=name)
def test_steps(simulate, link, call):
    for n, node_size in WORLDS:
        if (call, link) in there(n, node_size):
            profile = LinkProfile(alpha=1.0, beta=1e30)
            time = played(simulate, n, [one(call, n, 4 * n)], node_size, link=link, profile=profile).virtual_time
            assert time == pytest.approx(steps_taken(*call, n, node_size)), (n, node_size)


@pytest.mark.parametrize("n, node_size", [(8, 4), (6, 2)])
def test_levels_overlap(simulate, n, node_size):
    """While one piece is on the rail, the ranks of a node are at the next: well below the sum of the levels' times.

    Puts, because they leave the rank free: a store keeps it as long as the link takes.
    """
    nodes, part, beta = n // node_size, 2048 * 4, 1e9  # bytes a rank
    inside = (node_size - 1) * 2 * nodes * part / beta  # to the other ranks of the node, through one port

    def time(window, slow):
        profile = {"intra": LinkProfile(1e-7, beta), "inter": LinkProfile(1e-7, slow)}
        options = {"link": "put", "slots": window + 2, "window": window, "slot_bytes": 1024 * (node_size + 1)}
        step = one(("hierarchical", "all_reduce"), n, n * 2048)
        return played(simulate, n, [step], node_size, profile=profile, **options).virtual_time

    as_slow = beta * (nodes - 1) / nodes / (node_size - 1)  # the rail takes as long as the node
    times = [time(window, as_slow) for window in (1, 2, 4)]
    assert times == sorted(times, reverse=True)
    assert inside < times[2] < times[1] < 0.67 * (inside + inside)
    assert 2 * inside < time(2, as_slow / 2) < 1.15 * 2 * inside  # the rail's time and little else


@pytest.mark.parametrize("call, link", there(4, 2), ids=name)
def test_a_missing_rank_is_named(simulate, call, link):
    root = 0 if call[1] in ("reduce", "gather") else 2  # where others wait for rank 2
    made = Played(one(call, 4, 64)._replace(root=root, peer=0), 4, 2)

    def work(comm):
        if comm.rank != 2:
            made.on(comm)

    missed = "did not take part" if call[1] == "send" else "are gone"  # it may leave when it has sent all it has
    with pytest.raises(RuntimeError, match=rf"ranks \[2\] {missed}.*waited for data from rank 2"):
        simulate(work, 4, link=link, node_size=2)
