"""One-shot all-reduce with the flag inside the data: words in any order, stale words, wrapping generations, trouble."""

import pytest
import torch

import tricoll
from tricoll import calls, testing
from tricoll.kernels import flagged
from tricoll.tensors import as_dtype

pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
N, SLOTS = 3, 2
SMALL = {"link": "mapped", "slots": SLOTS, "window": 1, "slot_bytes": 8 * 128 * N, "block": 64}  # 16 words a slot
tiles_ = pytest.mark.parametrize("tiles", ["torch", "triton"])
SHORT, LONG = 3, 16  # elements of FP32


def all_reduce(comm, x, op="sum", **options):
    return comm.all_reduce(x, op, algo="one_shot", **options)


def values(numel, k):
    """Call k's, different on every rank and in every place."""
    return testing.make_inputs(N, (numel,), torch.float32, "random", k)


def go_to(comm, generation):
    """Put the communicator where the next message of every channel has this generation. All ranks do it together."""
    comm._executor.control.meet()
    part = comm._executor.workspace.parts["flagged"]
    channels = comm._settings.channels
    first = part.counter + channels
    comm._executor.workspace.counters[first : first + channels] = (generation - 1) * SLOTS
    comm._executor.control.meet()


@pytest.fixture
def one_fingerprint(monkeypatch):
    """All calls look alike, so that nothing but the generation tells a word from an older one."""
    monkeypatch.setattr(calls.Call, "fingerprint", 0x1234)


@pytest.mark.parametrize("wire", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_words_in_any_order(simulate, wire, channels):
    """Several messages a call, whose words arrive in parts and in any order."""
    inputs = [values(numel, numel) for numel in (0, 1, 2, 15, 33, 200)]

    def work(comm):
        return [all_reduce(comm, x[comm.rank].clone(), wire=wire) for x in inputs]

    for seed in range(10):
        results = simulate(work, N, seed=seed, channels=channels, **SMALL).results
        for k, x in enumerate(inputs):
            testing.check_all_reduce([r[k] for r in results], x, "sum", as_dtype(wire), "one_shot")


@tiles_
def test_stale_tails(simulate, one_fingerprint, tiles):
    """A short message leaves the end of a longer one in its slot; the next long one must not take it for its own."""
    lengths = [LONG, LONG, SHORT, SHORT, 0, SHORT, LONG, 1, LONG, LONG]
    inputs = [values(numel, k) for k, numel in enumerate(lengths)]
    work = lambda comm: [all_reduce(comm, x[comm.rank].clone()) for x in inputs]
    for seed in range(30 if tiles == "torch" else 3):
        results = simulate(work, N, seed=seed, tiles=tiles, **SMALL).results
        for k, x in enumerate(inputs):
            testing.check_all_reduce([r[k] for r in results], x, algorithm="one_shot")


@tiles_
@pytest.mark.parametrize("boundary", [2**15, 2**16, 2**31, 2**32, 2**36])
def test_generations_cross_powers_of_two(simulate, one_fingerprint, boundary, tiles):
    """16 bits of them are in a flag, and the flag is the upper half of a signed word."""
    lengths = [LONG, SHORT, SHORT, LONG, SHORT, LONG, 0, SHORT, LONG, LONG, SHORT, LONG]
    inputs = [values(numel, k) for k, numel in enumerate(lengths)]

    def work(comm):
        go_to(comm, boundary - 3)
        return [all_reduce(comm, x[comm.rank].clone()) for x in inputs]

    for seed in range(4 if tiles == "torch" else 1):
        results = simulate(work, N, seed=seed, tiles=tiles, **SMALL).results
        for k, x in enumerate(inputs):
            testing.check_all_reduce([r[k] for r in results], x, algorithm="one_shot")


def a_generation_comes_again(simulate, seed):
    """Words of generation 5 are still there when generation 5 + 2^16 comes, if nothing replaces them in between."""
    inputs = [values(LONG, k) for k in range(2 * SLOTS)]

    def work(comm):
        go_to(comm, 5)
        results = [all_reduce(comm, x[comm.rank].clone()) for x in inputs[:SLOTS]]
        go_to(comm, 2**15)
        for _ in range(2 * SLOTS):
            assert all_reduce(comm, torch.ones(SHORT)).eq(N).all()
        go_to(comm, 2**16 + 5)
        return results + [all_reduce(comm, x[comm.rank].clone()) for x in inputs[SLOTS:]]

    results = simulate(work, N, seed=seed, **SMALL).results
    for k, x in enumerate(inputs):
        testing.check_all_reduce([r[k] for r in results], x, algorithm="one_shot")


def test_every_2_to_the_15_generations_all_words_are_sent(simulate, one_fingerprint, monkeypatch):
    for seed in range(10):
        a_generation_comes_again(simulate, seed)
    message = flagged._message.twin

    def no_refresh(*arguments):
        made = message(*arguments)
        return made._replace(sent=max(made.words, 1))

    monkeypatch.setattr(flagged._message, "twin", no_refresh)
    with pytest.raises(AssertionError, match="elements wrong"):
        for seed in range(10):
            a_generation_comes_again(simulate, seed)


DIFFERENT = {
    "op": (lambda c, x: all_reduce(c, x), lambda c, x: all_reduce(c, x, "max"), ("op=sum", "op=max")),
    "a little longer": (
        lambda c, x: all_reduce(c, x),
        lambda c, x: all_reduce(c, torch.ones(17)),
        ("[16]", "[17]"),
    ),
    "much longer": (lambda c, x: all_reduce(c, x), lambda c, x: all_reduce(c, torch.ones(900)), ("[16]", "[900]")),
    "nothing": (lambda c, x: all_reduce(c, x), lambda c, x: all_reduce(c, torch.ones(0)), ("[16]", "[0]")),
    "dtype": (
        lambda c, x: all_reduce(c, x),
        lambda c, x: all_reduce(c, torch.ones(16, dtype=torch.int32)),
        ("float32[16]", "int32[16]"),
    ),
    "wire": (lambda c, x: all_reduce(c, x), lambda c, x: all_reduce(c, x, wire="bf16"), ("=float32", "=bfloat16")),
    "8 bytes an element, which use other links": (
        lambda c, x: all_reduce(c, x),
        lambda c, x: all_reduce(c, torch.ones(16, dtype=torch.float64)),
        ("float32[16]", "float64[16]"),
    ),
}


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("name", DIFFERENT)
def test_calls_that_differ(simulate, name, check):
    """An error on all ranks that names both, nothing written, and the next calls work; once and again."""
    usual, other, words = DIFFERENT[name]

    def work(comm, odd):
        results = []
        for k in range(3):
            x = torch.full((16,), comm.rank + 1.0 + k)
            with pytest.raises(tricoll.CollectiveMismatch) as caught:
                (other if comm.rank == odd else usual)(comm, x)
            assert all(word in str(caught.value) for word in words) and x.eq(comm.rank + 1 + k).all()
            results.append(all_reduce(comm, x.clone()).unique().tolist())
        return results

    for odd in range(N):
        for seed in range(3):
            results = simulate(work, N, odd, seed=seed, check=check, channels=1 + seed % 2, **SMALL).results
            assert results == [[[6.0 + 3 * k] for k in range(3)]] * N


@tiles_
@pytest.mark.parametrize("absent", [0, 2])
def test_a_missing_rank_is_named(simulate, absent, tiles):
    def work(comm):
        all_reduce(comm, torch.ones(LONG))
        if comm.rank == absent:
            return None
        x = torch.full((LONG,), 7.0)
        with pytest.raises(tricoll.PeerFailure) as caught:
            all_reduce(comm, x)
        assert x.eq(7).all()
        return str(caught.value)

    for rank, text in enumerate(simulate(work, N, tiles=tiles, **SMALL).results):
        if rank != absent:
            assert f"rank {rank}, call 2" in text and f"ranks [{absent}] are gone" in text
            assert f"channel 0 waited for data from rank {absent} (message 1, wanted" in text


def test_a_fast_rank_waits_for_the_readers(simulate):
    """Nobody gives a slot back: 60 calls, one rank late at random, two slots."""

    def work(comm):
        for k in range(60):
            if comm.rank == k % N:
                for _ in range(20):
                    comm._fabric.world.scheduler.step_aside()
            x = torch.full((40,), comm.rank + 1.0 + k)
            assert all_reduce(comm, x).eq(6 + 3 * k).all()

    for seed in range(4):
        simulate(work, N, seed=seed, channels=1 + seed % 2, **SMALL)
