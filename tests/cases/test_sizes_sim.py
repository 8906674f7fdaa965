"""Lengths that nothing divides, fewer elements than ranks, none at all, and worlds of every size."""

import pytest
import torch
from cases import BF16, SMALL, every_call, links, quiet, step, wires
from streams import BF16_WIRE, ROOTED, played
from streams import FP32 as PLAIN

from tricoll import testing
from tricoll.testing import Guarded, Layout

pytestmark = quiet
BLOCK = 1 << 14  # elements, of the default settings


def ramp(n, numel):
    """Element i of rank r is (r + 1) (i % 251): sums are exact, and no two ranks or places are alike."""
    return [(r + 1) * (torch.arange(numel) % 251).float() for r in range(n)]


# Chunking and tails. A length that ranks, vectors or blocks do not divide.


@links
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_lengths_that_nothing_divides(simulate, n, link):
    lengths = [1, 2, 3, 5, 7, 8, 9, 15, 17, 31, 32, 33, 63, 64, 65, 127, 129, 1023, 1025, 4099]
    for seed, numel in enumerate([*lengths, n * BLOCK - 1, n * BLOCK, n * BLOCK + 1]):
        inputs = ramp(n, numel)
        exact = (torch.arange(numel) % 251).float() * (n * (n + 1) // 2)
        settings = SMALL if numel <= 4099 else {}

        def both_wires(comm):
            fp32 = Guarded(inputs[comm.rank], Layout(1))
            bf16 = Guarded(torch.zeros(numel, dtype=BF16), Layout(1))
            comm.all_reduce(inputs[comm.rank], out=bf16.view, wire="bf16", algo="ring")
            comm.all_reduce(fp32.view)
            return fp32, bf16

        results = simulate(both_wires, n, link=link, seed=seed, **settings).results
        for fp32, bf16 in results:
            testing.assert_same_bits(fp32.view, exact)
            fp32.check()
            bf16.check()
        testing.check_all_reduce([bf16.view for _, bf16 in results], inputs, wire=BF16)


@pytest.mark.parametrize("numel", [9_999_999, 10_556_587])
def test_ten_million(simulate, numel):
    n = 8
    inputs = ramp(n, numel)
    results = simulate(lambda comm: comm.all_reduce(inputs[comm.rank]), n).results
    exact = (torch.arange(numel) % 251).float() * (n * (n + 1) // 2)
    assert all(torch.equal(r, exact) for r in results)


@every_call
def test_lengths_that_nothing_divides_in_every_call(simulate, call):
    lengths = [1, 2, 3, 5, 7, 15, 17, 31, 33, 65, 129, 1025]
    for n, node_size in [(4, 2) if call[0] == "hierarchical" else (3, 0)]:
        for link in wires(call, n, node_size):
            calls = [step(call, n, rows, k, dtypes=(PLAIN, BF16_WIRE)[k % 2]) for k, rows in enumerate(lengths)]
            played(simulate, n, calls, node_size, link=link, seed=n, **SMALL)


# Hangs. Some ranks own no element at all.


@links
@pytest.mark.parametrize("numel", [1, 2, 3, 7])
def test_fewer_elements_than_ranks(simulate, numel, link):
    n = 8

    def two_calls(comm):
        few = [torch.full((numel,), 2.0**comm.rank), torch.full((100,), 3.0**comm.rank)]
        return [(comm.all_reduce(x.clone()), comm.all_gather(x), comm.reduce_scatter(x.repeat(n))) for x in few]

    for seed in range(5):
        for first, second in simulate(two_calls, n, link=link, seed=seed, **SMALL).results:
            for (total, gathered, scattered), count, base in ((first, numel, 2.0), (second, 100, 3.0)):
                powers = torch.tensor([base**r for r in range(n)])
                assert total.tolist() == scattered.tolist() == [powers.sum().item()] * count
                assert gathered.tolist() == powers.repeat_interleave(count).tolist()


@every_call
def test_fewer_elements_than_ranks_in_every_call(simulate, call):
    n, node_size = 8, 4
    for link in wires(call, n, node_size):
        for numel in (1, 7):
            shape = (n * numel,) if call[1] in ("reduce_scatter", "scatter", "all_to_all") else (numel,)
            calls = [step(call, n, 0, numel, shape=shape), step(call, n, 100, 1)]
            if call[1] in ("reduce_scatter", "all_gather"):  # all of it on one rank
                sizes = tuple(numel if r == numel else 0 for r in range(n))
                total = numel if call[1] == "reduce_scatter" else 0
                calls.insert(1, step(call, n, 0, 5, shape=(total,), sizes=sizes))
            played(simulate, n, calls, node_size, link=link, seed=numel, **SMALL)


# Crashes. Tensors without elements.


@links
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("shape", [(0,), (1, 0, 2), (0, 8)])
def test_no_elements(simulate, shape, n, check, link):
    def all_three(comm):
        x = torch.empty(shape)
        total, gathered = comm.all_reduce(x), comm.all_gather(x)
        scattered = comm.reduce_scatter(torch.empty(n * shape[0], *shape[1:]))
        assert total is x
        after = comm.all_reduce(torch.tensor([1.0 + comm.rank]))
        return total.shape, gathered.shape, scattered.shape, after.item()

    rest = shape[1:]
    expected = (shape, (n * shape[0], *rest), shape, n * (n + 1) / 2)
    assert simulate(all_three, n, link=link, check=check).results == [expected] * n


@every_call
@pytest.mark.parametrize("n", [1, 2, 4])
def test_no_elements_in_every_call(simulate, n, call):
    for link in wires(call, n, 2):
        shapes = [(0,), (n, 0, 2), (0, 8)]
        calls = [step(call, n, 0, k, shape=shape, place=("out", "in place")[k % 2]) for k, shape in enumerate(shapes)]
        for check in (False, True):
            played(simulate, n, [*calls, step(call, n, 3)], 2, link=link, check=check)


# World size 1, and sizes that are no power of two.


@links
@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 7, 8])
def test_every_world_size(simulate, n, link):
    def constants(comm):
        x = torch.full((3 * n,), comm.rank + 1.0)
        before = x.clone()
        out = torch.empty(3 * n)
        assert comm.all_reduce(x, out=out) is out and torch.equal(x, before)
        scattered, gathered = comm.reduce_scatter(x), comm.all_gather(x)
        average = comm.all_reduce(x.clone(), op="avg")
        assert comm.all_reduce(x) is x
        assert torch.equal(x, out)
        return x, scattered, gathered, average

    total = float(n * (n + 1) // 2)
    assert total == {1: 1, 2: 3, 3: 6, 5: 15, 6: 21, 7: 28, 8: 36}[n]
    for x, scattered, gathered, average in simulate(constants, n, link=link).results:
        assert x.tolist() == [total] * 3 * n
        assert scattered.tolist() == [total] * 3
        assert gathered.tolist() == [r + 1.0 for r in range(n) for _ in range(3 * n)]
        assert average.tolist() == [torch.tensor(total / n).item()] * 3 * n


@every_call
@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 7, 8])
def test_every_world_size_in_every_call(simulate, n, call):
    """Rooted ones from the first rank, the second and the last."""
    node_size = {6: 3, 8: 2}.get(n, 0)
    roots = sorted({0, min(1, n - 1), n - 1}) if call[1] in ROOTED else [0]
    for link in wires(call, n, node_size):
        calls = [step(call, n, 3, n, root=root, op=("sum", "avg")[root % 2]) for root in roots]
        played(simulate, n, [*calls, step(call, n, 3, n, place="in place")], node_size, link=link)


def test_a_world_of_one_copies(simulate):
    def alone(comm):
        x = torch.tensor([-0.0, 1e-40, torch.inf, 1 / 3])
        out = torch.empty(4)
        comm.all_reduce(x, "avg", out=out)
        testing.assert_same_bits(out, x)
        testing.assert_same_bits(comm.all_gather(x), x)
        testing.assert_same_bits(comm.reduce_scatter(x, "avg"), x)
        same = x.clone()
        testing.assert_same_bits(comm.all_reduce(same, wire="bf16"), x.to(BF16).float())  # rounded as elsewhere
        return comm.stats()

    stats = simulate(alone, 1).results[0]
    assert (stats["calls"], stats["puts"], stats["signals"]) == (4, 0, 0)
