"""What the strategies draw: the boundaries are reached, and nothing that does not fit."""

import doctest
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tricoll import oracle, testing

FP32 = torch.float32


def test_what_strategies_reach():
    """The boundaries are not only possible but drawn."""
    seen = set()

    @settings(max_examples=300, database=None)
    @given(testing.numels(3, slot=64, block=32))
    def draw(numel):
        seen.add(numel)

    draw()
    assert {0, 1, 2, 3, 4} <= seen and seen & {95, 96, 97} and seen & {191, 192, 193} and max(seen) > 1000


@given(st.data(), st.integers(0, 50), st.sampled_from((None, 1, 2, 3)))
def test_shapes_have_their_elements(data, numel, first):
    numel = numel * (first or 1)
    shape = data.draw(testing.shapes(numel, first))
    assert torch.Size(shape).numel() == numel
    assert first is None or shape[0] % first == 0


def test_what_a_draw_of_types_can_give():
    """Nothing new unless it is asked for: not every backend has all types."""

    def drawn(strategy):
        seen = []
        settings(max_examples=300, database=None, derandomize=False)(given(strategy)(lambda item: seen.append(item)))()
        return seen

    usual = {*testing.SMALL_FLOATS, *testing.OTHERS}
    assert set(drawn(testing.dtypes())) == usual
    assert set(drawn(testing.dtypes(every=True))) == set(oracle.DTYPES)
    assert set(drawn(testing.dtypes(floats=True, every=True))) == set(oracle.FLOATS)
    assert {d for triple in drawn(testing.dtype_triples()) for d in triple} == usual
    triples = drawn(testing.dtype_triples(every=True))
    assert {d for triple in triples for d in triple} == set(oracle.DTYPES)
    assert all(oracle.converts(x, wire) and oracle.converts(wire, out) for x, wire, out in triples)
    assert set(drawn(testing.ops())) == {"sum", "avg"} and set(drawn(testing.ops(torch.int8))) == {"sum"}
    for dtype in (FP32, torch.int8, torch.bool, torch.complex64):
        assert set(drawn(testing.ops(dtype, every=True))) == set(oracle.ops(dtype))


@given(st.data())
def test_places_and_cuts(data):
    n, rows = data.draw(testing.world_sizes()), data.draw(st.integers(0, 9))
    assert 0 <= data.draw(testing.roots(n)) < n
    assert n % data.draw(testing.node_sizes(n)) == 0
    parts = data.draw(testing.splits(n, rows))
    assert len(parts) == n and min(parts) >= 0 and sum(parts) == rows
    sizes = data.draw(testing.sizes(n, 9))
    assert len(sizes) == n and min(sizes) >= 0 and max(sizes) <= 9
    inputs = data.draw(testing.inputs(n, (0, 2), torch.bool, sizes))
    assert [tuple(x.shape) for x in inputs] == [(size, 2) for size in sizes]


@given(testing.settings(), testing.schedules())
def test_settings_are_valid(settings, schedule):
    from tricoll.settings import settings_for

    assert settings_for(**settings).window < settings["slots"]
    assert set(schedule) == {"seed", "delivery"}


def test_without_hypothesis(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis.strategies", None)
    with pytest.raises(ImportError, match=r'pip install "tricoll\[test\]"'):
        testing.world_sizes()
    testing.check_all_reduce([torch.ones(1)], [torch.ones(1)])  # the checkers do not need it


@pytest.mark.parametrize("module", [testing, testing.memory], ids=lambda module: module.__name__)
def test_the_examples_in_docstrings(module):
    tried = doctest.testmod(module)
    assert tried.attempted > 2 and tried.failed == 0
