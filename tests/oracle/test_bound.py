"""The bound of any order: no result exceeds it, it is tight, and exact arithmetic agrees."""

import fractions
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ways import BF16, C64, FP16, FP32, filled, ways

from tricoll import oracle, testing


def exactly(column, op, scale):
    """The reduction of finite numbers, without any rounding; the scale as FP32 has it."""
    numbers = [fractions.Fraction(v) for v in column]
    if op == "prod":
        return math.prod(numbers, start=fractions.Fraction(1))
    if op in ("min", "max"):
        return min(numbers) if op == "min" else max(numbers)
    total = sum(numbers) * (fractions.Fraction(scale) if op == "premul_sum" else 1)
    return total / len(numbers) if op == "avg" else total


@given(st.data())
def test_the_oracle_lies_within_its_own_bound(data):
    """Exact sums and products of fractions, the oracle's bits, and the bound, against each other."""
    n = data.draw(testing.world_sizes())
    dtype, wire, out = data.draw(testing.dtype_triples(every=True).filter(lambda t: t[0] in oracle.FLOATS))
    op = data.draw(testing.ops(dtype, every=True))
    kwargs = {"scale": data.draw(testing.scales())} if op == "premul_sum" else {}
    inputs = data.draw(testing.inputs(n, (n * data.draw(st.integers(0, 8)),), dtype))
    for way in ways(n, op=op, wire=wire):
        outputs = [oracle.all_reduce(inputs, op, wire, out, **way, **kwargs)] * n
        testing.check_all_reduce(outputs, inputs, op, wire, algorithm=None, **kwargs)
    for way in ways(n, "reduce_scatter", op, wire):
        outputs = oracle.reduce_scatter(inputs, op, wire, out, **way, **kwargs)
        testing.check_reduce_scatter(outputs, inputs, op, wire, algorithm=None, **kwargs)
    for way in ways(n, "reduce", op, wire):
        outputs = [oracle.reduce(inputs, op, wire, out, **way, **kwargs), *inputs[1:]]
        testing.check_reduce(outputs, inputs, op, wire, algorithm=None, **kwargs)
    value, error = oracle.bound(inputs, op, wire, out, **kwargs)
    scale = float(torch.tensor(kwargs.get("scale", 1.0), dtype=oracle.accumulator(dtype)))
    for column, v, e in zip(zip(*(x.double().tolist() for x in inputs)), value.tolist(), error.tolist()):
        if all(abs(x) < math.inf for x in column) and e < math.inf:
            assert abs(exactly(column, op, scale) - fractions.Fraction(v)) <= fractions.Fraction(e)


def test_the_bound_is_tight_enough_to_be_of_use():
    inputs = testing.make_inputs(8, (1000,), FP32, "random")
    size = torch.stack(inputs).double().abs().sum(0)
    for wire, most in ((FP32, 2e-6), (BF16, 0.04)):
        for op, scale, factor in (("sum", None, 1), ("avg", None, 1 / 8), ("premul_sum", -0.25, 0.25)):
            _, error = oracle.bound(inputs, op, wire, scale=scale)
            assert bool((error <= factor * most * size + 1e-35).all())
    for op in ("min", "max"):
        value, error = oracle.bound(inputs, op, FP32)
        assert not error.any() and value.isfinite().all()
        assert bool((oracle.bound(inputs, op, BF16)[1] <= value.abs() * 2.0**-8).all())
    value, error = oracle.bound([1 + x.abs() % 1 for x in inputs], "prod", BF16)
    assert bool((error <= 0.04 * value).all())
    value, error = oracle.bound(filled([0.5, 0.0, 1e30, 1e-30], 1), "prod")
    assert value.item() == error.item() == 0.0


def test_the_bound_is_needed():
    """Every hop of a ring loses nearly a whole unit roundoff; every share of the direct family half a subnormal."""
    u = 2.0**-8
    # In the chunk of rank 0: 1 + u goes as 1, 1 + 1 + 2u as 2, and the total 2 + 2 + 4u as 4.
    inputs = filled([(2 + 4 * u) * (1 - 2.0**-20), (1 + u) * (1 - 2.0**-20), (1 + 2 * u) * (1 - 2.0**-20)], 1)
    result = oracle.all_reduce(inputs, wire=BF16)
    assert result.item() == 4.0
    value, error = oracle.bound(inputs, wire=BF16)
    assert 1.7 * u * value < value - 4.0 <= error
    least = 2.0**-24  # of FP16
    inputs = filled([0.49 * least] * 8, 1)
    assert oracle.all_reduce(inputs, wire=FP16, algorithm="two_shot").item() == 0.0
    value, error = oracle.bound(inputs, wire=FP16)
    assert 3.9 * least < value <= error < 10 * least


@pytest.mark.parametrize("op, wrong", [("prod", 1.07), ("min", 1.004), ("max", 1.004), ("premul_sum", 1.07)])
def test_the_bound_refuses(op, wrong):
    inputs = [x.abs() + 0.5 for x in testing.make_inputs(8, (100,), FP32, "small", 3)]
    kwargs = {"scale": 0.1} if op == "premul_sum" else {}
    good = oracle.all_reduce(inputs, op, BF16, **kwargs)
    testing.check_all_reduce([good] * 8, inputs, op, BF16, algorithm=None, **kwargs)
    with pytest.raises(AssertionError, match="more than"):
        testing.check_all_reduce([good * wrong] * 8, inputs, op, BF16, algorithm=None, **kwargs)


def test_the_bound_of_complex_numbers():
    inputs = testing.make_inputs(3, (20,), C64)
    outputs = [oracle.all_reduce(inputs, "avg")] * 3
    testing.check_all_reduce(outputs, inputs, "avg", algorithm=None)
    value, error = oracle.bound(inputs, "avg")
    assert value.shape == error.shape == (20, 2)
