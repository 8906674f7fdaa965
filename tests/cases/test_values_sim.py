"""Casts, NaN and infinities, partial sums, small types, float8 and complex numbers."""

import itertools

import pytest
import torch
from cases import BF16, FP16, FP32, SMALL, both_tiles, every_all_reduce, every_call, links, quiet, step, wires
from streams import played

import tricoll
from tricoll import testing

pytestmark = quiet


# FP32 to BF16. See also tests/kernels/test_numerics.py.


def bits(*patterns):
    return torch.tensor(patterns, dtype=torch.int64).to(torch.int32).view(FP32)


@links
@both_tiles
@pytest.mark.parametrize("n", [1, 2])
def test_casts(simulate, n, tiles, link):
    values = torch.cat(
        [
            torch.tensor([3.14, 1e-8, 0.2691408770292272, 1e-40]),
            bits(0x3F808000, 0x3F818000, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0x7F800000, 0xFF800000),
            bits(0x7F800001, 0x7FFF8C22, 0x80000000, 0x00008000, 0x00008001),
        ]
    )
    words = [0x4049, 0x322C, 0x3E8A, 0x0001, 0x3F80, 0x3F82, 0x7F7F, 0x7F80, 0x7F80, 0x7F80, 0xFF80]
    expected = bits(*(w << 16 for w in [*words, 0x7FC0, 0x7FC0, 0x8000, 0x0000, 0x0001])).to(BF16)
    assert len(values) == 16  # so that each of two ranks owns all of them once
    zeros = torch.where(values.eq(0) & values.signbit(), -0.0, 0.0)

    def cast(comm):
        x = (zeros if comm.rank else values).repeat(2)
        summed = comm.all_reduce(x, out=torch.empty(32, dtype=BF16), wire="bf16")
        gathered = comm.all_gather(x, out=torch.empty(n * 32, dtype=BF16), wire="bf16")
        return summed, gathered[:32], comm.all_reduce(x.clone(), wire="bf16").to(BF16)

    for result in simulate(cast, n, tiles=tiles, link=link).results:
        for one in result:
            testing.assert_same_bits(one, expected.repeat(2))


@both_tiles
@pytest.mark.parametrize("wire", [BF16, FP16], ids=str)
def test_casts_of_random_bits(simulate, wire, tiles):
    """100,000 random bit patterns are cast as torch casts them."""
    random_bits = torch.randint(-(2**31), 2**31, (100_000,), generator=torch.Generator().manual_seed(16))
    x = random_bits.to(torch.int32).view(FP32)

    def cast(comm):
        mine = x if comm.rank == 0 else torch.full_like(x, -0.0)  # adds nothing, not even to -0.0
        return comm.all_reduce(mine, out=torch.empty(x.shape, dtype=wire), wire=wire)

    for n in (1, 2):
        for result in simulate(cast, n, tiles=tiles).results:
            testing.assert_same_bits(result, x.to(wire))


# NaN and infinities in min, max and sum: whose they are does not matter.


@every_all_reduce
@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=str)
def test_not_a_number(simulate, algo, dtype):
    """1, NaN, 3, 4 on four ranks, in all 24 orders; infinities of both signs; two NaN."""
    orders = list(itertools.permutations((1.0, torch.nan, 3.0, 4.0)))
    orders += set(itertools.permutations((torch.inf, -torch.inf, 1.0, 1.0)))
    orders += set(itertools.permutations((torch.nan, torch.nan, 1.0, 2.0)))
    values = torch.tensor(orders).T.contiguous().to(dtype)
    infinite = torch.zeros(len(orders), dtype=torch.bool)
    infinite[24:36] = True
    ops = ("sum",) if algo == "multimem" else ("min", "max", "sum")

    def work(comm):
        return [comm.all_reduce(values[comm.rank].clone(), op, algo=algo) for op in ops]

    for link in wires((algo, "all_reduce")):
        for results in simulate(work, 4, link=link, node_size=2).results:
            for op, result in zip(ops, results, strict=True):
                expected = torch.full_like(result, torch.nan)
                if op != "sum":
                    expected[infinite] = -torch.inf if op == "min" else torch.inf
                testing.assert_same_bits(result, expected)


# Partial sums in BF16, or another type on the wire than was asked for.


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_partial_sums(simulate, dtype):
    """256 + 7 x 1 is 264 in BF16 if it is added in FP32: in every element, unless a BF16 ring is asked for."""
    n, numel = 8, 4096
    inputs = [torch.full((numel,), 256.0 if r == 0 else 1.0, dtype=dtype) for r in range(n)]

    choices = ((None, "auto"), ("fp32", "ring"), ("bf16", "two_shot"), ("bf16", "one_shot"), ("bf16", "ring"))

    def add(comm):
        out = [torch.empty(numel, dtype=BF16) for _ in choices]
        return [
            comm.all_reduce(inputs[comm.rank], out=o, wire=wire, algo=algo)
            for o, (wire, algo) in zip(out, choices, strict=True)
        ]

    results = [(torch.stack(right), ring) for *right, ring in simulate(add, n).results]
    assert all(right.eq(264.0).all() for right, _ in results)
    # With BF16 on the wire a ring rounds at every hop, and what is lost depends on where the chunk started: documented,
    # the same on all ranks, and what the oracle says.
    testing.check_all_reduce([bf16 for _, bf16 in results], inputs, wire=BF16)
    testing.check_all_reduce([bf16 for _, bf16 in results], inputs, wire=BF16, algorithm=None)
    assert set(results[0][1].unique().tolist()) == {256.0, 260.0, 264.0}


@every_all_reduce
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_partial_sums_of_every_algorithm(simulate, algo, dtype):
    """With an FP32 wire, 264; with a BF16 wire where there is one rounding, too. Elsewhere what the oracle says."""
    n, numel = 8, 512
    inputs = [torch.full((numel,), 256.0 if r == 0 else 1.0, dtype=dtype) for r in range(n)]

    def add(comm, wire):
        return comm.all_reduce(inputs[comm.rank], out=torch.empty(numel, dtype=BF16), wire=wire, algo=algo)

    for link in wires((algo, "all_reduce"), n, 4):
        assert all(r.eq(264).all() for r in simulate(add, n, "fp32", link=link, node_size=4).results)
        results = simulate(add, n, "bf16", link=link, node_size=4).results
        testing.check_all_reduce(results, inputs, "sum", BF16, algo, node_size=4)
        if algo in ("one_shot", "two_shot", "multimem"):
            assert all(r.eq(264).all() for r in results)


def test_fp16_is_not_sent_for_bf16(simulate):
    """1e5 overflows FP16."""
    x = torch.full((64,), 1e5)
    for result in simulate(lambda c: c.all_reduce(x if c.rank == 2 else x * 0, out=x.clone(), wire="bf16"), 4).results:
        assert result.eq(99840.0).all()


# Bool, small integers and float8.


def small_types(algo):
    """What three ranks give, the op, and the right result."""
    integer = lambda dtype, *values: [torch.full((40,), v, dtype=dtype) for v in values]
    large = 2**60 + 1
    table = {
        "bool": (integer(torch.bool, True, True, False), "sum", True),
        "uint8": (integer(torch.uint8, 200, 100, 0), "sum", 44),
        "int8": (integer(torch.int8, 120, 100, 0), "sum", -36),
        "int64": (integer(torch.int64, large, large, 0), "sum", 2**61 + 2),
    }
    more = algo_ranks(algo) - 3
    return {name: (x + x[-1:] * more, op, right) for name, (x, op, right) in table.items()}


def algo_ranks(algo):
    return 4 if algo == "hierarchical" else 3


@pytest.mark.parametrize("algo", ["ring", "tree", "two_shot", "one_shot", "hierarchical"])
@links
def test_small_types_are_reduced_in_themselves(simulate, algo, link):
    for inputs, op, right in small_types(algo).values():
        n = algo_ranks(algo)

        def work(comm):
            return comm.all_reduce(inputs[comm.rank].clone(), op, algo=algo)

        for result in simulate(work, n, link=link, node_size=2).results:
            assert result.dtype == inputs[0].dtype and result.tolist() == [right] * 40
            assert result.dtype != torch.bool or result.view(torch.uint8).tolist() == [1] * 40  # not 2


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@every_call
def test_float8(simulate, call, dtype):
    """All 256 bit patterns, moved as they are; reductions as the oracle says."""
    for link in wires(call):
        kind = "bits" if call[1] not in ("all_reduce", "reduce", "reduce_scatter") else "mixed"
        wire = torch.bfloat16 if call[0] == "multimem" else dtype
        calls = [step(call, 4, 256, k, dtypes=(dtype, wire, dtype), kind=kind) for k in range(3)]
        played(simulate, 4, calls, 2, link=link, **SMALL)
    if call == ("ring", "all_gather"):
        x = torch.arange(256, dtype=torch.uint8).view(dtype)
        for result in simulate(lambda c: c.all_gather(x), 2).results:
            assert torch.equal(result.view(torch.uint8), x.view(torch.uint8).repeat(2))


# Complex numbers, and tensors that are conjugated or negated only on paper.


@pytest.mark.parametrize("algo", ["ring", "tree", "two_shot", "one_shot", "hierarchical"])
@links
def test_complex(simulate, algo, link):
    n = 4

    def work(comm):
        z = torch.full((5,), 1 + 2j if comm.rank % 2 == 0 else 3 + 4j)
        conjugated, imaginary, negative = z.clone().conj(), z.clone().imag, torch._neg_view(z.clone())
        options = {"algo": algo}
        return (
            comm.all_reduce(z.clone(), **options).tolist(),
            comm.all_reduce(conjugated, **options).tolist(),
            comm.all_reduce(imaginary, **options).tolist(),
            comm.all_reduce(negative, **options).tolist(),
            comm.all_reduce(z.conj(), out=torch.zeros(5, dtype=z.dtype), **options).tolist(),
            comm.all_reduce(z.clone(), "avg", **options).tolist(),
        )

    for plain, conjugated, imaginary, negative, out, average in simulate(work, n, link=link, node_size=2).results:
        assert plain == [8 + 12j] * 5 and conjugated == out == [8 - 12j] * 5
        assert imaginary == [12.0] * 5 and negative == [-8 - 12j] * 5 and average == [2 + 3j] * 5


@every_call
def test_complex_in_every_call(simulate, call):
    """Random complex numbers of both sizes, or a TypeError that says what can be done."""
    if call[0] == "multimem":
        with pytest.raises(TypeError, match="multimem sends"):
            simulate(lambda c: c.all_reduce(torch.ones(3, dtype=torch.complex64), algo="multimem"), 2)
        return
    for link in wires(call):
        types = (torch.complex64, torch.complex128)
        calls = [step(call, 4, 9, k, dtypes=(types[k % 2],) * 3, op=("sum", "avg")[k // 2 % 2]) for k in range(4)]
        played(simulate, 4, calls, 2, link=link, **SMALL)


def test_no_largest_complex_number(simulate):
    def work(comm):
        for op in ("max", "min", "prod", tricoll.premul_sum(2.0)):
            with pytest.raises(TypeError, match=r"complex64 cannot be reduced with .*sum.*avg"):
                comm.all_reduce(torch.ones(3, dtype=torch.complex64), op)
        return comm.all_reduce(torch.ones(1)).item()

    assert simulate(work, 2).results == [2.0, 2.0]
