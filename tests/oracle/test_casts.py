"""The casts that the oracle leans on, against NumPy's and against the definition of each format."""

import math

import numpy
import pytest
import torch
from ways import BF16, E4M3, E5M2, FP16, FP32, ways

from tricoll import oracle, testing


def test_the_casts_that_the_oracle_leans_on():
    """torch's casts, against NumPy's and against integer arithmetic."""
    bits = torch.randint(-(2**31), 2**31, (200_000,), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    x = torch.cat([bits.view(FP32), *testing.make_inputs(4, (1000,), FP32)])
    with numpy.errstate(over="ignore", invalid="ignore"):
        half = torch.from_numpy(x.numpy().astype(numpy.float16))
    testing.assert_same_bits(x.to(FP16), half)
    u = x.view(torch.int32).long() & 0xFFFFFFFF
    rounded = (u + 0x7FFF + (u >> 16 & 1)) >> 16
    rounded = torch.where(x.isnan(), 0x7FC0, rounded)
    testing.assert_same_bits(x.to(BF16), rounded.to(torch.int32).to(torch.int16).view(BF16))


def positive_values(dtype):
    """The 128 values of a float8 without its sign, by the definition of the format, in FP64."""
    mantissa, bias = {E4M3: (3, 7), E5M2: (2, 15)}[dtype]
    values = []
    for code in range(128):
        exponent, fraction = code >> mantissa, code % 2**mantissa / 2**mantissa
        values.append((1 + fraction) * 2.0 ** (exponent - bias) if exponent else fraction * 2.0 ** (1 - bias))
    if dtype == E4M3:
        return [*values[:127], math.nan]
    return [*values[:124], math.inf, math.nan, math.nan, math.nan]


def encode(x, dtype):
    """FP32 numbers to float8 codes: the nearest value, of two that are as near the one with the even code.

    Beyond the largest: float8_e5m2 goes on as if its infinity were the next value; float8_e4m3fn stays there.
    """
    values = numpy.array(positive_values(dtype))
    last = 126 if dtype == E4M3 else 124
    steps = values[: last + 1].copy()
    if dtype == E5M2:
        steps[124] = 65536.0
    with numpy.errstate(invalid="ignore"):
        size = numpy.minimum(numpy.abs(x.astype(numpy.float64)), steps[-1])
    above = numpy.clip(numpy.searchsorted(steps, size), 1, last)
    low, high = size - steps[above - 1], steps[above] - size
    code = numpy.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)
    code = numpy.where(numpy.isnan(x), 0x7F, code) | (numpy.signbit(x) << 7)
    return torch.from_numpy(code.astype(numpy.uint8)).view(dtype)


def decoded(dtype):
    """All 256 float8 values in FP32, by code."""
    positive = numpy.array(positive_values(dtype), dtype=numpy.float32)
    return numpy.concatenate([positive, -positive])


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_all_8_bit_floats_widen(dtype):
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    wide = torch.from_numpy(decoded(dtype))
    testing.assert_same_bits(every.to(FP32), wide)
    for other in (FP16, BF16):  # both have all of them
        testing.assert_same_bits(every.to(other).to(FP32), wide)


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_everything_narrows_to_8_bits(dtype):
    """All FP16 and BF16 numbers, and FP32 ones at, below and above every half way point and every end."""
    for half in (FP16, BF16):
        every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(half)
        testing.assert_same_bits(every.to(dtype), encode(every.float().numpy(), dtype))
    finite = numpy.array([v for v in positive_values(dtype) if v < math.inf], dtype=numpy.float32)
    middles = numpy.concatenate([(finite[1:] + finite[:-1]) / 2, finite, numpy.float32([61440, 464, 480])])
    points = [numpy.nextafter(middles, numpy.float32(to)) for to in (0, math.inf)] + [middles]
    points.append(numpy.float32([1e-30, 1e30, math.inf, math.nan]))
    x = numpy.concatenate([*points, *(-p for p in points)])
    testing.assert_same_bits(torch.from_numpy(x).to(dtype), encode(x, dtype))


@pytest.mark.parametrize("op", ["sum", "avg", "prod", "min", "max", "premul_sum"])
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_all_pairs_of_8_bit_floats(dtype, op):
    """Two ranks, all 65,536 pairs, every algorithm: against NumPy's FP32 and the table of the format."""
    codes = numpy.arange(256)
    one, other = (c.ravel() for c in numpy.meshgrid(codes, codes, indexing="ij"))
    inputs = [torch.from_numpy(c.astype(numpy.uint8)).view(dtype) for c in (one, other)]
    a, b = decoded(dtype)[one], decoded(dtype)[other]
    scale = numpy.float32(1 / 3)
    if op in ("min", "max"):
        # As sign and magnitude, codes are in the order of the numbers, -0.0 below 0.0.
        key = lambda code: numpy.where(code < 128, code, 127 - code)
        first = key(one) < key(other) if op == "min" else key(one) > key(other)
        expected = torch.from_numpy(numpy.where(first, one, other).astype(numpy.uint8)).view(dtype)
        nan = torch.from_numpy(numpy.isnan(a) | numpy.isnan(b))
        expected = torch.where(nan, torch.tensor(0x7F, dtype=torch.uint8), oracle.bits(expected)).view(dtype)
    else:
        with numpy.errstate(all="ignore"):
            if op == "premul_sum":  # each share is rounded on its way
                a, b = (encode(v * scale, dtype).float().numpy() for v in (a, b))
            total = {"prod": a * b, "avg": (a + b) / numpy.float32(2)}.get(op, a + b)
        expected = encode(total, dtype)
    for way in ways(2, op=op, wire=dtype):
        if op != "premul_sum" or way["algorithm"] in ("two_shot", "one_shot", "hierarchical"):
            kwargs = {"scale": 1 / 3} if op == "premul_sum" else {}
            testing.assert_same_bits(oracle.all_reduce(inputs, op, **way, **kwargs), expected, str(way))
