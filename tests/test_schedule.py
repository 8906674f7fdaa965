"""The simulated schedules: against the closed formulas, a message-by-message reference, SimGrid, and by hand."""

import importlib.util
import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from tricoll import cost, schedule
from tricoll.cost import Link, Profile, Protocol, Topology
from tricoll.schedule import Fabric, Network, Noise, algorithms, simulate

NIC = Link(5e-6, 50e9)


def formula(algorithm, nbytes, topology, inner=NIC, outer=NIC, piece=1 << 17):
    """The cost model's terms for what a Fabric of these links is."""
    profile = Profile("links", "", {"signal": Protocol(0.0, {"mapped": inner, "inter": outer})}, piece=piece)
    found = cost.candidates("all_reduce", nbytes, topology, profile)
    return next(c for c in found if c.algorithm == algorithm)


# Against the formulas.


@pytest.mark.parametrize("n", [2, 3, 5, 8, 64, 100])
@pytest.mark.parametrize("nbytes", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("algorithm", ["ring", "one_shot", "two_shot"])
def test_uniform_links(algorithm, nbytes, n):
    outcome = simulate(algorithm, nbytes, Fabric(Topology(n), NIC, NIC))
    expected = formula(algorithm, nbytes, Topology(n))
    assert outcome.seconds == pytest.approx(expected.time, rel=1e-9)
    assert outcome.sent == pytest.approx(np.full(n, expected.sent), rel=1e-9)
    assert outcome.messages == n * (n - 1) * (1 if algorithm == "one_shot" else 2)


@pytest.mark.parametrize("node_size", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5, 8, 16])
def test_latencies(nodes, node_size):
    """Without bandwidth, a schedule takes the latencies of its longest chain: which links cross nodes, counted."""
    topology, near, far = Topology(nodes * node_size, node_size), Link(1.0, 1e30), Link(10.0, 1e30)
    for algorithm in ("ring", "two_shot", "hierarchical", "tree"):
        expected = formula(algorithm, 1.0, topology, near, far)
        if topology.world_size == 1 or not expected.steps:
            continue
        seconds = simulate(algorithm, 1.0, Fabric(topology, near, far)).seconds
        if algorithm == "tree" and node_size & (node_size - 1):
            assert expected.time / 2 < seconds <= expected.time * (1 + 1e-9)  # a bound, see the model
        else:
            assert seconds == pytest.approx(expected.time, rel=1e-9), algorithm


@pytest.mark.parametrize(("n", "node_size"), [(16, 8), (64, 8), (64, 2), (24, 4), (64, 16), (512, 8)])
@pytest.mark.parametrize("nbytes", [1e3, 1e5, 1e6, 1e7, 1e8, 1e9])
def test_ring_over_nodes(nbytes, n, node_size):
    """Never faster than the formula, which has the longer of two chains of events, and hardly slower."""
    topology = Topology(n, node_size)
    for inner, outer in ((Link(3.4e-6, 450e9), Link(14e-6, 50e9)), (Link(1e-6, 1e11), Link(1e-5, 1e10))):
        expected = formula("ring", nbytes, topology, inner, outer).time
        assert 1 - 1e-9 < simulate("ring", nbytes, Fabric(topology, inner, outer)).seconds / expected < 1.025


@pytest.mark.parametrize("n", [2, 4, 8, 64, 500])
@pytest.mark.parametrize("nbytes", [1e3, 1e6, 1e7, 1e8, 1e9])
def test_tree(nbytes, n):
    """Within 15 % of the formula: it counts pieces as if they never met at a port in the wrong order."""
    pieces = max(1, min(algorithms.MOST_PIECES, -(-nbytes // 2 // (1 << 17))))
    expected = formula("tree", nbytes, Topology(n), piece=nbytes / 2 / pieces)
    outcome = simulate("tree", nbytes, Fabric(Topology(n), NIC, NIC))
    assert 0.75 < outcome.seconds / expected.time < 1.15
    assert outcome.seconds >= expected.latency + (expected.sent / NIC.beta if n > 2 else 0) * (1 - 1 / n)
    assert outcome.messages == 4 * (n - 1) * pieces
    assert outcome.sent.max() == pytest.approx(expected.sent, rel=1e-9)


@pytest.mark.parametrize(("nodes", "node_size"), [(2, 8), (8, 8), (32, 2)])
@pytest.mark.parametrize(("nbytes", "least", "most"), [(1e4, 0.999, 1.001), (1e8, 0.7, 1.2), (1e9, 0.95, 1.01)])
def test_hierarchy(nbytes, least, most, nodes, node_size):
    """As the formula where latency or bandwidth alone counts; in between, pieces hide some latency, or wait."""
    topology, inner, outer = Topology(nodes * node_size, node_size), Link(3.4e-6, 450e9), Link(14e-6, 50e9)
    expected = formula("hierarchical", nbytes, topology, inner, outer)
    outcome = simulate("hierarchical", nbytes, Fabric(topology, inner, outer))
    assert least < outcome.seconds / expected.time < most
    assert outcome.seconds > expected.latency
    assert outcome.sent == pytest.approx(np.full(topology.world_size, expected.sent), rel=1e-9)


# Against a reference that goes message by message.


@pytest.mark.parametrize("seed", range(5))
def test_ring_with_stragglers(seed):
    noise = Noise(late=1e-4, stragglers=2, slowdown=3.0, seed=seed)
    fabric = Fabric(Topology(12, 4), Link(1e-6, 450e9), NIC, noise=noise)
    net = Network(fabric)
    n, chunk = 12, 6e6 / 12
    have, free = net.start.tolist(), [0.0] * n
    for _ in range(2 * (n - 1)):
        arrived = []
        for r in range(n):
            link = fabric.inner if r // 4 == (r + 1) % n // 4 else fabric.outer
            slow = max(net.slowdown[r], net.slowdown[(r + 1) % n])
            free[r] = max(have[r], free[r]) + chunk * slow / link.beta
            arrived.append(free[r] + link.alpha)
        have = [max(have[r], arrived[r - 1]) for r in range(n)]
    assert simulate("ring", 6e6, fabric).finish == pytest.approx(have, rel=1e-9)


def test_a_slow_rank_delays_everybody():
    quiet = simulate("ring", 1e8, Fabric(Topology(64), NIC, NIC))
    slow = simulate("ring", 1e8, Fabric(Topology(64), NIC, NIC, noise=Noise(stragglers=1, slowdown=2.0)))
    # its links need twice the time for all of their 126 messages
    assert slow.seconds >= 126 * 2 * 1e8 / 64 / 50e9
    assert slow.finish.min() > quiet.seconds


@pytest.mark.parametrize("algorithm", sorted(schedule.ALGORITHMS))
def test_noise(algorithm):
    fabric = lambda **noise: Fabric(Topology(32, 8), Link(1e-6, 450e9), NIC, noise=Noise(**noise))
    quiet = simulate(algorithm, 1e6, fabric())
    noisy = [simulate(algorithm, 1e6, fabric(jitter=0.5, late=1e-5, stragglers=1, seed=s)) for s in (0, 0, 1)]
    assert np.array_equal(noisy[0].finish, noisy[1].finish)
    assert not np.array_equal(noisy[0].finish, noisy[2].finish)
    assert quiet.seconds < min(o.seconds for o in noisy)
    assert np.array_equal(quiet.sent, noisy[0].sent)


# Shared uplinks.


def test_oversubscription_is_congestion():
    """4 nodes of 8: all rails together need 4 times what an uplink carries, a ring's one crossing does not."""
    inner = Link(0.0, 1e15)  # only the links between nodes count
    run = lambda algorithm, **fabric: (
        simulate(algorithm, 32e6, Fabric(Topology(32, 8), inner, Link(0.0, 50e9), **fabric)).seconds
    )
    alone = run("hierarchical")
    assert run("hierarchical", rail=False, oversubscription=4.0) == pytest.approx(4 * alone, rel=0.01)
    assert run("hierarchical", rail=True, oversubscription=4.0) == alone
    assert run("ring", rail=False, oversubscription=4.0) == pytest.approx(run("ring"), rel=1e-9)
    assert run("ring", rail=False, oversubscription=16.0) == pytest.approx(2 * run("ring"), rel=1e-9)
    # every rank sends to every other: three quarters of it cross, mostly from rail to rail
    assert run("two_shot", rail=True, oversubscription=4.0) > 2 * run("two_shot")
    assert run("two_shot", rail=False, oversubscription=4.0) > run("two_shot", rail=True, oversubscription=4.0)


def test_an_uplink_serves_in_order_of_arrival():
    """2 nodes of 3, uplinks of half of what their ranks send: 1.5 bytes a second. Messages of 3 bytes."""
    net = Network(Fabric(Topology(6, 3), NIC, Link(0.0, 1.0), rail=False, oversubscription=2.0))
    route = net.route(np.arange(6), np.array([3, 4, 5, 0, 1, 2]))
    ready = np.array([10.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    # first node: 0 to 2, 2 to 4 but not before 1 + 3, 10 to 12 but not before 10 + 3; second: 2, 4, 6 but at least 3
    assert net.send(route, ready, 3.0).tolist() == [13.0, 3.0, 4.0, 3.0, 4.0, 6.0]
    assert net.up.tolist() == [12.0, 6.0]


def test_an_uplink_brings_in_order_of_arrival():
    """3 nodes of 2; two ranks send to the first node, whose uplink carries 1 byte a second. Messages of 3 bytes."""
    net = Network(Fabric(Topology(6, 2), NIC, Link(0.0, 1.0), rail=False, oversubscription=2.0))
    route = net.route(np.array([2, 4]), np.array([0, 1]))
    assert net.send(route, np.array([1.0, 0.0]), 3.0).tolist() == [6.0, 3.0]
    assert (net.up.tolist(), net.down.tolist()) == ([0, 4, 3], [6, 0, 0])


@pytest.mark.parametrize("seed", range(3))
def test_a_hierarchy_of_nodes_of_one_is_a_ring(seed):
    noise = Noise(jitter=1.0, late=1e-4, stragglers=2, seed=seed)
    fabric = Fabric(Topology(16, 1), NIC, NIC, noise=noise)
    a, b = (simulate(algorithm, 1e5, fabric).finish for algorithm in ("hierarchical", "ring"))
    assert a == pytest.approx(b, rel=1e-12)


def test_pieces_share_a_latency():
    """Ten pieces take hardly longer than one where their data are nothing: their messages are on the way together."""
    fabric = Fabric(Topology(32, 8), Link(1e-6, 450e9), NIC)
    expected = formula("hierarchical", 3200, fabric.topology, fabric.inner, fabric.outer)
    assert simulate("hierarchical", 3200, fabric, piece=10).seconds == pytest.approx(expected.latency, rel=0.01)


def test_turns():
    """Every step of every piece once, by turn."""
    for steps, pieces, skew in [(1, 1, 1), (5, 3, 1), (4, 3, 3), (6, 5, 2), (2, 7, 9), (0, 3, 1)]:
        order = list(algorithms.interleaved(steps, pieces, skew))
        assert sorted(order) == [(s, j) for s in range(steps) for j in range(pieces)]
        assert [skew * s + j for s, j in order] == sorted(skew * s + j for s, j in order)


def test_wrong_arguments():
    fabric = Fabric(Topology(4), NIC, NIC)
    for call, said in [
        (lambda: simulate("rings", 1, fabric), "'rings' is not one of ring"),
        (lambda: simulate("ring", 0, fabric), "more than 0"),
        (lambda: Noise(jitter=-1), "negative"),
        (lambda: Noise(slowdown=0.5), "at least 1"),
        (lambda: Fabric(Topology(4), NIC, NIC, oversubscription=0.5), "at least 1"),
        (lambda: Fabric(Topology(4), NIC, NIC, noise=Noise(stragglers=5)), "5 stragglers among 4"),
    ]:
        with pytest.raises(ValueError, match=said):
            call()
    assert simulate("ring", 1, Fabric(Topology(1), NIC, NIC)).seconds == 0


# Scale.

LARGE = """
import json, re, time
from tricoll.cost import Link, Topology
from tricoll.schedule import *
results = {}
for algorithm in ("ring", "tree", "hierarchical"):
    fabric = Fabric(Topology(16384, 8), Link(3.4e-6, 450e9), Link(14e-6, 50e9), noise=Noise(0.5, 1e-4, 4))
    start = time.perf_counter()
    outcome = simulate(algorithm, 1e8, fabric)
    results[algorithm] = (outcome.messages, time.perf_counter() - start)
# Not getrusage's ru_maxrss, which counts what the process that started this one had.
peak = re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]
print(json.dumps([results, int(peak) * 1024]))
"""


def test_16384_ranks():
    """Within a minute each, and 4 GiB in all."""
    run = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True, timeout=110)
    results, peak = json.loads(run.stdout)
    assert results["ring"][0] == 2 * 16383 * 16384
    assert all(seconds < 60 for _, seconds in results.values()), results
    assert peak < 4 * 2**30


# Against SimGrid, another author's simulator, with its plainest network model.

SIMGRID = textwrap.dedent("""
    import json, sys
    from simgrid import Actor, Engine, LinkInRoute, Mailbox, NetZone

    n, chunk, alpha, beta, slow = json.loads(sys.argv[1])
    plain = ["network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0", "network/weight-S:0",
             "network/latency-factor:1", "network/bandwidth-factor:1"]
    engine = Engine(["ring", "--log=root.threshold:error", *("--cfg=" + each for each in plain)])
    zone = NetZone.create_full_zone("zone")
    hosts = [zone.create_host(f"host{r}", 1e9) for r in range(n)]
    links = [zone.create_split_duplex_link(f"link{r}", beta / slow[r]).set_latency(alpha / 2) for r in range(n)]
    for link in links:
        link.seal()
    way = LinkInRoute.Direction
    for a in range(n):
        for b in range(n):
            if a != b:
                up, down = LinkInRoute(links[a], way.UP), LinkInRoute(links[b], way.DOWN)
                zone.add_route(hosts[a].netpoint, hosts[b].netpoint, None, None, [up, down], False)
    zone.seal()
    finish = [0.0] * n

    def ring(r):
        for _ in range(2 * (n - 1)):
            sent = Mailbox.by_name(f"to {(r + 1) % n}").put_async("chunk", chunk)
            Mailbox.by_name(f"to {r}").get()
            sent.wait()
        finish[r] = Engine.clock

    for r in range(n):
        Actor.create(f"rank{r}", hosts[r], ring, r)
    engine.run()
    print(json.dumps(max(finish)))
""")


@pytest.mark.skipif(
    not importlib.util.find_spec("simgrid"), reason="needs SimGrid (Debian: python3-simgrid, on PYTHONPATH)"
)
@pytest.mark.parametrize(
    ("n", "alpha", "stragglers"),
    [(4, 5e-6, 0), (32, 5e-6, 0), (8, 0.0, 1), (16, 0.0, 3)],  # SimGrid's messages occupy their link for alpha, too
)
def test_simgrid(n, alpha, stragglers):
    chunk, link = 1_000_000, Link(alpha, 50e9)
    fabric = Fabric(Topology(n), link, link, noise=Noise(stragglers=stragglers, slowdown=3.0))
    slow = Network(fabric).slowdown.tolist()
    given = json.dumps([n, chunk, alpha, link.beta, slow])
    run = subprocess.run([sys.executable, "-c", SIMGRID, given], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert simulate("ring", n * chunk, fabric).seconds == pytest.approx(json.loads(run.stdout), rel=1e-6)
