"""The cost model: the textbook's figures, hand-computed values, and what the kernels really send and round."""

import dataclasses
import json
import math
import runpy

import pytest
import torch

from tricoll import cost, dispatch
from tricoll.cost import PROFILES, Link, Profile, Protocol, Topology
from tricoll.tune.measure import COLLECTIVES, algorithms

H100 = PROFILES["h100"]
LESSON = PROFILES["lesson"]


def candidate(algorithm, collective, nbytes, topology, profile=LESSON, **options):
    (found,) = [
        c for c in cost.candidates(collective, nbytes, topology, profile, **options) if c.algorithm == algorithm
    ]
    return found


# The textbook.

NVLINK = {8: ("62.3", "0.1"), 64: ("70.6", "0.6"), 512: ("76.1", "5.1"), 4096: ("112.0", "41.0")}
NIC = {8: ("560.1", "0.1"), 64: ("630.6", "0.6"), 512: ("643.9", "5.1"), 4096: ("680.8", "41.0")}
SMALL = {8: ("0.11", "16.7"), 512: ("5.15", "0.4"), 4096: ("40.99", "0.0")}


@pytest.mark.parametrize(("beta", "rows"), [(450e9, NVLINK), (50e9, NIC)], ids=["NVLink", "NIC"])
def test_ring_of_8_billion_gradients(beta, rows):
    for n, (time, latency) in rows.items():
        assert f"{cost.ring_seconds(n, 16e9, 5e-6, beta) * 1e3:.1f}" == time
        ring = candidate("ring", "all_reduce", 16e9, Topology(n, 1), cost.uniform(5e-6, beta))
        assert (f"{ring.time * 1e3:.1f}", f"{ring.latency * 1e3:.1f}") == (time, latency)


def test_ring_of_1_mb():
    for n, (time, rate) in SMALL.items():
        ring = candidate("ring", "all_reduce", 1e6, Topology(n, 1))
        assert (f"{ring.time * 1e3:.2f}", f"{ring.busbw / 1e9:.1f}") == (time, rate)


def test_the_command_prints_the_tables(capsys):
    runpy.run_module("tricoll.cost", run_name="__main__")
    rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert rows == [[str(n), *row] for table in (NVLINK, NIC, SMALL) for n, row in table.items()]


def test_questions_of_the_textbook():
    """n alpha beta, and 511 - 9 over 9 - 511/512 times alpha beta."""
    assert cost.balanced_bytes(512, 5e-6, 50e9) == pytest.approx(128e6, rel=1e-12)
    below = cost.tree_below(512, 5e-6, 50e9)
    assert below == pytest.approx(250e3 * 502 / (9 - 511 / 512), rel=1e-12)
    assert f"{below / 1e6:.2f}" == "15.68"
    for n in (4, 8, 64, 512, 4096):
        below = cost.tree_below(n, 5e-6, 50e9)
        ring, tree = (f(n, below, 5e-6, 50e9) for f in (cost.ring_seconds, cost.tree_seconds))
        assert ring == pytest.approx(tree, rel=1e-12)
        assert cost.tree_seconds(n, below / 2, 5e-6, 50e9) < cost.ring_seconds(n, below / 2, 5e-6, 50e9)
    assert cost.tree_below(2, 5e-6, 50e9) == 0  # one step up, one down: never better


# Rates: nccl-tests' conventions.


@pytest.mark.parametrize(
    ("n", "collective", "rate"),
    [
        *((4, c, 1.572864) for c in ("all_reduce",)),
        *((4, c, 0.786432) for c in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")),
        *((n, c, 1.048576) for n in (1, 4, 8) for c in ("broadcast", "reduce", "send_recv")),
        (8, "all_reduce", 1.835008),
        *((8, c, 0.917504) for c in ("all_gather", "reduce_scatter")),
        *((1, c, 0.0) for c in ("all_reduce", "all_gather", "reduce_scatter")),
    ],
)
def test_rates_of_1_mib_in_1_ms(n, collective, rate):
    assert cost.algbw(1048576, 1e-3) == 1.048576e9
    assert cost.busbw(collective, 1048576, 1e-3, n) == pytest.approx(rate * 1e9, rel=1e-15)


def test_rates_of_nothing():
    assert cost.algbw(0, 1e-3) == cost.algbw(0, 0) == 0
    assert cost.algbw(1, 0) == math.inf
    assert cost.busbw("all_reduce", 1, 0, 1) == 0  # and not NaN
    with pytest.raises(ValueError, match="'allreduce' is not one of all_reduce"):
        cost.busbw("allreduce", 1, 1, 2)


# Algorithms, by hand: 64 ranks in nodes of 8, 6.4 MB, links of 1 us and 100 GB/s inside, 10 us and 10 GB/s between.

TWO = Profile("two", "made up", {"signal": Protocol(0.0, {"mapped": Link(1e-6, 1e11), "inter": Link(1e-5, 1e10)})})


@pytest.mark.parametrize(
    ("algorithm", "collective", "latency", "bandwidth", "steps", "sent", "roundings"),
    [
        # 126 hops of 0.1 MB, of which 16 between nodes; 126 messages of 10 us on these links, and one latency
        ("ring", "all_reduce", 110e-6 + 160e-6, 1270e-6 - 270e-6, 126, 12.6e6, 64),
        ("ring", "reduce_scatter", 55e-6 + 80e-6, 640e-6 - 135e-6, 63, 6.3e6, 63),
        ("ring", "all_gather", 55e-6 + 80e-6, 640e-6 - 135e-6, 63, 6.3e6, 1),
        # a chain of 63 hops, of which 8 between nodes, and 63 more pieces
        ("ring", "broadcast", 55e-6 + 80e-6, 55 * 1e-6 + 8 * 10e-6 + 63 * 10e-6, 63, 6.4e6, 1),
        ("ring", "reduce", 55e-6 + 80e-6, 55 * 1e-6 + 8 * 10e-6 + 63 * 10e-6, 63, 6.4e6, 64),
        # 6 levels, 4 of which cross; 2 children; then 31 more pieces of 0.1 MB, 4 sent for each
        ("tree", "all_reduce", 2 * (2 + 40) * 1e-6, 2 * 2 * (2 * 1e-6 + 4 * 10e-6) + 4 * 31 * 10e-6, 12, 12.8e6, 7),
        ("tree", "broadcast", (2 + 40) * 1e-6, 2 * (2 * 1e-6 + 4 * 10e-6) + 2 * 63 * 10e-6, 6, 12.8e6, 1),
        ("tree", "reduce", (2 + 40) * 1e-6, 2 * (2 * 1e-6 + 4 * 10e-6) + 2 * 63 * 10e-6, 6, 6.4e6, 7),
        # 56 messages between nodes take longer than 7 inside
        ("one_shot", "all_reduce", 10e-6, 56 * 640e-6, 1, 63 * 6.4e6, 2),
        ("one_shot", "broadcast", 10e-6, 56 * 640e-6, 1, 63 * 6.4e6, 1),
        ("one_shot", "reduce", 10e-6, 56 * 640e-6, 1, 6.4e6, 2),
        ("one_shot", "all_to_all", 10e-6, 56 * 10e-6, 1, 6.3e6, 1),
        ("one_shot", "gather", 10e-6, 56 * 10e-6, 1, 0.1e6, 1),
        ("one_shot", "scatter", 10e-6, 56 * 10e-6, 1, 6.3e6, 1),
        ("one_shot", "send_recv", 10e-6, 640e-6, 1, 6.4e6, 1),
        ("two_shot", "all_reduce", 20e-6, 2 * 56 * 10e-6, 2, 12.6e6, 2),
        ("two_shot", "reduce_scatter", 10e-6, 56 * 10e-6, 1, 6.3e6, 1),
        ("two_shot", "all_gather", 10e-6, 56 * 10e-6, 1, 6.3e6, 1),
        ("two_shot", "reduce", 20e-6, 2 * 56 * 10e-6, 2, 6.4e6, 2),
        # inside: 2 * 7/8 of 6.4 MB; between: 14 messages of 0.1 MB
        ("hierarchical", "all_reduce", 142e-6, 14 * 10e-6 + 2 * 56e-6, 16, 12.6e6, 9),
        ("hierarchical", "reduce_scatter", 71e-6, 7 * 10e-6 + 56e-6, 8, 6.3e6, 8),
        ("hierarchical", "all_gather", 71e-6, 7 * 10e-6 + 56e-6, 8, 6.3e6, 1),
    ],
)
def test_terms(algorithm, collective, latency, bandwidth, steps, sent, roundings):
    profile = Profile("two", "made up", TWO.protocols, piece=100_000)
    found = candidate(algorithm, collective, 6.4e6, Topology(64, 8), profile, reproducible=True)
    assert found.latency == pytest.approx(latency, rel=1e-12)
    assert found.bandwidth == pytest.approx(bandwidth, rel=1e-12)
    assert found.time == found.latency + found.bandwidth
    assert (found.steps, found.roundings) == (steps, roundings)
    assert found.sent == pytest.approx(sent, rel=1e-12)
    assert found.algbw == 6.4e6 / found.time
    assert found.busbw == cost.busbw(collective, 6.4e6, found.time, 64)


def test_every_collective_has_algorithms():
    assert {c for algorithm in cost.ALGORITHMS.values() for c in algorithm.collectives} == set(cost.COLLECTIVES)
    for collective in cost.COLLECTIVES:
        assert cost.best(collective, 1e6, Topology(8), H100).time > 0
        one = cost.best(collective, 1e6, Topology(1), H100)
        assert (one.time, one.steps, one.sent) == (0, 0, 0)


def test_a_tree_between_its_two_forms():
    """One piece: the plain tree. Many: 2 M / beta and the latency."""
    profile = lambda piece: cost.uniform(5e-6, 50e9, piece=piece)
    for n in (4, 64, 512):
        plain = candidate("tree", "all_reduce", 1e6, Topology(n, 1), profile(1 << 30))
        assert plain.time == pytest.approx(cost.tree_seconds(n, 1e6, 5e-6, 50e9), rel=1e-12)
        piped = candidate("tree", "all_reduce", 1e9, Topology(n, 1), profile(1))
        assert piped.time == pytest.approx(2 * math.log2(n) * 5e-6 + 2e9 / 50e9, rel=1e-6)


def test_hierarchy_is_as_slow_as_its_slower_level():
    inside, between = 2 * 7 / 8 * 1e9 / 1e11, 14 * 1e9 / 64 / 1e10
    pieces = 1e9 / 64 / (1 << 17)
    found = candidate("hierarchical", "all_reduce", 1e9, Topology(64, 8), TWO)
    assert found.bandwidth == pytest.approx(between + inside / pieces, rel=1e-12)
    fast = Profile("fast", "", {"signal": Protocol(0, {"mapped": Link(1e-6, 1e10), "inter": Link(1e-5, 1e11)})})
    found = candidate("hierarchical", "all_reduce", 1e9, Topology(64, 8), fast)
    assert found.bandwidth == pytest.approx(10 * inside + between / 10 / pieces, rel=1e-12)


def test_multimem_adds_in_the_switch():
    found = candidate("multimem", "all_reduce", 8e6, Topology(8), H100)
    assert found.sent == 9e6 and found.steps == 2
    assert found.time == pytest.approx(8.4e-6 + 2 * 3.4e-6 + 9e6 / 450e9, rel=1e-12)
    assert "one node" in candidate("multimem", "all_reduce", 8e6, Topology(16, 8), H100).excluded
    assert "multicast" in candidate("multimem", "all_reduce", 8e6, Topology(8), LESSON).excluded
    assert "mapped" in candidate("multimem", "all_reduce", 8e6, Topology(8, mapped=False), H100).excluded


def test_small_messages_carry_their_flags():
    """One-shot: 0.6 us and half the bandwidth with packed flags, 3.4 us with separate ones; for mapped peers only."""
    small = candidate("one_shot", "all_reduce", 1024, Topology(8), H100)
    assert small.protocol == "packed"
    assert small.time == pytest.approx(6.6e-6 + 0.6e-6 + 7 * 1024 / 225e9, rel=1e-12)
    large = candidate("one_shot", "all_reduce", 1 << 24, Topology(8), H100)
    assert large.protocol == "signal"
    assert large.time == pytest.approx(8.4e-6 + 3.4e-6 + 7 * (1 << 24) / 450e9, rel=1e-12)
    for where in (Topology(8, mapped=False), Topology(16, 8)):
        assert candidate("one_shot", "all_reduce", 1024, where, H100).protocol == "signal"


def test_links_by_class_and_channels():
    links = {"mapped": Link(1e-6, 4e11), "put": Link(2e-6, 2e11), "inter": Link(3e-6, 1e11)}
    profile = Profile("three", "", {"signal": Protocol(0, links)}, channels=4, channel_beta=3e10)
    step = lambda topology: candidate("one_shot", "send_recv", 12e9, topology, profile).time
    assert step(Topology(2)) == pytest.approx(1e-6 + 0.1, rel=1e-12)  # 4 channels carry 120 GB/s
    assert step(Topology(2, mapped=False)) == pytest.approx(2e-6 + 0.1, rel=1e-12)
    assert step(Topology(2, 1)) == pytest.approx(3e-6 + 0.12, rel=1e-12)


# What is left out.


def test_reproducible_leaves_the_direct_algorithms():
    for nbytes in (8, 1e3, 1e6, 1e9):
        for topology in (Topology(8), Topology(64, 8)):
            for collective in ("all_reduce", "reduce_scatter", "reduce"):
                found = cost.candidates(collective, nbytes, topology, H100, reproducible=True)
                assert {c.algorithm for c in found if not c.excluded} <= set(cost.DIRECT)
                assert not found[0].excluded
            # moving data rounds nothing twice
            assert not candidate("ring", "all_gather", nbytes, topology, H100, reproducible=True).excluded


def test_direct_across_nodes_is_not_trusted():
    for algorithm in cost.DIRECT:
        assert "congestion" in candidate(algorithm, "all_reduce", 1e6, Topology(64, 8), H100).excluded
        assert not candidate(algorithm, "all_reduce", 1e6, Topology(64), H100).excluded
    assert not candidate("one_shot", "all_to_all", 1e6, Topology(64, 8), H100).excluded  # there is no other


def test_nothing_left():
    with pytest.raises(
        ValueError, match=r"no algorithm is left for all_reduce on 16 ranks, 8 a node: .*does not have it"
    ):
        cost.best("all_reduce", 1e6, Topology(16, 8), H100, available=["multimem"])
    assert cost.best("all_reduce", 1e6, Topology(16, 8), H100, available=["ring"]).algorithm == "ring"


# Explanations.


def test_crossovers_are_where_the_best_changes():
    for topology in (Topology(8), Topology(64, 8), Topology(512, 8)):
        found = cost.crossovers("all_reduce", topology, H100)
        assert found
        for c in found:
            assert cost.best("all_reduce", c.nbytes * 1.0001, topology, H100).algorithm == c.above
            assert cost.best("all_reduce", c.nbytes / 1.0001, topology, H100).algorithm == c.below
        assert [c.above for c in found[:-1]] == [c.below for c in found[1:]]


def test_explanation_says_why():
    e = cost.explain("all_reduce", 1 << 30, Topology(64, 8), H100)
    assert e.winner.algorithm == "hierarchical"
    ring = candidate("ring", "all_reduce", 1 << 30, Topology(64, 8), H100)
    assert f"{ring.time / e.winner.time:.3g} times as fast as ring" in e.reason and "its data take" in e.reason
    small = cost.explain("all_reduce", 1024, Topology(64, 8), H100)
    assert small.reason.startswith("tree is predicted") and "in 12 steps" in small.reason
    close = cost.explain("all_reduce", 8192, Topology(512), PROFILES["nvlink"]).reason
    assert "% faster than" in close
    only = cost.explain("all_reduce", 1024, Topology(8), H100, available=["ring"])
    assert "nothing else is left" in only.reason
    assert "in 1 step, " in cost.explain("all_reduce", 1024, Topology(8), H100).reason
    assert "equals" in cost.explain("all_reduce", 1024, Topology(1), H100).reason


def test_explanation_is_json():
    plain = cost.explain("all_reduce", 1 << 20, Topology(1), H100).as_dict()
    read = json.loads(json.dumps(plain, allow_nan=False))
    assert read["winner"] == read["candidates"][0]["algorithm"] and read["candidates"][0]["algbw"] is None


# Profiles and topologies.


def test_profiles_are_read_and_written(tmp_path):
    path = tmp_path / "mine.json"
    for profile in PROFILES.values():
        assert cost.load_profile(profile.name) is profile
        path.write_text(profile.to_json())
        assert cost.load_profile(path) == profile
    links = {"mapped": {"alpha": "1us", "beta": "450GB/s"}, "inter": {"alpha": 5e-6, "beta": "400Gb/s"}}
    protocols = {"signal": {"base": "8us", "links": links}}
    text = {"version": 1, "name": "mine", "source": "here", "piece": "1M", "channels": 2, "channel_beta": "1GB/s"}
    path.write_text(json.dumps(text | {"protocols": protocols}))
    expected = {"signal": Protocol(8e-6, {"mapped": Link(1e-6, 450e9), "inter": Link(5e-6, 50e9)})}
    read = cost.load_profile(path)
    assert read.protocols["signal"].links["mapped"].alpha == pytest.approx(1e-6)
    assert read.protocols["signal"].links["inter"] == expected["signal"].links["inter"]
    assert (read.piece, read.channels, read.channel_beta) == (1 << 20, 2, 1e9)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "its version is 2, and this tricoll reads 1"),
        ({"version": None}, "'version' is missing"),
        ({"protocols": {}}, "no protocol 'signal'"),
        ({"protocols": {"signal": {"links": {"mapped": {"alpha": 0, "beta": 1}}}}}, "no links of class inter"),
        ({"protocols": {"signal": {"links": {"mapped": {"alpha": "1", "beta": 1}}}}}, "'1' is not a time: write 4s"),
        ({"protocols": {"signal": {"links": {k: {"alpha": 0, "beta": 0} for k in ("mapped", "inter")}}}}, "no beta"),
        ({"speed": 1}, "speed"),
    ],
)
def test_bad_profiles(tmp_path, change, said):
    good = json.loads(LESSON.to_json())
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({k: v for k, v in (good | change).items() if v is not None}))
    with pytest.raises(ValueError, match="bad.json: .*" + said):
        cost.load_profile(path)


def test_no_such_profile(tmp_path):
    with pytest.raises(ValueError, match="'a100' is neither a file nor one of the profiles host, lesson, nvlink"):
        cost.load_profile("a100")
    (tmp_path / "text").write_text("alpha")
    with pytest.raises(ValueError, match="text: "):
        cost.load_profile(tmp_path / "text")


def test_topologies():
    assert (Topology(64, 8).nodes, Topology(8).nodes, Topology(4, 8).nodes) == (8, 1, 1)
    with pytest.raises(ValueError, match="10 ranks do not fill nodes of 8: take a multiple of 8"):
        Topology(10, 8)
    with pytest.raises(ValueError, match="at least 1"):
        Topology(0)
    with pytest.raises(ValueError, match="-1 bytes"):
        cost.candidates("all_reduce", -1, Topology(2), LESSON)


# The model's counts are those of the kernels.


@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("algorithm", ["ring", "one_shot", "two_shot", "tree"])
def test_bytes_that_are_sent(simulate, algorithm, n):
    """The busiest rank of a simulated all-reduce sends what the model says, but for chunks of 16 elements."""
    numel = 16 * 2 * 3 * 5 * 8
    run = simulate(lambda comm: comm.all_reduce(torch.ones(numel), algo=algorithm)[0].item(), n)
    expected = candidate(algorithm, "all_reduce", 4 * numel, Topology(n), LESSON).sent
    assert max(stats["payload_bytes"] for stats in run.stats) == expected


# The terms that measured profiles add to the model.


@pytest.mark.parametrize("link", ["mapped", "put"])
@pytest.mark.parametrize(("n", "node_size"), [(2, 0), (3, 0), (5, 0), (8, 0), (4, 2), (6, 3)])
def test_messages_are_those_that_ranks_send(n, node_size, link, simulate):
    """Counted by the simulator, for every collective, algorithm and number of pieces."""
    shape = {"slots": 4, "slot_bytes": 1 << 15, "window": 2, "channels": 1}
    topology = Topology(n, node_size, link == "mapped")
    links = {"mapped": Link(0, 1e9), "inter": Link(0, 1e9)}
    one = Protocol(0.0, links, 1.0)  # a second a message, and next to nothing for its bytes
    machine = Profile("counts", "", {"signal": one, "packed": one}, multicast=True, slot_bytes=1 << 15, window=2)
    if node_size:
        machine = dataclasses.replace(machine, protocols={"signal": one})
    for collective in COLLECTIVES:
        for numel in (32 * n, 16 * n * 300):  # whole vectors for every rank; one piece, and several
            names = algorithms(collective, topology, link == "mapped")
            assert set(names) == {
                name
                for name in dispatch.having(collective)
                if (name != "multimem" or (link == "mapped" and not node_size))
                and (name != "hierarchical" or node_size)
            }
            for name in names:
                if node_size and name == "one_shot" and collective == "all_reduce" and link == "mapped":
                    continue  # flags in the data, which the model has for one node only
                x = torch.zeros(numel // n if collective == "all_gather" else numel)
                ran = simulate(
                    lambda comm: getattr(comm, collective)(x.clone(), algo=name),
                    n,
                    link=link,
                    delivery="prompt",
                    node_size=node_size or None,
                    **shape,
                )
                found = [c for c in cost.candidates(collective, 4 * numel, topology, machine) if c.algorithm == name]
                counted = [s["puts"] for s in ran.stats]
                if name == "multimem":  # a message without data tells others that the result is there
                    counted = [2 * (puts - puts // (n + 1)) for puts in counted]
                assert round(found[0].latency) == max(counted), (collective, name, numel)
                mean = dataclasses.replace(machine, shared=True)
                found = [c for c in cost.candidates(collective, 4 * numel, topology, mean) if c.algorithm == name]
                if name != "multimem":
                    assert found[0].latency == pytest.approx(sum(counted) / n, abs=1e-3), (collective, name, numel)
                    payload = sum(s["payload_bytes"] for s in ran.stats) / n
                    assert found[0].bandwidth * 1e9 == pytest.approx(payload, rel=1e-2), (collective, name, numel)


def test_shared_processors():
    """A broadcast's root sends n - 1 times the data, or everybody passes them on: the same for who shares cores."""
    links = {"mapped": Link(1e-5, 1e9), "inter": Link(1e-5, 1e9)}
    alone = Profile("", "", {"signal": Protocol(1e-4, links, 1e-5)}, slot_bytes=1 << 20)
    together = dataclasses.replace(alone, shared=True)

    def seconds(profile, name):
        found = cost.candidates("broadcast", 8000, Topology(8), profile)
        return next(c.time for c in found if c.algorithm == name)

    assert seconds(alone, "one_shot") == pytest.approx(1e-4 + 1e-5 + 7 * 1e-5 + 7 * 8e-6)
    for name, steps in (("one_shot", 1), ("tree", 3), ("ring", 7)):
        assert seconds(together, name) == pytest.approx(1e-4 + steps * 1e-5 + 7 / 8 * 1e-5 + 7 / 8 * 8e-6)
    slow = dataclasses.replace(together, overheads={"broadcast": {"tree": 1.0}})
    assert seconds(slow, "tree") == pytest.approx(1.0 + seconds(together, "tree"))
    assert seconds(slow, "ring") == seconds(together, "ring")
