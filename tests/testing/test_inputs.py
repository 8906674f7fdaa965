"""Values that are made from a seed: different on every rank, and as nasty as they are said to be."""

import pytest
import torch

from tricoll import oracle, testing

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


@pytest.mark.parametrize("kind", testing.KINDS)
@pytest.mark.parametrize("dtype", oracle.DTYPES, ids=str)
def test_inputs_differ_by_rank_and_by_seed(dtype, kind):
    one, other = testing.make_inputs(2, (50,), dtype, kind, 5)
    assert one.dtype == dtype and one.shape == (50,)
    assert not oracle.same_bits(one, other)
    assert oracle.same_bits(one, testing.make_inputs(3, (50,), dtype, kind, 5)[0])
    assert not oracle.same_bits(one, testing.make_inputs(2, (50,), dtype, kind, 6)[0])


@pytest.mark.parametrize("dtype", oracle.SMALL_FLOATS, ids=str)
def test_inputs_are_nasty(dtype):
    x = torch.cat(testing.make_inputs(4, (4000,), dtype))
    wide, ends = x.float(), torch.finfo(dtype)
    assert wide.isnan().any()
    assert dtype == torch.float8_e4m3fn or (wide.isposinf().any() and wide.isneginf().any())
    assert (wide == ends.max).any() and (wide == ends.min).any()
    assert ((wide != 0) & (wide.abs() < ends.tiny)).any()
    assert (oracle.bits(x) == oracle.bits(torch.tensor(-0.0, dtype=dtype))).any()
    a, b = testing.make_inputs(2, (4000,), dtype, "huge")
    total = a.float() + b.float()
    assert (total.abs() > torch.finfo(dtype).max).any() or dtype == FP32
    a, b = (x.float() for x in testing.make_inputs(2, (4000,), dtype, "cancelling"))
    assert ((a + b).abs() < 0.01 * a.abs()).float().mean() > (0.01 if dtype.itemsize == 1 else 0.1)
    if dtype == FP32:
        x = torch.cat(testing.make_inputs(2, (4000,), dtype, "ties"))
        assert ((oracle.bits(x) & 0xFFFF) == 0x8000).float().mean() > 0.05


def test_sums_of_small_are_exact_in_every_type():
    for dtype in oracle.SMALL_FLOATS:
        inputs = testing.make_inputs(8, (1000,), dtype, "small")
        exact = torch.stack([x.double() for x in inputs]).sum(0)
        for wire in (FP32, BF16, FP16, dtype):
            assert oracle.same_bits(oracle.all_reduce(inputs, wire=wire, out_dtype=FP32).double(), exact + 0.0)
