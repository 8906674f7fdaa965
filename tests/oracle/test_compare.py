"""When two results count as the same."""

import math

import torch
from ways import E4M3, E5M2, FP32

from tricoll import oracle


def test_same_bits():
    nan = torch.tensor([0x7FC00000, 0x7F800001, -1], dtype=torch.int32).view(FP32)
    assert oracle.same_bits(nan, nan.flip(0)) and not oracle.same_bits(nan, torch.full((3,), torch.inf))
    assert not oracle.same_bits(torch.tensor(0.0), torch.tensor(-0.0))
    assert not oracle.same_bits(torch.zeros(2), torch.zeros(2, 1))
    assert not oracle.same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.int32))
    assert oracle.same_bits(torch.arange(6).view(2, 3).t(), torch.tensor([[0, 3], [1, 4], [2, 5]]))
    assert oracle.same_bits(torch.zeros(0), torch.zeros(0))


def test_same_bits_of_other_types():
    assert oracle.same_bits(torch.tensor([True, False]), torch.tensor([True, False]))
    assert oracle.differing(torch.tensor([True, False]), torch.tensor([True, True])).tolist() == [False, True]
    two = torch.tensor([2], dtype=torch.uint8).view(torch.bool)  # a true that is not 1
    assert not oracle.same_bits(two, torch.tensor([True]))
    for dtype, nans in ((E4M3, (0x7F, 0xFF)), (E5M2, (0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF))):
        codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
        every, next_one = codes.view(dtype), codes.roll(1).view(dtype)
        assert oracle.same_bits(every, every.clone())
        same = ~oracle.differing(every, next_one)
        assert same.nonzero().view(-1).tolist() == [code for code in nans if code - 1 in nans]
    nan = math.nan
    for dtype in oracle.COMPLEX:
        z = torch.tensor([complex(0, 0), complex(nan, 1), complex(1, nan), 1j], dtype=dtype)
        other = torch.tensor([complex(-0.0, 0), complex(nan, 1), complex(nan, 1), 1j], dtype=dtype)
        assert oracle.differing(z, other).tolist() == [True, False, True, False]
        assert oracle.same_bits(z.conj(), z.conj().resolve_conj()) and not oracle.same_bits(z.conj(), z)
