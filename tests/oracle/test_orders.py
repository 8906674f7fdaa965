"""Who is added to whom, and what is rounded where: in words, and in figures that show it."""

import functools
import math

import numpy
import pytest
import torch
from ways import BF16, E4M3, E5M2, FP16, FP32, FP64, filled, ways

from tricoll import oracle, testing
from tricoll.oracle import order
from tricoll.topology import NOBODY, double_binary_tree


class Said:
    """In place of the oracle's steps: they say what they do."""

    def __init__(self, n, node_size=None):
        self.n, self.node_size = n, node_size

    def enter(self, share):
        return share

    def travel(self, x):
        return f"w{x}"

    def combine(self, a, b):
        return f"({a} {b})"


def ranks(n):
    return [str(rank) for rank in range(n)]


def test_the_order_of_a_ring():
    assert [order.total(Said(4), "ring", ranks(4), c) for c in range(4)] == [
        "(w(w(w1 2) 3) 0)",
        "(w(w(w2 3) 0) 1)",
        "(w(w(w3 0) 1) 2)",
        "(w(w(w0 1) 2) 3)",
    ]


def test_the_order_of_the_direct_family():
    for algorithm in ("two_shot", "one_shot", "multimem"):
        assert {order.total(Said(4), algorithm, ranks(4), c) for c in range(4)} == {"(((w0 w1) w2) w3)"}


def test_the_order_over_nodes():
    assert [order.total(Said(6, 2), "hierarchical", ranks(6), c) for c in range(6)] == [
        "(w(w(w2 w3) (w4 w5)) (w0 w1))",
        "(w(w(w2 w3) (w4 w5)) (w0 w1))",
        "(w(w(w4 w5) (w0 w1)) (w2 w3))",
        "(w(w(w4 w5) (w0 w1)) (w2 w3))",
        "(w(w(w0 w1) (w2 w3)) (w4 w5))",
        "(w(w(w0 w1) (w2 w3)) (w4 w5))",
    ]


def test_one_rank_alone_rounds_nothing_on_the_way():
    for algorithm in ("ring", "two_shot", "hierarchical", "multimem"):
        assert order.total(Said(1, 1), algorithm, ["0"], 0) == "0"
    assert order.tree(Said(1), ["0"]) == "0"


def test_the_order_of_trees():
    #   0            The second tree of an even number is the mirror image:
    #   4            5 is the root, 1 its child, whose children are 3 and 0; those of 3 are 4 and 2.
    #  2 5
    # 1 3
    assert order.tree(Said(6), ranks(6)) == "(0 w((4 w((2 w1) w3)) w5))"
    assert order.tree(Said(6), order.second_tree(ranks(6))) == "(5 w((1 w((3 w4) w2)) w0))"
    # An odd number: 0 over 4 over 2 over 1 and 3; then the same, one rank further.
    assert order.tree(Said(5), ranks(5)) == "(0 w(4 w((2 w1) w3)))"
    assert order.tree(Said(5), order.second_tree(ranks(5))) == "(1 w(0 w((3 w2) w4)))"


def test_trees_are_those_of_the_topology():
    for n in range(2, 70):
        for t in (0, 1):
            nodes = [double_binary_tree(rank, n)[t] for rank in range(n)]

            def up(rank, nodes=nodes):
                below = [child for child in (nodes[rank].first, nodes[rank].second) if child != NOBODY]
                return functools.reduce(lambda a, child: f"({a} w{up(child)})", below, str(rank))

            (root,) = [rank for rank, node in enumerate(nodes) if node.parent == NOBODY]
            assert order.tree(Said(n), order.second_tree(ranks(n)) if t else ranks(n)) == up(root)


# In figures.


def test_ring_order_by_hand():
    """1e8, 1, -1e8, 1: the result shows the order in which a chunk was added."""
    inputs = [torch.full((64,), v) for v in (1e8, 1.0, -1e8, 1.0)]
    # Chunk c starts at rank c + 1. FP32 has no 1e8 + 1: a 1 is lost whenever it is added to 1e8.
    orders = [(1.0, -1e8, 1.0, 1e8), (-1e8, 1.0, 1e8, 1.0), (1.0, 1e8, 1.0, -1e8), (1e8, 1.0, -1e8, 1.0)]
    by_hand = []
    for terms in orders:
        total = numpy.float32(0)
        for v in terms:
            total = numpy.float32(total + numpy.float32(v))
        by_hand.append(float(total))
    assert by_hand == [0.0, 1.0, 0.0, 1.0]
    assert oracle.all_reduce(inputs).tolist() == [v for v in by_hand for _ in range(16)]
    assert [t.tolist() for t in oracle.reduce_scatter(inputs)] == [[v] * 16 for v in by_hand]


# Four ranks; one has B = 2**24, the others 1. In FP32, B + 1 is B (a tie), B + 2 is itself, B + 3 is B + 4 (a tie). By
# the rank that has B, what the elements of the four chunks have more than B.
MORE = {
    "ring": [[4, 4, 0, 0], [0, 4, 4, 0], [0, 0, 4, 4], [4, 0, 0, 4]],
    "two_shot": [[0] * 4, [0] * 4, [4] * 4, [4] * 4],
    "one_shot": [[0] * 4, [0] * 4, [4] * 4, [4] * 4],
    "multimem": [[0] * 4, [0] * 4, [4] * 4, [4] * 4],
    "tree": [[4] * 4, [0] * 4, [0] * 4, [4] * 4],
    "hierarchical": [[2] * 4] * 4,  # two nodes of two: B and 2
}


@pytest.mark.parametrize("algorithm", MORE)
@pytest.mark.parametrize("who", range(4))
def test_what_is_lost_to_a_large_number(who, algorithm):
    B = 2.0**24
    inputs = filled([B if rank == who else 1.0 for rank in range(4)], 64)
    kwargs = {"algorithm": algorithm} | ({"node_size": 2} if algorithm == "hierarchical" else {})
    expected = [B + more for more in MORE[algorithm][who]]
    assert oracle.all_reduce(inputs, **kwargs).view(4, 16).tolist() == [[v] * 16 for v in expected]
    if algorithm in oracle.ALGORITHMS["reduce_scatter"]:
        assert [part.unique().item() for part in oracle.reduce_scatter(inputs, **kwargs)] == expected
        # Chunks are the ranks' parts, whatever their sizes.
        sizes = [0, 60, 3, 1]
        parts = oracle.reduce_scatter(inputs, **kwargs, sizes=sizes)
        assert [part.tolist() for part in parts] == [[v] * size for v, size in zip(expected, sizes)]
    for root in range(4) if algorithm in oracle.ALGORITHMS["reduce"] else ():
        # In a ring to a root the root comes last; in a tree the ranks are counted from it.
        more = {"tree": MORE["tree"][(who - root) % 4][0]}.get(algorithm, MORE[algorithm][who][root])
        assert oracle.reduce(inputs, **kwargs, root=root).tolist() == [B + more] * 64


def test_every_hop_rounds_to_the_wire():
    """256 + 1 is 256 in BF16: what is lost depends on where the 256 comes in."""
    inputs = [torch.full((16 * 8,), 256.0 if rank == 0 else 1.0) for rank in range(8)]
    result = oracle.all_reduce(inputs, wire=BF16)
    for c in range(8):
        chunk = result[16 * c : 16 * c + 16]
        before = (-(c + 1)) % 8  # ones that are added before the 256
        after = 7 - before
        expected = torch.tensor(256.0 + before, dtype=FP32).to(BF16)
        for _ in range(after):
            expected = (expected.float() + 1).to(BF16)
        assert chunk.tolist() == [expected.item()] * 16
    assert oracle.all_reduce(inputs, wire=FP32, out_dtype=BF16).unique().tolist() == [264.0]


def test_what_travels_between_nodes_is_rounded():
    """Four ranks on two nodes, 256 on rank 0, else 1. BF16 has 256, 258, 260: 257 is 256 and 259 is 260 (ties)."""
    inputs = filled([256.0, 1.0, 1.0, 1.0], 64)
    kwargs = {"wire": BF16, "algorithm": "hierarchical", "node_size": 2}
    # Chunks 0 and 1: node 1 has 2, which travels, and 2 + 257 is 259. Chunks 2 and 3: 257 travels as 256, 258.
    assert oracle.all_reduce(inputs, **kwargs).view(4, 16)[:, 0].tolist() == [260.0, 260.0, 258.0, 258.0]
    assert [part[0].item() for part in oracle.reduce_scatter(inputs, **kwargs)] == [259.0, 259.0, 258.0, 258.0]
    inputs = filled([1.0, 1.0, 256.0, 1.0], 64)
    assert oracle.all_reduce(inputs, **kwargs).view(4, 16)[:, 0].tolist() == [258.0, 258.0, 260.0, 260.0]
    # One node: nothing is rounded between shares and total. Nodes of one rank: a ring.
    kwargs["node_size"] = 4
    assert oracle.all_reduce(inputs, **kwargs).unique().tolist() == [260.0]
    kwargs["node_size"] = 1
    testing.assert_same_bits(oracle.all_reduce(inputs, **kwargs), oracle.all_reduce(inputs, wire=BF16))


def test_what_goes_up_a_tree_is_rounded():
    """Three ranks with 256, 1, 1: 0 + (2 + 1) in the first half, 1 + (0 + 2) in the second, where 257 goes up."""
    result = oracle.all_reduce(filled([256.0, 1.0, 1.0], 32), wire=BF16, algorithm="tree")
    assert result.tolist() == [258.0] * 16 + [256.0] * 16


def test_the_switch_rounds_a_sum_before_it_is_divided():
    """256 + 1 + 2 = 259, in BF16 260; a third of that in FP32. Elsewhere 259 / 3 = 86.33 is rounded, to 86.5."""
    inputs = filled([256.0, 1.0, 2.0], 3)
    third = float(numpy.float32(260) / numpy.float32(3))
    assert oracle.all_reduce(inputs, "avg", BF16, algorithm="multimem").tolist() == [third] * 3
    assert oracle.all_reduce(inputs, "avg", BF16, algorithm="two_shot").tolist() == [86.5] * 3


def test_the_direct_family_rounds_every_share():
    """1 + 2**-8 is half way between two BF16 and goes to 1; in the ring, a chunk's owner still has all of it."""
    inputs = filled([1.0, 1 + 2.0**-8], 2)
    for way in ways(2, "reduce_scatter"):
        parts = oracle.reduce_scatter(inputs, wire=BF16, **way)
        assert [p.item() for p in parts] == ([2.0, 2 + 2.0**-8] if way["algorithm"] == "ring" else [2.0, 2.0])


def test_the_owner_rounds_what_it_keeps_except_where_nobody_else_has_it():
    x = [torch.tensor([1 + 2.0**-12, 1 + 2.0**-12])]
    for way in ways(1):
        assert oracle.all_reduce(x, wire=BF16, **way).tolist() == [1.0, 1.0]
    for way in ways(1, "reduce"):
        assert oracle.reduce(x, wire=BF16, **way).tolist() == [1.0, 1.0]
    for moved in (oracle.all_gather(x, BF16), oracle.broadcast(x, BF16), oracle.scatter(x, BF16)[0]):
        assert moved.tolist() == [1.0, 1.0]
    assert oracle.all_to_all(x, BF16)[0].tolist() == oracle.gather(x, BF16).tolist() == [1.0, 1.0]
    for way in ways(1, "reduce_scatter"):
        assert oracle.reduce_scatter(x, wire=BF16, **way)[0].tolist() == x[0].tolist()


def test_an_average_divides_before_it_rounds():
    inputs = [torch.tensor([61440.0], dtype=FP16), torch.tensor([49152.0], dtype=FP16)]
    assert oracle.reduce_scatter([x.repeat(2) for x in inputs], "avg")[0].item() == 55296.0
    assert oracle.all_reduce([torch.tensor([float(r == 0)]) for r in range(3)], "avg").item() == numpy.float32(1 / 3)
    # On a ring, a partial sum of an average can be too large for the wire.
    inputs = filled([40000.0] * 4, 64, FP16)
    assert oracle.all_reduce(inputs, "avg").unique().tolist() == [math.inf]
    assert oracle.all_reduce(inputs, "avg", FP32).unique().tolist() == [40000.0]
    assert oracle.all_reduce(inputs, "avg", algorithm="two_shot").unique().tolist() == [40000.0]
    assert oracle.all_reduce(inputs, "avg", algorithm="multimem").unique().tolist() == [math.inf]


def test_partial_sums_in_8_bits():
    """Four times 192 is 768. float8_e5m2 has 384, 512, 640 and 768; float8_e4m3fn has 384 and ends at 448."""
    for dtype, right in ((E4M3, 448.0), (E5M2, 768.0)):
        inputs = filled([192.0] * 4, 64, dtype)
        for way in ways(4, wire=dtype):
            assert oracle.all_reduce(inputs, **way).float().unique().tolist() == [right], way
        assert oracle.all_reduce(inputs, "sum", FP32, FP32).unique().tolist() == [768.0]
    # A ring to an average: 192, 384, 576; which travels as 448, or as 512 (a tie); and 192 more.
    for dtype, partial in ((E4M3, 448.0), (E5M2, 512.0)):
        parts = oracle.reduce_scatter(filled([192.0] * 4, 4, dtype), "avg", None, FP32)
        assert [part.item() for part in parts] == [(partial + 192.0) / 4] * 4


def test_a_division_is_correctly_rounded():
    """x / 3 is not x * (1 / 3): for 5, FP32 has 1.6666666, the product is 1.6666667."""
    assert numpy.float32(5) * numpy.float32(1 / 3) != numpy.float32(5) / numpy.float32(3)
    for way in ways(3, op="avg"):
        assert oracle.all_reduce(filled([2.0, 2.0, 1.0], 1), "avg", **way).item() == numpy.float32(5) / numpy.float32(3)


def test_shares_are_multiplied_once_and_first():
    """0.1 in FP32 is 13421773 / 2**27. Times 3, rounded: 0.30000001192..., which is 10066330 / 2**25."""
    scaled = 10066330 / 2.0**25
    assert oracle.all_reduce(filled([3.0], 1), "premul_sum", scale=0.1).item() == scaled
    for way in ways(2, op="premul_sum"):
        # 3 and -1, times 0.1: (40265320 - 13421773) / 2**27 = 13421773.5 / 2**26, a tie.
        right = 13421774 / 2.0**26
        assert oracle.all_reduce(filled([3.0, -1.0], 40), "premul_sum", scale=0.1, **way).unique().tolist() == [right]
    # Not rounded to the type of the inputs before it is added: 0.1 + 0.1 in FP32, then BF16.
    result = oracle.all_reduce(filled([1.0, 1.0], 1, BF16), "premul_sum", FP32, scale=0.1)
    assert result.item() == 0.2001953125 and result.dtype == BF16
    # A scale beyond FP32 is infinite there, and 64 bits stay 64 bits.
    assert oracle.all_reduce(filled([1.0], 1), "premul_sum", scale=1e39).item() == math.inf
    assert oracle.all_reduce(filled([3.0], 1, FP64), "premul_sum", scale=0.1).item() == 3 * 0.1
