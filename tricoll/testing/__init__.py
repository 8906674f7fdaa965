"""Property tests for collectives: what to feed them, and how to judge what comes back.

Strategies for hypothesis (``pip install "tricoll[test]"``) draw world sizes, sizes near every boundary, dtypes, values
that break reductions, memory layouts and simulator schedules. Checkers take plain tensors, one a rank, and raise
AssertionError; where the tensors come from is not their business, so they judge any backend, or a reduction of your
own:

    >>> import torch
    >>> from hypothesis import given, settings, strategies as st
    >>> from tricoll import testing

    >>> def my_all_reduce(inputs):  # all-gather, then add in FP64, say
    ...     total = torch.stack([x.double() for x in inputs]).sum(0)
    ...     return [total.to(inputs[0].dtype) for _ in inputs]

    >>> @settings(max_examples=20, deadline=None)
    ... @given(st.data())
    ... def test_mine(data):
    ...     n = data.draw(testing.world_sizes())
    ...     shape = data.draw(testing.shapes(data.draw(testing.numels(n))))
    ...     inputs = data.draw(testing.inputs(n, shape, data.draw(testing.dtypes(floats=True))))
    ...     testing.check_all_reduce(my_all_reduce(inputs), inputs, algorithm=None)  # None: any order of additions
    >>> test_mine()

    >>> testing.check_all_reduce([torch.ones(2), torch.ones(2)], [torch.ones(2), torch.tensor([0.0, 1.0])])
    Traceback (most recent call last):
    AssertionError: all_reduce, rank 0: 1 of 2 elements wrong, first [1]: 1.0 (0x3f800000), not 2.0 (0x40000000)

With an algorithm's name in place of None, the bits must be those of :mod:`tricoll.oracle`. Every collective has a
checker; what only some ranks have is None on the others:

    >>> five, six = torch.tensor([[5], [6]], dtype=torch.uint8)
    >>> testing.check_gather([None, torch.cat([five, five])], [five, six], root=1)
    Traceback (most recent call last):
    AssertionError: gather, rank 1: 1 of 2 elements wrong, first [1]: 5 (0x05), not 6 (0x06), row 0 of rank 1
"""

from .checkers import (
    assert_same_bits,
    assert_same_on_all_ranks,
    check_all_gather,
    check_all_reduce,
    check_all_to_all,
    check_broadcast,
    check_gather,
    check_reduce,
    check_reduce_scatter,
    check_scatter,
)
from .memory import CANARY, GUARD, Guarded, Layout
from .strategies import (
    OTHERS,
    SMALL_FLOATS,
    dtype_triples,
    dtypes,
    inputs,
    layouts,
    node_sizes,
    numels,
    ops,
    roots,
    scales,
    schedules,
    settings,
    shapes,
    sizes,
    splits,
    world_sizes,
)
from .values import EIGHT_BITS, KINDS, make_inputs

__all__ = [
    "check_all_reduce",
    "check_reduce_scatter",
    "check_reduce",
    "check_all_gather",
    "check_gather",
    "check_broadcast",
    "check_scatter",
    "check_all_to_all",
    "assert_same_bits",
    "assert_same_on_all_ranks",
    "world_sizes",
    "numels",
    "shapes",
    "dtypes",
    "dtype_triples",
    "ops",
    "scales",
    "roots",
    "node_sizes",
    "sizes",
    "splits",
    "inputs",
    "settings",
    "schedules",
    "layouts",
    "make_inputs",
    "Layout",
    "Guarded",
    "KINDS",
    "SMALL_FLOATS",
    "EIGHT_BITS",
    "OTHERS",
    "GUARD",
    "CANARY",
]
