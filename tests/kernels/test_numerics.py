"""Casts and sums of the bulk loop, bit for bit those of torch, in both of its implementations."""

import contextlib

import pytest
import torch
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime import interpreter

from tricoll import oracle, testing
from tricoll.fabric import cpu
from tricoll.fabric.base import Counters
from tricoll.kernels import jit
from tricoll.kernels import tiles as bulk
from tricoll.kernels.numerics import Reduction
from tricoll.testing import Guarded, Layout, assert_same_bits

pytestmark = [
    # Infinities and NaN are among the values; NumPy, which is under Triton's interpreter, warns of them.
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),  # Triton 3.6
]

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
both = pytest.mark.parametrize("tiles", ["torch", "triton"])

BF16_OF_FP32 = [  # what is asked of a cast in public bug reports: bits or value of FP32, bits of BF16
    (3.14, 0x4049),
    (1e-8, 0x322C),
    (0.2691408770292272, 0x3E8A),
    (0x3F808000, 0x3F80),  # ties go to even
    (0x3F818000, 0x3F82),
    (0x7F7F7FFF, 0x7F7F),  # the largest
    (0x7F7F8000, 0x7F80),  # rounds to infinity
    (0x7F7FFFFF, 0x7F80),
    (0x7F800000, 0x7F80),  # infinity
    (0xFF800000, 0xFF80),
    (0x7F800001, "NaN"),  # not infinity
    (0x7FFF8C22, "NaN"),  # not -0.0
    (0x80000000, 0x8000),  # -0.0
    (1e-40, 0x0001),  # subnormal
    (0x00008000, 0x0000),
    (0x00008001, 0x0001),
]


def transfer(tiles, own=None, recv=None, send=None, keep=None, world=1, op="sum", block=16):
    """One call of the bulk loop, without any rank: reads ``own`` and ``recv``, writes into ``send`` and ``keep``."""
    interpreted = tiles == "triton"
    given = [own, recv, keep, send]
    dummy = next(t for t in given if t is not None)
    tensors = [dummy if t is None else t for t in given]
    switches = [t is not None for t in given]
    scalars = [dummy.numel(), world]
    scale = 1.0
    if interpreted:
        pointers = [interpreter._implicit_cvt(t) for t in tensors]
        scalars, scale = [cpu._scalar(s) for s in scalars], cpu._scalar(scale, tl.float64)
    else:
        pointers = [jit.Pointer.to(t) for t in tensors]
    own_, recv_, keep_, send_ = switches
    previous = jit.bind(cpu.CpuProgram(0, 0, [], interpreted, Counters()))
    try:
        with cpu.interpreting(bulk.transfer) if interpreted else contextlib.nullcontext():
            red = Reduction(scalars[1], scale, None)
            bulk.transfer(*pointers, scalars[0], red, own_, recv_, keep_, send_, True, op, block)
    finally:
        jit.bind(previous)


def fp32(bits_or_value):
    """A float from its value, or from its bits if those are given as an int."""
    if isinstance(bits_or_value, float):
        return torch.tensor([bits_or_value])
    return torch.tensor([bits_or_value], dtype=torch.int64).to(torch.int32).view(FP32)


def table():
    values = torch.cat([fp32(v) for v, _ in BF16_OF_FP32])
    nan = torch.tensor([torch.nan], dtype=BF16)
    return values, torch.cat([nan if b == "NaN" else fp32(b << 16).to(BF16) for _, b in BF16_OF_FP32])


def cast(tiles, x, dtype):
    """``x`` as the bulk loop casts it when it is sent, and as when it is kept."""
    sent, kept = torch.empty(x.shape, dtype=dtype), torch.empty(x.shape, dtype=dtype)
    block = 1 << 14
    transfer(tiles, own=x, send=sent, block=block)
    transfer(tiles, recv=x, keep=kept, block=block)
    return sent, kept


# Casts.


def test_the_table_means_what_it_says():
    values, expected = table()
    for value, bits in zip(values, expected, strict=True):
        assert_same_bits(value.to(BF16), bits, f"torch's own cast of {value.item()}")
    assert [b & 0xFFFF for b in expected.view(torch.int16).tolist()][:4] == [0x4049, 0x322C, 0x3E8A, 0x3F80]


@both
def test_bf16_table(tiles):
    values, expected = table()
    for result in cast(tiles, values, BF16):
        assert_same_bits(result, expected)


@both
@pytest.mark.parametrize("source", [FP32, BF16, FP16], ids=str)
@pytest.mark.parametrize("target", [FP32, BF16, FP16], ids=str)
def test_casts_are_torchs(tiles, source, target):
    """On 100,000 random bit patterns of FP32 and on all there are of 16 bits."""
    if source == FP32:
        x = torch.randint(-(2**31), 2**31, (100_000,), generator=torch.Generator().manual_seed(1))
        x = torch.cat([x.to(torch.int32).view(FP32), *testing.make_inputs(4, (5000,), FP32)])
    else:
        x = torch.arange(-(2**15), 2**15).to(torch.int16).view(source)
    for result in cast(tiles, x, target):
        assert_same_bits(result, x.to(target))


@both
@pytest.mark.parametrize("wire", [FP32, BF16, FP16], ids=str)
def test_what_is_kept_went_over_the_wire(tiles, wire):
    x = testing.make_inputs(1, (3000,), FP32)[0]
    sent, kept = torch.empty(x.shape, dtype=wire), torch.empty(x.shape, dtype=FP32)
    transfer(tiles, own=x, send=sent, keep=kept, block=1024)
    assert_same_bits(sent, x.to(wire))
    assert_same_bits(kept, x.to(wire).to(FP32))


@both
@pytest.mark.parametrize("dtype", [d for d in jit.TRITON if d not in (FP32, BF16, FP16)], ids=str)
def test_other_types_are_moved_as_they_are(tiles, dtype):
    x = testing.make_inputs(1, (500,), dtype, "bits")[0]
    for result in cast(tiles, x, dtype):
        assert_same_bits(result, x)


# Sums.


@both
@pytest.mark.parametrize("dtype", jit.TRITON, ids=str)
def test_sums_are_torchs(tiles, dtype):
    a, b = testing.make_inputs(2, (5000,), dtype)
    total = torch.empty_like(a)
    transfer(tiles, own=a, recv=b, keep=total, block=1024)
    wide = oracle.accumulator(dtype)
    assert_same_bits(total, (a.to(wide) + b.to(wide)).to(dtype))


@both
@pytest.mark.parametrize("world", [2, 3, 5, 7, 8, 10, 72])
def test_averages_are_correctly_rounded(tiles, world):
    """A division, not a multiplication with a rounded reciprocal. FP64 has bits enough to tell."""
    a, b = torch.cat(testing.make_inputs(2, (5000,), FP32)), torch.zeros(10_000)
    result = torch.empty_like(a)
    transfer(tiles, own=a, recv=b, keep=result, world=world, op="avg", block=1024)
    assert_same_bits(result, ((a + b).double() / world).float())


@both
@pytest.mark.parametrize("dtype", [torch.float64, FP32, BF16, FP16], ids=str)
def test_every_float_has_an_average(tiles, dtype):
    third = torch.empty(1, dtype=dtype)
    transfer(tiles, own=torch.ones(1, dtype=dtype), keep=third, world=3, op="avg")
    assert_same_bits(third, torch.tensor([1 / 3], dtype=torch.float64).to(dtype))


@both
def test_an_average_is_divided_before_it_is_rounded(tiles):
    """The sum would overflow FP16, and the average does not."""
    a, b = torch.tensor([61440.0], dtype=FP16), torch.tensor([49152.0], dtype=FP16)
    result = torch.empty(1, dtype=FP16)
    transfer(tiles, own=a, recv=b, keep=result, world=2, op="avg")
    assert result.item() == 55296.0


@both
def test_zeros_keep_their_signs(tiles):
    minus, plus = torch.tensor([-0.0]), torch.tensor([0.0])
    for own, recv, expected in ((minus, minus, minus), (minus, plus, plus), (plus, minus, plus)):
        total, sent = torch.empty(1), torch.empty(1, dtype=BF16)
        transfer(tiles, own=own, recv=recv, keep=total, send=sent)
        assert_same_bits(total, expected)
        assert_same_bits(sent, expected.to(BF16))
    for op in ("sum", "avg"):
        alone = torch.empty(1)
        transfer(tiles, own=minus, keep=alone, world=3, op=op)
        assert_same_bits(alone, minus)


@both
@pytest.mark.parametrize("dtype", [torch.float64, FP32, BF16, FP16], ids=str)
def test_the_least_and_the_greatest_zero(tiles, dtype):
    """-0.0 is less than 0.0, whichever comes first."""
    minus, plus = torch.tensor([-0.0], dtype=dtype), torch.tensor([0.0], dtype=dtype)
    for op, right in (("min", minus), ("max", plus)):
        for own, recv in ((minus, plus), (plus, minus)):
            found = torch.empty(1, dtype=dtype)
            transfer(tiles, own=own, recv=recv, keep=found, op=op)
            assert_same_bits(found, right)


@both
def test_subnormals_are_not_flushed(tiles):
    least = fp32(1)
    for own, recv, bits in (
        (least, least, 2),
        (fp32(0x007FFFFF), least, 0x00800000),
        (fp32(0x00800000), -least, 0x7FFFFF),
    ):
        total = torch.empty(1)
        transfer(tiles, own=own, recv=recv, keep=total)
        assert_same_bits(total, fp32(bits))
    half = torch.empty(1)
    transfer(tiles, own=fp32(6), keep=half, world=2, op="avg")
    assert_same_bits(half, fp32(3))
    tiny = torch.tensor([1], dtype=torch.int16)
    for dtype in (BF16, FP16):
        total = torch.empty(1, dtype=dtype)
        transfer(tiles, own=tiny.view(dtype), recv=tiny.view(dtype), keep=total)
        assert_same_bits(total, (2 * tiny).view(dtype))


@both
def test_infinities_and_nan(tiles):
    inf, nan, one = torch.inf, torch.nan, 1.0
    cases = [(inf, one, inf), (-inf, one, -inf), (inf, -inf, nan), (nan, one, nan), (one, nan, nan), (nan, inf, nan)]
    for dtype in (FP32, BF16, FP16, torch.float64):
        own, recv, expected = (torch.tensor(column, dtype=dtype) for column in zip(*cases, strict=True))
        total = torch.empty_like(own)
        transfer(tiles, own=own, recv=recv, keep=total)
        assert_same_bits(total, expected)


# Everything at once.


@st.composite
def calls(draw):
    dtype, wire, out = draw(testing.dtype_triples())
    block = draw(st.sampled_from((16, 32, 64)))
    numel = draw(testing.numels(1, slot=2 * block, block=block, most=200))
    reads = draw(st.sampled_from(("own", "recv", "both")))
    writes = draw(st.sampled_from(("send", "keep", "both")))
    op = draw(testing.ops(dtype)) if reads != "recv" else "sum"
    kind, seed, offset = draw(st.sampled_from(testing.KINDS)), draw(st.integers(0, 99)), draw(st.integers(0, 5))
    return (dtype, wire, out), block, numel, reads, writes, op, draw(st.integers(1, 9)), kind, seed, offset


@settings(max_examples=8 * settings.default.max_examples)
@given(calls())
def test_any_pass(call):
    (dtype, wire, out), block, numel, reads, writes, op, world, kind, seed, offset = call
    own, partial = testing.make_inputs(2, (numel,), dtype, kind, seed)
    recv = partial.to(wire)
    wide = oracle.accumulator(dtype)
    total = {"own": own.to(wide), "recv": recv.to(wide), "both": own.to(wide) + recv.to(wide)}[reads]
    if op == "avg":
        total = total / torch.full_like(total, world)
    sent = total.to(wire)
    kept = (sent.to(wide) if writes == "both" else total).to(out)
    for tiles in ("torch", "triton"):
        places = {
            "own": Guarded(own, Layout(offset)) if reads != "recv" else None,
            "recv": Guarded(recv, Layout(offset)) if reads != "own" else None,
            "send": Guarded(torch.zeros(numel, dtype=wire), Layout(offset)) if writes != "keep" else None,
            "keep": Guarded(torch.zeros(numel, dtype=out), Layout(offset)) if writes != "send" else None,
        }
        views = {name: place.view for name, place in places.items() if place is not None}
        transfer(tiles, **views, world=world, op=op, block=block)
        if writes != "keep":
            assert_same_bits(views["send"], sent, f"sent with {tiles}")
        if writes != "send":
            assert_same_bits(views["keep"], kept, f"kept with {tiles}")
        for place in places.values():
            if place is not None:
                place.check()
