"""What kernels count of the values that pass through them: right, once each, and without a change of the results."""

import copy
import math

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

import tricoll
from tricoll import ddp
from tricoll.dispatch import COUNTING
from tricoll.tally import Totals

FP32, BF16, FP16, FP64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
NOTHING = Totals(0.0, 0, 0.0, 0)


def counted(comm, collective, algo, shape, dtype, wire, op, odd=0):
    """This rank's input, the result without a tally and with one, what was counted, and what was counted after that."""
    generator = torch.Generator().manual_seed(comm.rank)
    x = torch.randn(shape, generator=generator).to(dtype)
    x.view(-1)[: odd * (comm.rank == 1)] = math.inf
    tally, call = comm.tally(), getattr(comm, collective)
    plain = call(x.clone(), op, wire=wire, algo=algo)
    result = call(x.clone(), op, wire=wire, algo=algo, tally=tally)
    return x, plain, result, tally.take(), tally.take()


def squares(tensors):
    return sum(float(t.double().square().sum()) for t in tensors)


def check(results, collective, rounded=1e-6):
    """``rounded``: how far the squares may be from those of what the call returns."""
    whole = [r[2] for r in results]
    whole = whole[:1] if collective == "all_reduce" else whole
    for _, plain, result, total, rest in results:
        assert torch.equal(plain.view(torch.uint8), result.view(torch.uint8)), "counting changes no bit"
        assert total == results[0][3], "all ranks have the same totals"
        assert rest == NOTHING
    total = results[0][3]
    assert total.local_squares == pytest.approx(squares(r[0] for r in results), rel=1e-6)
    assert total.squares == pytest.approx(squares(whole), rel=rounded)
    assert total.local_nonfinite == sum(int((~r[0].isfinite()).sum()) for r in results)
    assert total.nonfinite == sum(int((~w.isfinite()).sum()) for w in whole)


@given(
    n=st.integers(2, 7),
    algo=st.sampled_from(COUNTING),
    numel=st.integers(0, 3000),
    types=st.sampled_from([(FP32, "bf16"), (FP32, None), (BF16, None), (FP16, "fp32"), (FP64, None)]),
    op=st.sampled_from(["sum", "avg", tricoll.premul_sum(0.5)]),
    channels=st.integers(1, 3),
    link=st.sampled_from(["mapped", "put"]),
    seed=st.integers(0, 1 << 16),
)
def test_every_value_is_counted_once(n, algo, numel, types, op, channels, link, seed):
    if algo == "hierarchical":
        n = max(4, n - n % 2)
    run = tricoll.simulate(
        counted, n, "all_reduce", algo, numel, *types, op,
        seed=seed, channels=channels, link=link, slot_bytes=1024, node_size=n // 2 if algo == "hierarchical" else None,
    )  # fmt: skip
    # What is sent on is counted: only that of FP16 results in FP32 is rounded once more.
    check(run.results, "all_reduce", 1e-3 if types == (FP16, "fp32") else 1e-6)


@pytest.mark.parametrize("algo", [a for a in COUNTING if a != "tree"])
@pytest.mark.parametrize("tiles", ["torch", "triton"])
def test_reduce_scatter(algo, tiles):
    run = tricoll.simulate(
        counted, 4, "reduce_scatter", algo, (4 * 37, 3), FP32, "bf16", "avg", node_size=2, tiles=tiles, slot_bytes=1024
    )
    check(run.results, "reduce_scatter")


@pytest.mark.parametrize("algo", COUNTING)
@pytest.mark.parametrize("types", [(FP32, "bf16"), (FP64, None)], ids=str)
def test_interpreted(algo, types):
    run = tricoll.simulate(
        counted, 4, "all_reduce", algo, 1000, *types, "avg", node_size=2, tiles="triton", slot_bytes=1024, channels=2
    )
    check(run.results, "all_reduce")


@pytest.mark.parametrize("tiles", ["torch", "triton"])
@pytest.mark.parametrize("algo", COUNTING)
def test_values_that_are_not_finite(algo, tiles):
    run = tricoll.simulate(
        counted, 4, "all_reduce", algo, 200, FP32, "bf16", "avg", 7, node_size=2, tiles=tiles, slot_bytes=512
    )
    total = run.results[0][3]
    assert (total.local_nonfinite, total.nonfinite) == (7, 7)
    assert total.squares == math.inf == total.local_squares


def test_auto_takes_one_that_can_count():
    def which(comm, tally):
        x = torch.ones(8)
        comm.all_reduce(x, tally=comm.tally() if tally else None)
        return comm.stats()["signals"], x[0].item()

    plain, tallied = (tricoll.simulate(which, 4, tally).results[0] for tally in (False, True))
    assert plain[0] == 0 < tallied[0]  # one_shot with flags in its data, and something else
    assert plain[1] == tallied[1] == 4


def test_a_world_of_one():
    check(tricoll.simulate(counted, 1, "all_reduce", "auto", 100, FP32, "bf16", "sum", 0).results, "all_reduce")


def test_many_calls_one_tally_and_a_world_of_calls_without():
    def many(comm):
        tally, ones = comm.tally(), torch.ones(100)
        works = [comm.all_reduce(ones.clone(), "avg", tally=tally, async_op=True) for _ in range(3)]
        comm.all_reduce(ones.clone())
        total = tally.take()
        return total, all(work.wait() for work in works)

    assert tricoll.simulate(many, 3).results == [(Totals(900.0, 0, 300.0, 0), True)] * 3


@pytest.mark.parametrize("tiles", ["torch", "triton"])
@pytest.mark.parametrize("algo", COUNTING)
def test_programs_have_words_of_their_own(algo, tiles):
    """They run at the same time on a GPU."""

    def words(comm):
        tally = comm.tally()
        comm.all_reduce(torch.ones(1200), tally=tally, algo=algo)
        return tally.words

    run = tricoll.simulate(words, 4, channels=3, slot_bytes=1024, node_size=2, tiles=tiles)
    assert all((each[:, 0] > 0).all() for each in run.results)


def refusals(comm):
    x, said = torch.ones(8), []
    for call in (
        lambda: comm.all_reduce(x, algo="one_shot", tally=comm.tally()),
        lambda: comm.all_reduce(x.int(), tally=comm.tally()),
        lambda: comm.all_reduce(x, tally=3),
    ):
        try:
            call()
        except (TypeError, ValueError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said, comm.all_reduce(torch.ones(8), tally=comm.tally())[0].item()


def test_what_cannot_be_counted():
    for said, total in tricoll.simulate(refusals, 2, check=True).results:
        assert total == 2
        assert len(said) == 3 and "'two_shot'" in said[0] and said[0].startswith("ValueError")
        assert "int32" in said[1] and "Communicator.tally()" in said[2]


# Gradients of DDP.


def train(comm, hook, steps):
    """A few steps of DDP. Of each: its stats, and what clip_grad_norm_ and a look at all gradients say."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    alone = copy.deepcopy(net)
    model, stats = DistributedDataParallel(net, bucket_cap_mb=0.002), ddp.GradientStats(comm, batch_size=4)
    with pytest.raises(RuntimeError, match="register_comm_hook"):
        stats.step()
    model.register_comm_hook(stats, getattr(ddp, hook))
    seen = []
    for k in range(steps):
        torch.manual_seed(100 * k + comm.rank)
        x = torch.randn(4, 20) * (math.inf if k == steps - 1 and comm.rank == 0 else 1)
        model.zero_grad(), alone.zero_grad()
        model(x).square().mean().backward(), alone(x).square().mean().backward()
        own = squares(p.grad for p in alone.parameters())
        step = stats.step()
        norm = math.sqrt(squares(p.grad for p in model.parameters()))
        if not step.overflow:
            stats.clip_(model.parameters(), step, 0.5 * step.norm)
        clipped = math.sqrt(squares(p.grad for p in model.parameters()))
        seen.append((step, norm, own, clipped))
    return seen


@pytest.mark.parametrize("hook", ["bf16_hook", "fp32_hook", "reproducible_hook"])
def test_gradients_of_ddp(pool, hook):
    ranks = pool(2).run(train, hook, 4, limit=100)
    for each in zip(*ranks):
        (step, norm, _, clipped), *others = each
        assert all(repr(other[0]) == repr(step) for other in others), "the same bits on all ranks"
        if math.isfinite(norm):
            assert step.norm == pytest.approx(norm, rel=1e-5)
            assert clipped == pytest.approx(0.5 * norm, rel=1e-4)
            assert step.local_norm == pytest.approx(math.sqrt(sum(e[2] for e in each) / 2), rel=1e-5)
            assert not step.overflow and step.nonfinite == 0
    assert ranks[0][-1][0].overflow and ranks[0][-1][0].nonfinite > 0


def noisy(comm, examples, variance, steps):
    """Gradients of the mean of ``examples`` draws a rank, in one tensor."""
    stats, n = ddp.GradientStats(comm, examples, smoothing=0.99), 1000
    true = torch.full((n,), 0.1)
    generator = torch.Generator().manual_seed(comm.rank)
    for _ in range(steps):
        g = true + torch.randn(n, generator=generator) * math.sqrt(variance / examples)
        comm.all_reduce(g, "avg", wire="bf16", tally=stats.tally(comm))
        step = stats.step()
    return step.noise_scale


def test_the_noise_scale_is_that_of_the_noise():
    """tr(Sigma) / |G|^2 is 1000 v / (1000 * 0.01)."""
    for variance in (1.0, 0.1):
        for scale in tricoll.simulate(noisy, 4, 8, variance, 150).results:
            assert scale == pytest.approx(100 * variance, rel=0.1)
    assert tricoll.simulate(noisy, 1, 8, 1.0, 2).results == [None]


def overflowing(comm):
    stats, g = ddp.GradientStats(comm), torch.ones(10)
    g[:3] = math.inf
    comm.all_reduce(g, "avg", tally=stats.tally(comm))
    return stats.step()


def test_what_is_not_finite_is_counted_on_all_ranks():
    """Three elements of the average, and of each of two ranks' own."""
    for step in tricoll.simulate(overflowing, 2).results:
        assert step.nonfinite == 6 and step.overflow and step.noise_scale is None


def test_wrong_settings():
    for options, said in [({"batch_size": 0}, "batch_size is 0"), ({"smoothing": 1}, "smoothing is 1")]:
        with pytest.raises(ValueError, match=said):
            ddp.GradientStats(**options)
