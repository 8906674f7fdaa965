"""Which tensors may be written to, and which may be given together: by the places of their elements in memory."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tricoll.tensors import check_overlap, check_writable

dimensions = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), max_size=3)  # size and stride of each


def places(tensor):
    """Of each element, how far it is from the first one."""
    steps = zip(tensor.stride(), tensor.shape)
    return [sum(offsets) for offsets in itertools.product(*(range(0, s * n, s) if s else [0] * n for s, n in steps))]


@given(dimensions)
def test_no_place_is_written_twice(dimensions):
    tensor = torch.zeros(64).as_strided([n for n, _ in dimensions], [s for _, s in dimensions])
    found = places(tensor)
    try:
        check_writable(tensor)
    except ValueError:
        assert tensor.numel() > 1
    else:
        assert len(set(found)) == len(found) == tensor.numel()


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((), ()),
        ((0,), (0,)),
        ((1,), (0,)),
        ((4,), (1,)),
        ((4,), (2,)),
        ((2, 3), (5, 2)),
        ((3, 2), (2, 5)),
        ((2, 1), (1, 0)),
    ],
)
def test_gaps_are_no_overlap(shape, strides):
    check_writable(torch.zeros(64).as_strided(shape, strides))


@pytest.mark.parametrize(("shape", "strides"), [((4,), (0,)), ((2, 3), (4, 2)), ((3, 2), (2, 4)), ((2, 2), (1, 1))])
def test_elements_that_share_memory(shape, strides):
    with pytest.raises(ValueError, match="share memory"):
        check_writable(torch.zeros(64).as_strided(shape, strides))


def test_neighbours_do_not_overlap():
    memory = torch.zeros(8)
    for x, out in ((memory[:4], memory[4:]), (memory[4:], memory[:4]), (memory[:4], memory[6:6]), (memory[:0], memory)):
        check_overlap(x, out, None)
    for x, out in ((memory[:5], memory[4:]), (memory[4:], memory[:5]), (memory, memory), (memory[::2], memory[1::2])):
        with pytest.raises(ValueError, match="overlap in memory"):
            check_overlap(x, out, None)


def test_out_may_be_a_part_of_x_at_its_place():
    memory = torch.zeros(8)
    check_overlap(memory, memory[2:4], 2)
    check_overlap(memory[2:4], memory, -2)
    wrong = [(memory, memory[2:4], 1), (memory, memory[2:4].view(torch.int32), 2), (memory[::2], memory[4:6], 4)]
    for x, out, distance in [*wrong, (memory[:4], memory[2:7:2], 2)]:
        with pytest.raises(ValueError, match="overlap in memory"):
            check_overlap(x, out, distance)
