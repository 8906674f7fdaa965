"""Guarded tensors: they hold their values, and notice what is written around them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tricoll import oracle, testing
from tricoll.testing import Guarded, Layout

FP32 = torch.float32


@pytest.mark.parametrize("where, stride", [(-1, 1), (-1, 2), (15, 1), (15, 2), (1, 2)])
def test_guarded_notices_writes_around_it(where, stride):
    guarded = Guarded(torch.zeros(15 if where != 1 else 8), Layout(3, stride))
    guarded.view.fill_(7.0)
    guarded.check()
    place = guarded.view.storage_offset() + (where * stride if where == 15 else where)
    guarded.memory.view(-1).view(FP32)[place] = 0.0
    with pytest.raises(AssertionError, match=r"1 elements outside the tensor were written; the first is -?[0-9]+"):
        guarded.check()


@pytest.mark.parametrize("byte", range(4))
def test_guarded_notices_a_single_byte(byte):
    guarded = Guarded(torch.zeros(3))
    place = (guarded.view.storage_offset() - 1) * 4 + byte
    guarded.memory.view(-1)[place] ^= 1
    with pytest.raises(AssertionError, match="the first is -1 elements from its start"):
        guarded.check()


@given(st.data())
def test_layouts_hold_their_values(data):
    shape = data.draw(testing.shapes(data.draw(testing.numels(2, most=50))))
    values, other = data.draw(testing.inputs(2, shape, data.draw(testing.dtypes(every=True))))
    layout = data.draw(testing.layouts())
    guarded = Guarded(values, layout)
    testing.assert_same_bits(guarded.view, values)
    guarded.view.copy_(other)
    testing.assert_same_bits(guarded.view, other)
    guarded.check()
    if values.numel():
        assert guarded.view.data_ptr() % 64 == layout.offset * values.element_size() % 64


@pytest.mark.parametrize("dtype", oracle.DTYPES, ids=str)
def test_guarded_of_all_types(dtype):
    guarded = Guarded(torch.zeros(3, dtype=dtype), Layout(1, 2))
    guarded.memory.view(-1).view(dtype)[guarded.view.storage_offset() + 1] = 1
    with pytest.raises(AssertionError, match="the first is 1 elements from its start"):
        guarded.check()
