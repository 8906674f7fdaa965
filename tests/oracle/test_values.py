"""NaN, infinities, zeros, small types and complex numbers, as public bug reports have them."""

import functools
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ways import BF16, C64, E4M3, E5M2, FP16, FP32, FP64, filled, ways

from tricoll import oracle, testing


def in_all_orders(values, dtype):
    """A tensor a rank: who has which of the values changes from element to element, so that chunks have all orders."""
    orders = list(dict.fromkeys(itertools.permutations(values)))
    return [torch.tensor(column, dtype=dtype) for column in zip(*orders * (16 * len(values)))]


def same_in_all_orders(values, dtype, op, right):
    """Every way to reduce the values gives ``right``, whatever their order."""
    inputs, n = in_all_orders(values, dtype), len(values)
    expected = torch.full(inputs[0].shape, right, dtype=dtype)
    for way in ways(n, op=op, wire=dtype):
        testing.assert_same_bits(oracle.all_reduce(inputs, op, **way), expected, f"{op} {way}")
    for way in ways(n, "reduce_scatter", op, dtype):
        testing.assert_same_bits(torch.cat(oracle.reduce_scatter(inputs, op, **way)), expected, f"{op} {way}")
    for way in ways(n, "reduce", op, dtype):
        for root in range(n):
            testing.assert_same_bits(oracle.reduce(inputs, op, **way, root=root), expected, f"{op} {way} {root}")


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16, FP64, E4M3, E5M2], ids=str)
def test_nan_wherever_it_comes_from(dtype):
    for op in ("min", "max", "sum", "avg", "prod"):
        same_in_all_orders([1.0, math.nan, 3.0, 4.0], dtype, op, math.nan)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16, FP64, E5M2], ids=str)
def test_infinities(dtype):
    for op, right in (("sum", math.nan), ("prod", -math.inf), ("min", -math.inf), ("max", math.inf)):
        same_in_all_orders([math.inf, -math.inf, 1.0, 1.0], dtype, op, right)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16, FP64, E4M3, E5M2], ids=str)
def test_zeros_of_both_signs(dtype):
    """Whatever the order, the least of -0.0 and 0.0 is -0.0 and the greatest 0.0."""
    for op, right in (("min", -0.0), ("max", 0.0), ("sum", 0.0)):
        same_in_all_orders([0.0, -0.0, 0.0], dtype, op, right)
    same_in_all_orders([-0.0] * 3, dtype, "sum", -0.0)


def test_every_chunk_has_all_orders():
    """Of what the tests above look at."""
    for values in ([1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 0.0]):
        table = torch.stack(in_all_orders(values, FP32), 1)
        chunk, n = oracle.chunk_size(len(table), len(values)), len(values)
        every = {tuple(row) for row in table.tolist()}
        assert every == set(itertools.permutations(values)) and len(table) % n == 0
        for size in (chunk, len(table) // n):  # those of an all-reduce, and a reduce-scatter's parts
            assert all({tuple(row) for row in table[c * size : (c + 1) * size].tolist()} == every for c in range(n))


def test_partial_sums_in_bf16():
    """256 on rank 0 and 1 on seven others: 263, in BF16 264. A ring with BF16 on the wire gives 256, 260 or 264."""
    for dtype in (FP32, BF16):
        inputs = filled([256.0] + [1.0] * 7, 4096, dtype)
        for way in ways(8, wire=BF16):
            result = oracle.all_reduce(inputs, wire=BF16, out_dtype=BF16, **way).unique().tolist()
            if way["algorithm"] in ("two_shot", "one_shot", "multimem") or way.get("node_size") == 8:
                assert result == [264.0], way
            if way["algorithm"] == "ring":
                assert result == [256.0, 260.0, 264.0]
            if way["algorithm"] != "multimem":
                assert oracle.all_reduce(inputs, wire=FP32, out_dtype=BF16, **way).unique().tolist() == [264.0], way


def test_a_gradient_beyond_fp16():
    inputs = filled([0.0, 1e5, 0.0], 48)
    for way in ways(3):
        assert oracle.all_reduce(inputs, wire=BF16, **way).unique().tolist() == [99840.0]
        assert oracle.all_reduce(inputs, wire=FP16, **way).unique().tolist() == [math.inf]


@pytest.mark.parametrize("n", [2, 3])
def test_truth_values(n):
    columns = torch.tensor(list(itertools.product([False, True], repeat=n)))
    inputs = list(columns.T)
    right = {"sum": columns.any(1), "max": columns.any(1), "or": columns.any(1)}
    right |= {"prod": columns.all(1), "min": columns.all(1), "and": columns.all(1), "xor": columns.sum(1) % 2 == 1}
    assert set(right) == set(oracle.ops(torch.bool))
    for op, expected in right.items():
        for way in ways(n, op=op, wire=torch.bool):
            result = oracle.all_reduce(inputs, op, **way)
            testing.assert_same_bits(result, expected, f"{op} {way}")
            assert set(result.view(torch.uint8).tolist()) <= {0, 1}
        for way in ways(n, "reduce", op, torch.bool):
            testing.assert_same_bits(oracle.reduce(inputs, op, root=1, **way), expected)
        parts = oracle.reduce_scatter([x.repeat(n) for x in inputs], op)
        assert all(oracle.same_bits(part, expected) for part in parts)


def test_integers_wrap_and_fp64_stays():
    assert oracle.all_reduce([torch.tensor([200, 1], dtype=torch.uint8)] * 2).tolist() == [144, 2]
    assert oracle.all_reduce([torch.tensor([v], dtype=torch.uint8) for v in (200, 100)]).item() == 44
    assert oracle.all_reduce([torch.tensor([v], dtype=torch.int8) for v in (120, 100)]).item() == -36
    assert oracle.all_reduce([torch.tensor([16], dtype=torch.int8)] * 2, "prod").item() == 0
    assert oracle.all_reduce([torch.tensor([2**60 + 1])] * 2).tolist() == [2**61 + 2]
    third = torch.tensor([1 / 3], dtype=torch.float64)
    assert oracle.all_reduce([third] * 2).item() == 2 / 3


@given(st.data())
def test_integers_are_exact(data):
    """Against Python's integers, for every op, algorithm and place."""
    n = data.draw(testing.world_sizes(6))
    dtype = data.draw(st.sampled_from(oracle.INTEGERS))
    op = data.draw(testing.ops(dtype, every=True))
    inputs = data.draw(testing.inputs(n, (n * data.draw(st.integers(0, 20)),), dtype))
    combine = {"sum": int.__add__, "prod": int.__mul__, "and": int.__and__, "or": int.__or__, "xor": int.__xor__}
    combine |= {"min": min, "max": max}
    exact = [functools.reduce(combine[op], column) for column in zip(*(x.tolist() for x in inputs))]
    bits, low = 8 * dtype.itemsize, torch.iinfo(dtype).min
    wrapped = torch.tensor([(v - low) % 2**bits + low for v in exact], dtype=dtype)
    for way in ways(n, op=op, wire=dtype):
        testing.assert_same_bits(oracle.all_reduce(inputs, op, **way), wrapped)
    for way in ways(n, "reduce_scatter", op, dtype):
        testing.assert_same_bits(torch.cat(oracle.reduce_scatter(inputs, op, **way)), wrapped)
    for way in ways(n, "reduce", op, dtype):
        testing.assert_same_bits(oracle.reduce(inputs, op, root=data.draw(testing.roots(n)), **way), wrapped)


def test_complex_numbers():
    """1+2j and 3+4j: 4+6j; conjugated, negated and strided views as what they stand for."""
    z = [torch.tensor([v], dtype=C64) for v in (1 + 2j, 3 + 4j)]
    for dtype in oracle.COMPLEX:
        for way in ways(2, wire=dtype):
            assert oracle.all_reduce([x.to(dtype) for x in z], **way).tolist() == [4 + 6j]
            assert oracle.all_reduce([x.to(dtype).conj() for x in z], "avg", **way).tolist() == [2 - 3j]
    assert oracle.all_reduce([x.imag for x in z]).tolist() == [6.0]
    assert oracle.all_reduce([x.conj().imag for x in z]).tolist() == [-6.0]
    assert oracle.all_gather([x.conj() for x in z]).tolist() == [1 - 2j, 3 - 4j]
    assert oracle.broadcast([torch._neg_view(x) for x in z], root=1).tolist() == [-3 - 4j]


def test_complex_numbers_are_pairs_of_reals():
    """A chunk's 16 elements are 8 complex numbers, so what one rank's 2**24 swallows is as with reals."""
    reals = filled([2.0**24, 1.0, 1.0, 1.0], 64)
    for way in ways(4, wire=C64):
        expected = oracle.all_reduce(reals, **way)
        result = oracle.all_reduce([torch.view_as_complex(x.view(32, 2)) for x in reals], **way)
        assert result.dtype == C64 and torch.view_as_real(result).view(-1).tolist() == expected.tolist()
    parts = oracle.reduce_scatter([torch.view_as_complex(x.view(8, 4, 2)) for x in reals])
    expected = oracle.reduce_scatter(reals)
    assert [torch.view_as_real(part).view(-1).tolist() for part in parts] == [p.tolist() for p in expected]
    assert parts[0].shape == (2, 4)
