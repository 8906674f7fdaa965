"""Collectives that move: every element arrives where it belongs, cast as it should be."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ways import C64, E4M3, E5M2, FP32

from tricoll import oracle, testing


def test_moves_by_hand():
    inputs = [torch.tensor([10.0, 11.0, 12.0, 13.0, 14.0, 15.0]), torch.arange(6.0), -torch.arange(6.0)]
    assert oracle.broadcast(inputs, root=2).tolist() == [0, -1, -2, -3, -4, -5]
    assert [part.tolist() for part in oracle.scatter(inputs)] == [[10, 11], [12, 13], [14, 15]]
    assert [part.tolist() for part in oracle.scatter([None, inputs[1], None], root=1)] == [[0, 1], [2, 3], [4, 5]]
    assert [part.tolist() for part in oracle.all_to_all(inputs)] == [
        [10, 11, 0, 1, 0, -1],
        [12, 13, 2, 3, -2, -3],
        [14, 15, 4, 5, -4, -5],
    ]
    splits = [[0, 6, 0], [1, 2, 3], [3, 0, 3]]
    assert [part.tolist() for part in oracle.all_to_all(inputs, splits=splits)] == [
        [0, 0, -1, -2],
        [10, 11, 12, 13, 14, 15, 1, 2],
        [3, 4, 5, -3, -4, -5],
    ]
    uneven = [torch.zeros(2, 3), torch.ones(0, 3), torch.full((1, 3), 2.0)]
    assert oracle.all_gather(uneven).tolist() == oracle.gather(uneven).tolist() == [[0] * 3, [0] * 3, [2] * 3]
    assert oracle.all_gather([torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]


@given(st.data())
def test_moves_are_casts_of_single_elements(data):
    """Every element of every move, by an index of its own."""
    n = data.draw(testing.world_sizes(5))
    dtype, wire, out = data.draw(testing.dtype_triples(every=True))
    rows = data.draw(testing.sizes(n, 6))
    inputs = data.draw(testing.inputs(n, (0, 2), dtype, rows))
    moved = lambda rank, row: inputs[rank][row].to(wire).to(out)
    joined = [moved(rank, row) for rank in range(n) for row in range(rows[rank])]
    empty = torch.empty(0, 2, dtype=out)
    as_one = lambda found: torch.stack(found) if found else empty
    testing.assert_same_bits(oracle.all_gather(inputs, wire, out), as_one(joined))
    testing.assert_same_bits(oracle.gather(inputs, wire, out), as_one(joined))
    root = data.draw(testing.roots(n))
    from_root = [moved(root, row) for row in range(rows[root])]
    testing.assert_same_bits(oracle.broadcast(inputs, wire, out, root=root), as_one(from_root))
    splits = [data.draw(testing.splits(n, count)) for count in rows]
    for rank, result in enumerate(oracle.all_to_all(inputs, wire, out, splits=splits)):
        found = []
        for source in range(n):
            first = sum(splits[source][:rank])
            found += [moved(source, first + k) for k in range(splits[source][rank])]
        testing.assert_same_bits(result, as_one(found))
    equal = data.draw(testing.inputs(n, (3 * n, 2), dtype))
    sent = oracle.all_to_all(equal, wire, out)
    scattered = oracle.scatter(equal, wire, out, root=root)
    for rank in range(n):
        mine = slice(3 * rank, 3 * rank + 3)
        testing.assert_same_bits(scattered[rank], equal[root][mine].to(wire).to(out))
        testing.assert_same_bits(sent[rank], torch.cat([x[mine] for x in equal]).to(wire).to(out))


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_8_bit_floats_move_bit_for_bit(dtype):
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    for moved in (oracle.broadcast([every]), oracle.all_gather([every]), *oracle.all_to_all([every])):
        assert oracle.bits(moved).tolist() == list(range(256))


def test_results_are_not_views_of_inputs():
    for dtype in (FP32, torch.int32, torch.bool, C64):
        x = torch.ones(4, dtype=dtype)
        results = [oracle.reduce([x]), oracle.all_reduce([x]), oracle.broadcast([x]), oracle.all_gather([x])]
        for lists in (oracle.reduce_scatter([x]), oracle.scatter([x]), oracle.all_to_all([x])):
            results += lists
        for result in results:
            result.zero_()
        assert x.tolist() == [1] * 4
