"""The ring collectives in the simulator: bits, bytes, order and time, under schedules drawn from seeds."""

import itertools
import types

import pytest
import torch
from hypothesis import given
from streams import BF16_WIRE, FP32, Step, examples, played, streams

import tricoll
from tricoll import LinkProfile, dispatch, oracle, testing
from tricoll.settings import settings_for
from tricoll.testing import Layout

pytestmark = [
    # Infinities and NaN are among the values; NumPy, which is under Triton's interpreter, warns of them.
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),  # Triton 3.6
]

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
WORLDS = (1, 2, 3, 4, 5, 7, 8)
LINKS = ("mapped", "put")
SMALL = {"channels": 1, "slots": 3, "window": 2, "slot_bytes": 256, "block": 32}  # 64 FP32 a slot
RING = [("ring", collective) for collective in COLLECTIVES]


def step(collective, shape, dtypes=FP32, **changes):
    return Step("ring", collective, shape, dtypes, **{"place": "in place"} | changes)


# The bits.


@examples(7)
@given(stream=streams(most=1, calls=RING, largest=2000))
def test_any_call(simulate, stream):
    n, calls, options = stream
    played(simulate, n, calls, **options)


@examples(3)
@given(stream=streams(least=2, most=6, worlds=testing.world_sizes(5), calls=RING, largest=2000))
def test_any_calls_back_to_back(simulate, tally, stream):
    n, calls, options = stream
    tally["sequences without a barrier"] += 1
    played(simulate, n, calls, **options)


@examples(0.7)
@given(stream=streams(most=2, worlds=testing.world_sizes(5), calls=RING, largest=200))
def test_any_call_interpreted(simulate, stream):
    n, calls, options = stream
    played(simulate, n, calls, tiles="triton", **options)


def op(collective, seed):
    return "sum" if collective == "all_gather" else ("sum", "avg")[seed % 2]


def sizes(n, slot, block):
    """None, fewer than ranks, and both sides of a rank's, a block's and a slot's share."""
    around = {m + d for m in (n, 16 * n, block, block * n, slot, slot * n, 2 * slot * n) for d in (-1, 0, 1)}
    return sorted({0, 1, *around})


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("n", WORLDS)
def test_every_boundary(simulate, n, link, collective):
    for seed, (numel, dtypes) in enumerate(itertools.product(sizes(n, 64, 32), (FP32, BF16_WIRE))):
        shape = (numel,) if collective == "all_reduce" else (numel // n,)
        shape = (numel // n * n,) if collective == "reduce_scatter" else shape
        place = "in place" if seed % 4 < 2 else "out"
        call = step(collective, shape, dtypes, op=op(collective, seed), place=place, layout=Layout(seed % 3), seed=seed)
        played(simulate, n, [call], link=link, seed=seed, **SMALL)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("n", WORLDS)
def test_boundaries_interpreted(simulate, n, link, collective):
    for seed, numel in enumerate((0, n + 1, 32 * n, 33 * n, 64 * n + 1)):
        shape = (numel // n * n,) if collective == "reduce_scatter" else (numel,)
        shape = (numel // n,) if collective == "all_gather" else shape
        layout = Layout(seed % 3)
        call = step(collective, shape, BF16_WIRE, op=op(collective, seed), place="out", layout=layout, seed=seed)
        played(simulate, n, [call], link=link, seed=seed, tiles="triton", **SMALL)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_millions_of_elements(simulate, collective, link):
    numel = {"all_reduce": 3_000_001, "reduce_scatter": 1_000_004, "all_gather": 250_001}[collective]
    call = step(collective, (numel,), BF16_WIRE, op="avg", place="out", layout=Layout(1), kind="random")
    simulation = played(simulate, 4, [call], link=link, channels=2, slot_bytes=1 << 15)
    assert sum(s["puts"] for s in simulation.stats) > 100


def test_both_tile_implementations_give_the_same_bits(simulate):
    for seed in range(3):
        inputs = testing.make_inputs(3, (100,), torch.float32, seed=seed)
        results = [
            simulate(
                lambda comm: comm.all_reduce(inputs[comm.rank].clone(), wire="bf16", algo="ring"), 3, tiles=tiles
            ).results
            for tiles in ("torch", "triton")
        ]
        for one, other in zip(*results, strict=True):
            testing.assert_same_bits(one, other)


def test_chunks_are_the_oracles():
    settings = settings_for()
    for n, numel in itertools.product(range(1, 20), [*range(70), 1000, 10_556_587, 2**31 + 8]):
        plan = dispatch.plan("all_reduce", numel, 2, n, settings, "ring")
        assert plan.edges[1] == min(oracle.chunk_size(numel, n), numel)
        assert plan.piece % 16 == 0 and plan.pieces * plan.piece * settings.channels >= plan.edges[1]


# What is counted.


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("n", WORLDS)
def test_bytes_sent(simulate, n, link):
    """2 (n-1)/n of the data, in the wire dtype: with BF16, half of what an FP32 ring sends."""
    numel = 16 * n * 11
    sent = {}
    for wire in (torch.bfloat16, torch.float32):
        call = step("all_reduce", (numel,), (torch.float32, wire, torch.float32))
        stats = played(simulate, n, [call], link=link, **SMALL).stats
        assert {s["payload_bytes"] for s in stats} == {2 * (n - 1) * numel // n * wire.itemsize}
        sent[wire] = stats[0]["payload_bytes"]
    assert 2 * sent[torch.bfloat16] == sent[torch.float32]
    for collective, shape in (("reduce_scatter", (numel,)), ("all_gather", (numel // n,))):
        stats = played(simulate, n, [step(collective, shape, BF16_WIRE)], link=link, **SMALL).stats
        assert {s["payload_bytes"] for s in stats} == {(n - 1) * numel // n * 2}


@pytest.mark.parametrize("numel", [0, 1, 7, 100, 1000])
def test_bytes_sent_by_uneven_chunks(simulate, numel):
    """Chunks are multiples of 16 elements; what is missing in the last ones is not sent."""
    n = 5
    call = step("all_reduce", (numel,), BF16_WIRE)
    stats = played(simulate, n, [call], **SMALL).stats
    chunk = oracle.chunk_size(numel, n)
    have = [min(max(numel - c * chunk, 0), chunk) for c in range(n)]
    # Rank r sends all chunks but its own to be added to, and all but its right neighbour's once they are complete.
    assert [s["payload_bytes"] for s in stats] == [2 * (2 * numel - have[r] - have[(r + 1) % n]) for r in range(n)]
    assert sum(s["payload_bytes"] for s in stats) == 2 * (n - 1) * numel * 2


@pytest.mark.parametrize("link", LINKS)
def test_messages_sent(simulate, link):
    n, options = 4, SMALL | {"channels": 2}
    pieces = 3  # a channel: 2 x 3 x 64 elements are a chunk
    call = step("all_reduce", (n * 2 * pieces * 64,))
    stats = played(simulate, n, [call], link=link, **options).stats
    messages = 2 * (n - 1) * pieces * 2
    assert [(s["calls"], s["puts"], s["signals"]) for s in stats] == [(1, messages, messages)] * n  # a release each
    stats = played(simulate, n, [call._replace(shape=(0,))] * 3, link=link, **options).stats
    empty = 3 * 2 * (n - 1) * 2
    assert [(s["puts"], s["payload_bytes"], s["signals"]) for s in stats] == [(0, 0, 2 * empty)] * n


# Generations.


def age(comm, messages, channels, slots):
    """Put a communicator's links where they are after this many messages a channel, with nothing on its way."""
    comm._executor.workspace.counters[channels : 2 * channels] = messages
    words = comm._executor.workspace.heap.words
    for channel, slot in itertools.product(range(channels), range(slots)):
        last = messages - 1 - (messages - 1 - slot) % slots  # the last message that used this slot
        word = (last // slots + 1) << 24 | 0xABCDEF  # of some other call
        words[16 * (1 + 2 * channel) + slot] = word  # ready
        words[16 * (2 + 2 * channel) + slot] = word  # free
    assert words[0] == 0  # nobody gave up


@pytest.mark.parametrize("tiles", ["torch", "triton"])
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize(
    "boundary", ["message 2**31", "message 2**32", "generation 2**31", "generation 2**32", "generation 2**39"]
)
def test_generations_cross_powers_of_two(simulate, boundary, slots, link, tiles):
    """A word is a signed 64-bit number with 39 bits of generation: 2**31 and 2**32 are nothing special."""
    unit, _, power = boundary.partition(" ")
    n, channels, calls = 3, 2, 4
    messages = 4 * calls  # two pieces go 2 (n - 1) hops each, per call and channel
    start = int(eval(power)) * (slots if unit == "generation" else 1) - messages // 2 - 1
    if power == "2**39":
        start -= messages + 2 * slots  # the last generations there are
    options = {"channels": channels, "slots": slots, "window": 1, "slot_bytes": 128, "block": 32}
    inputs = [testing.make_inputs(n, (n * channels * 32,), torch.float32, seed=i) for i in range(calls)]

    def every_call(comm):
        age(comm, start, channels, slots)
        meet(comm)
        results = [comm.all_reduce(x[comm.rank].clone(), algo="ring") for x in inputs]
        return results, comm._executor.workspace.counters[channels : 2 * channels].tolist()

    simulation = simulate(every_call, n, link=link, tiles=tiles, seed=slots, **options)
    for i, x in enumerate(inputs):
        testing.check_all_reduce([results[i] for results, _ in simulation.results], x)
    assert all(count == start + messages for _, counts in simulation.results for count in counts)


def meet(comm):
    """Return when all ranks are here."""
    comm._executor.control.meet()


# Order.


def test_the_seed_decides_the_order(simulate):
    inputs = testing.make_inputs(4, (500,), torch.float32)

    def trace(seed):
        simulation = simulate(
            lambda c: c.all_reduce(inputs[c.rank].clone(), algo="ring"), 4, seed=seed, link="put", **SMALL
        )
        return [(e.kind, e.rank, e.channel, e.peer, e.nbytes) for e in simulation.trace]

    first = trace(1)
    assert trace(1) == first
    others = [trace(seed) for seed in range(2, 8)]
    assert all(other != first for other in others)
    assert len({tuple(other) for other in others}) == len(others)
    assert {tuple(sorted(other)) for other in others} == {tuple(sorted(first))}  # the same things, in another order


def test_the_bits_do_not_depend_on_the_order(simulate):
    inputs = testing.make_inputs(4, (300,), torch.float32, "cancelling")
    results = [
        simulate(lambda c: c.all_reduce(inputs[c.rank].clone(), algo="ring"), 4, seed=seed, **SMALL).results
        for seed in range(20)
    ]
    testing.assert_same_on_all_ranks([r for ranks in results for r in ranks])


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("absent", [0, 2])
def test_a_rank_that_leaves_early(simulate, absent, link):
    """No waiting: it is known at once that nobody can go on, and said who waits for whom."""

    def others_go_on(comm):
        comm.all_reduce(torch.ones(8), algo="ring")
        if comm.rank != absent:
            with pytest.raises(tricoll.PeerFailure) as caught:
                comm.all_reduce(torch.ones(8), algo="ring")
            with pytest.raises(tricoll.CollectiveError, match="cannot be used"):
                comm.all_reduce(torch.ones(8), algo="ring")
            return str(caught.value)
        return None

    results = simulate(others_go_on, 4, link=link).results
    right, left = (absent + 1) % 4, (absent + 3) % 4
    for rank, text in enumerate(results):
        if rank != absent:
            assert f"rank {rank}, call 2, all_reduce(float32[8]" in text
            assert f"ranks [{absent}] are gone" in text
            assert f"rank {right}: channel 0 waited for data from rank {absent} (message 6, wanted 0x" in text
            assert f"rank {left}: channel 0 waited for data from rank {(left + 3) % 4}" in text


def test_a_rank_that_is_busy_elsewhere(simulate):
    told = {}

    def one_is_busy(comm):
        if comm.rank == 1:
            while len(told) < 2:
                comm._fabric.pause(lambda: len(told) == 2, 1.0)
            return
        with pytest.raises(
            tricoll.CollectiveTimeout, match=r"ranks \[1\] did not take part .*init\(timeout="
        ) as caught:
            comm.all_reduce(torch.ones(8))
        told[comm.rank] = str(caught.value)

    simulate(one_is_busy, 3)
    for text in told.values():
        assert "rank 2: channel 0 waited for data from rank 1 (message 0," in text


# Time.


ALPHA = 1e-6


def seconds(simulate, n, numel, alpha, beta, collective="all_reduce", **options):
    call = step(collective, (numel,), place="in place" if collective == "all_reduce" else "new", kind="small")
    options = {"slots": 3, "window": 1, "slot_bytes": 1 << 20} | options
    return played(simulate, n, [call], profile=LinkProfile(alpha, beta), **options).virtual_time


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("n", WORLDS)
def test_latency_is_one_alpha_a_hop(simulate, n, link):
    for collective, hops in (("all_reduce", 2 * (n - 1)), ("reduce_scatter", n - 1), ("all_gather", n - 1)):
        time = seconds(simulate, n, 16 * n, ALPHA, 1e30, collective, link=link)
        assert time == pytest.approx(hops * ALPHA)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_time_of_one_large_message(simulate, n, link):
    """2 (n-1) (alpha + M / (n beta)), the formula of every textbook."""
    numel, beta = 1 << 17, 1e9
    expected = 2 * (n - 1) * (ALPHA + 4 * numel / n / beta)
    assert seconds(simulate, n, numel, ALPHA, beta, link=link) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("link", LINKS)
def test_a_window_hides_the_latency(simulate, link):
    """With more pieces on their way, the time comes near to that of the bytes alone."""
    n, numel, beta = 4, 1 << 17, 1e9
    bytes_alone = 2 * (n - 1) * 4 * numel / n / beta
    pieces = {"slot_bytes": 4096, "alpha": 3 * 4096 / beta}
    times = [seconds(simulate, n, numel, beta=beta, window=w, slots=16, link=link, **pieces) for w in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 3 * bytes_alone and times[-1] < 1.1 * bytes_alone


def test_time_does_not_depend_on_the_schedule(simulate):
    for link in LINKS:
        assert len({seconds(simulate, 4, 4000, ALPHA, 1e9, link=link, seed=seed) for seed in range(10)}) == 1


def test_slow_links_between_nodes(simulate):
    call = step("all_reduce", (64,))
    profile = {"intra": LinkProfile(1e-6, 1e30), "inter": LinkProfile(1e-5, 1e30)}
    settings = {"profile": profile, "node_size": 2, "window": 1}
    # Every second of the six hops is between nodes. With few slots, giving them back takes its time as well.
    assert played(simulate, 4, [call], slots=8, **settings).virtual_time == pytest.approx(3 * (1e-5 + 1e-6))
    assert played(simulate, 4, [call], slots=3, **settings).virtual_time > 4e-5


# The tally.


def test_enough_was_simulated(request, tally):
    """Keep this test last: it looks back at the others."""
    module = request.module
    written = {name for name, value in vars(module).items() if isinstance(value, types.FunctionType)}
    ran = {item.originalname for item in request.session.items if item.module is module}
    if {name for name in written if name.startswith("test_")} - ran:
        pytest.skip("not all tests of this file were asked for")
    assert tally["schedules"] >= 2000
    assert tally["sequences without a barrier"] >= 200
