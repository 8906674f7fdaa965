"""The oracle: judged by figures that were worked out by hand, and by arithmetic done another way."""

import fractions
import functools
import itertools
import math

import numpy
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tricoll import oracle, testing
from tricoll.topology import NOBODY, double_binary_tree

FP64, FP32, BF16, FP16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
C64 = torch.complex64


def ways(n, collective="all_reduce", op="sum", wire=FP32):
    """Every algorithm that can serve a call, with every node size."""
    for algorithm in oracle.ALGORITHMS[collective]:
        if algorithm == "hierarchical":
            yield from ({"algorithm": algorithm, "node_size": size} for size in range(1, n + 1) if n % size == 0)
        elif algorithm != "multimem" or (op in ("sum", "avg") and wire in oracle.MULTIMEM_WIRES):
            yield {"algorithm": algorithm}


def filled(values, numel, dtype=FP32):
    return [torch.full((numel,), v, dtype=dtype) for v in values]


# Casts.


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


# The order, in words.


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
    assert [oracle._total(Said(4), "ring", ranks(4), c) for c in range(4)] == [
        "(w(w(w1 2) 3) 0)",
        "(w(w(w2 3) 0) 1)",
        "(w(w(w3 0) 1) 2)",
        "(w(w(w0 1) 2) 3)",
    ]


def test_the_order_of_the_direct_family():
    for algorithm in ("two_shot", "one_shot", "multimem"):
        assert {oracle._total(Said(4), algorithm, ranks(4), c) for c in range(4)} == {"(((w0 w1) w2) w3)"}


def test_the_order_over_nodes():
    assert [oracle._total(Said(6, 2), "hierarchical", ranks(6), c) for c in range(6)] == [
        "(w(w(w2 w3) (w4 w5)) (w0 w1))",
        "(w(w(w2 w3) (w4 w5)) (w0 w1))",
        "(w(w(w4 w5) (w0 w1)) (w2 w3))",
        "(w(w(w4 w5) (w0 w1)) (w2 w3))",
        "(w(w(w0 w1) (w2 w3)) (w4 w5))",
        "(w(w(w0 w1) (w2 w3)) (w4 w5))",
    ]


def test_one_rank_alone_rounds_nothing_on_the_way():
    for algorithm in ("ring", "two_shot", "hierarchical", "multimem"):
        assert oracle._total(Said(1, 1), algorithm, ["0"], 0) == "0"
    assert oracle._tree(Said(1), ["0"]) == "0"


def test_the_order_of_trees():
    #   0            The second tree of an even number is the mirror image:
    #   4            5 is the root, 1 its child, whose children are 3 and 0; those of 3 are 4 and 2.
    #  2 5
    # 1 3
    assert oracle._tree(Said(6), ranks(6)) == "(0 w((4 w((2 w1) w3)) w5))"
    assert oracle._tree(Said(6), oracle._second_tree(ranks(6))) == "(5 w((1 w((3 w4) w2)) w0))"
    # An odd number: 0 over 4 over 2 over 1 and 3; then the same, one rank further.
    assert oracle._tree(Said(5), ranks(5)) == "(0 w(4 w((2 w1) w3)))"
    assert oracle._tree(Said(5), oracle._second_tree(ranks(5))) == "(1 w(0 w((3 w2) w4)))"


def test_trees_are_those_of_the_topology():
    for n in range(2, 70):
        for t in (0, 1):
            nodes = [double_binary_tree(rank, n)[t] for rank in range(n)]

            def up(rank, nodes=nodes):
                below = [child for child in (nodes[rank].first, nodes[rank].second) if child != NOBODY]
                return functools.reduce(lambda a, child: f"({a} w{up(child)})", below, str(rank))

            (root,) = [rank for rank, node in enumerate(nodes) if node.parent == NOBODY]
            assert oracle._tree(Said(n), oracle._second_tree(ranks(n)) if t else ranks(n)) == up(root)


# The order and the roundings, in figures.


def test_ring_order_by_hand():
    """1e8, 1, -1e8, 1: the result shows the order in which a chunk was added."""
    inputs = [torch.full((64,), v) for v in (1e8, 1.0, -1e8, 1.0)]
    # Chunk c starts at rank c + 1. FP32 has no 1e8 + 1: a 1 is lost whenever it is added to 1e8.
    orders = [(1.0, -1e8, 1.0, 1e8), (-1e8, 1.0, 1e8, 1.0), (1.0, 1e8, 1.0, -1e8), (1e8, 1.0, -1e8, 1.0)]
    by_hand = []
    for order in orders:
        total = numpy.float32(0)
        for v in order:
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


# Cases from public bug reports.


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16, FP64, E4M3, E5M2], ids=str)
def test_nan_wherever_it_comes_from(dtype):
    """1, NaN, 3, 4 in all 24 orders."""
    for order in itertools.permutations([1.0, math.nan, 3.0, 4.0]):
        inputs = filled(order, 48, dtype)
        for op in ("min", "max", "sum", "avg", "prod"):
            for way in ways(4, op=op, wire=dtype):
                assert oracle.all_reduce(inputs, op, **way).isnan().all(), (order, op, way)
            for way in ways(4, "reduce_scatter", op, dtype):
                assert all(part.isnan().all() for part in oracle.reduce_scatter(inputs, op, **way))
            for way in ways(4, "reduce", op, dtype):
                assert all(oracle.reduce(inputs, op, **way, root=root).isnan().all() for root in range(4))


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16, FP64, E5M2], ids=str)
def test_infinities(dtype):
    for order in set(itertools.permutations([math.inf, -math.inf, 1.0, 1.0])):
        inputs = filled(order, 48, dtype)
        for op, right in (("sum", math.nan), ("prod", -math.inf), ("min", -math.inf), ("max", math.inf)):
            for way in ways(4, op=op, wire=dtype):
                result = oracle.all_reduce(inputs, op, **way)
                testing.assert_same_bits(result, torch.full((48,), right, dtype=dtype), f"{op} {way}")


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16, FP64, E4M3, E5M2], ids=str)
def test_zeros_of_both_signs(dtype):
    """Whatever the order, the least of -0.0 and 0.0 is -0.0 and the greatest 0.0."""
    for order in set(itertools.permutations([0.0, -0.0, 0.0])):
        for op, right in (("min", -0.0), ("max", 0.0), ("sum", 0.0)):
            for way in ways(3, op=op, wire=dtype):
                result = oracle.all_reduce(filled(order, 48, dtype), op, **way)
                testing.assert_same_bits(result, torch.full((48,), right, dtype=dtype), f"{op} {way}")
    for way in ways(3, wire=dtype):
        result = oracle.all_reduce(filled([-0.0] * 3, 48, dtype), **way)
        testing.assert_same_bits(result, torch.full((48,), -0.0, dtype=dtype))


def test_partial_sums_in_bf16():
    """256 on rank 0 and 1 on seven others: 263, in BF16 264. A ring with BF16 on the wire gives 256, 260 or 264."""
    for dtype in (FP32, BF16):
        inputs = filled([256.0] + [1.0] * 7, 4096, dtype)
        for way in ways(8, wire=BF16):
            result = oracle.all_reduce(inputs, wire=BF16, out_dtype=BF16, **way).unique().tolist()
            if way["algorithm"] in ("two_shot", "one_shot", "multimem") or way.get("node_size") == 8:
                assert result == [264.0], way
            if way["algorithm"] == "ring":
                assert result == [256.0, 260.0, 264.0]
            if way["algorithm"] != "multimem":
                assert oracle.all_reduce(inputs, wire=FP32, out_dtype=BF16, **way).unique().tolist() == [264.0], way


def test_a_gradient_beyond_fp16():
    inputs = filled([0.0, 1e5, 0.0], 48)
    for way in ways(3):
        assert oracle.all_reduce(inputs, wire=BF16, **way).unique().tolist() == [99840.0]
        assert oracle.all_reduce(inputs, wire=FP16, **way).unique().tolist() == [math.inf]


@pytest.mark.parametrize("n", [2, 3])
def test_truth_values(n):
    columns = torch.tensor(list(itertools.product([False, True], repeat=n)))
    inputs = list(columns.T)
    right = {"sum": columns.any(1), "max": columns.any(1), "or": columns.any(1)}
    right |= {"prod": columns.all(1), "min": columns.all(1), "and": columns.all(1), "xor": columns.sum(1) % 2 == 1}
    assert set(right) == set(oracle.ops(torch.bool))
    for op, expected in right.items():
        for way in ways(n, op=op, wire=torch.bool):
            result = oracle.all_reduce(inputs, op, **way)
            testing.assert_same_bits(result, expected, f"{op} {way}")
            assert set(result.view(torch.uint8).tolist()) <= {0, 1}
        for way in ways(n, "reduce", op, torch.bool):
            testing.assert_same_bits(oracle.reduce(inputs, op, root=1, **way), expected)
        parts = oracle.reduce_scatter([x.repeat(n) for x in inputs], op)
        assert all(oracle.same_bits(part, expected) for part in parts)


def test_integers_wrap_and_fp64_stays():
    assert oracle.all_reduce([torch.tensor([200, 1], dtype=torch.uint8)] * 2).tolist() == [144, 2]
    assert oracle.all_reduce([torch.tensor([v], dtype=torch.uint8) for v in (200, 100)]).item() == 44
    assert oracle.all_reduce([torch.tensor([v], dtype=torch.int8) for v in (120, 100)]).item() == -36
    assert oracle.all_reduce([torch.tensor([16], dtype=torch.int8)] * 2, "prod").item() == 0
    assert oracle.all_reduce([torch.tensor([2**60 + 1])] * 2).tolist() == [2**61 + 2]
    third = torch.tensor([1 / 3], dtype=torch.float64)
    assert oracle.all_reduce([third] * 2).item() == 2 / 3


@given(st.data())
def test_integers_are_exact(data):
    """Against Python's integers, for every op, algorithm and place."""
    n = data.draw(testing.world_sizes(6))
    dtype = data.draw(st.sampled_from(oracle.INTEGERS))
    op = data.draw(testing.ops(dtype, every=True))
    inputs = data.draw(testing.inputs(n, (n * data.draw(st.integers(0, 20)),), dtype))
    combine = {"sum": int.__add__, "prod": int.__mul__, "and": int.__and__, "or": int.__or__, "xor": int.__xor__}
    combine |= {"min": min, "max": max}
    exact = [functools.reduce(combine[op], column) for column in zip(*(x.tolist() for x in inputs))]
    bits, low = 8 * dtype.itemsize, torch.iinfo(dtype).min
    wrapped = torch.tensor([(v - low) % 2**bits + low for v in exact], dtype=dtype)
    for way in ways(n, op=op, wire=dtype):
        testing.assert_same_bits(oracle.all_reduce(inputs, op, **way), wrapped)
    for way in ways(n, "reduce_scatter", op, dtype):
        testing.assert_same_bits(torch.cat(oracle.reduce_scatter(inputs, op, **way)), wrapped)
    for way in ways(n, "reduce", op, dtype):
        testing.assert_same_bits(oracle.reduce(inputs, op, root=data.draw(testing.roots(n)), **way), wrapped)


def test_complex_numbers():
    """1+2j and 3+4j: 4+6j; conjugated, negated and strided views as what they stand for."""
    z = [torch.tensor([v], dtype=C64) for v in (1 + 2j, 3 + 4j)]
    for dtype in oracle.COMPLEX:
        for way in ways(2, wire=dtype):
            assert oracle.all_reduce([x.to(dtype) for x in z], **way).tolist() == [4 + 6j]
            assert oracle.all_reduce([x.to(dtype).conj() for x in z], "avg", **way).tolist() == [2 - 3j]
    assert oracle.all_reduce([x.imag for x in z]).tolist() == [6.0]
    assert oracle.all_reduce([x.conj().imag for x in z]).tolist() == [-6.0]
    assert oracle.all_gather([x.conj() for x in z]).tolist() == [1 - 2j, 3 - 4j]
    assert oracle.broadcast([torch._neg_view(x) for x in z], root=1).tolist() == [-3 - 4j]


def test_complex_numbers_are_pairs_of_reals():
    """A chunk's 16 elements are 8 complex numbers, so what one rank's 2**24 swallows is as with reals."""
    reals = filled([2.0**24, 1.0, 1.0, 1.0], 64)
    for way in ways(4, wire=C64):
        expected = oracle.all_reduce(reals, **way)
        result = oracle.all_reduce([torch.view_as_complex(x.view(32, 2)) for x in reals], **way)
        assert result.dtype == C64 and torch.view_as_real(result).view(-1).tolist() == expected.tolist()
    parts = oracle.reduce_scatter([torch.view_as_complex(x.view(8, 4, 2)) for x in reals])
    expected = oracle.reduce_scatter(reals)
    assert [torch.view_as_real(part).view(-1).tolist() for part in parts] == [p.tolist() for p in expected]
    assert parts[0].shape == (2, 4)


# Exact whatever the order.


@given(st.data())
def test_exact_inputs_give_the_exact_value(data):
    n = data.draw(testing.world_sizes())
    dtype, wire, out = data.draw(testing.dtype_triples(every=True).filter(lambda t: t[0] in oracle.FLOATS))
    narrowest = min((dtype, wire, out), key=lambda d: (d.itemsize, -torch.finfo(d).eps))
    op, seed = data.draw(testing.ops(dtype, every=True)), data.draw(st.integers(0, 2**32 - 1))
    if op == "avg":  # of multiples of n, which have to be exact, too
        assume(n in (1, 2, 4, 8) and narrowest.itemsize > 1)
    inputs = testing.make_inputs(n, (n * data.draw(st.integers(0, 20)),), narrowest, "small", seed)
    kwargs = {}
    if op == "premul_sum":
        kwargs["scale"] = data.draw(st.sampled_from((0.5, -1.0, 0.0, 1.0)))
    if op == "prod":  # only signs: the product of other small integers may be too long for the type
        inputs = [torch.where(x.float() > 0, 1.0, -1.0).to(narrowest) for x in inputs]
    stack = torch.stack([x.double() for x in inputs])
    exact = {"min": stack.amin(0), "max": stack.amax(0), "prod": stack.prod(0)}.get(op, stack.sum(0))
    exact = exact * kwargs.get("scale", 1.0)
    inputs = [(x.double() * n if op == "avg" else x).to(dtype) for x in inputs]
    for way in ways(n, op=op, wire=wire):
        result = oracle.all_reduce(inputs, op, wire, out, **way, **kwargs)
        assert result.dtype == out and result.double().tolist() == exact.tolist(), way
    for way in ways(n, "reduce_scatter", op, wire):
        parts = oracle.reduce_scatter(inputs, op, wire, out, **way, **kwargs)
        assert torch.cat(parts).double().tolist() == exact.tolist(), way
    for way in ways(n, "reduce", op, wire):
        result = oracle.reduce(inputs, op, wire, out, root=n - 1, **way, **kwargs)
        assert result.double().tolist() == exact.tolist(), way


@given(st.data())
def test_the_least_and_the_greatest_do_not_depend_on_the_order(data):
    """All-reduces of all algorithms and orders of the ranks agree, to the bit: rounding is monotone."""
    n = data.draw(testing.world_sizes(6))
    dtype, wire, out = data.draw(testing.dtype_triples(every=True).filter(lambda t: oracle.has("min", t[0])))
    op = data.draw(st.sampled_from(("min", "max")))
    inputs = data.draw(testing.inputs(n, (40,), dtype))
    expected = oracle.all_reduce(inputs, op, wire, out)
    others = data.draw(st.permutations(inputs))
    for way in ways(n, op=op, wire=wire):
        testing.assert_same_bits(oracle.all_reduce(others, op, wire, out, **way), expected, str(way))


@given(st.data())
def test_direct_bits_depend_on_the_values_only(data):
    """Not on an element's place, on the size of the message, on who owns it, or on the collective."""
    n = data.draw(testing.world_sizes())
    dtype, wire, out = data.draw(testing.dtype_triples(every=True))
    op = data.draw(testing.ops(dtype, every=True))
    kwargs = {"scale": data.draw(testing.scales())} if op == "premul_sum" else {}
    inputs = data.draw(testing.inputs(n, (60,), dtype))
    kwargs |= {"algorithm": data.draw(st.sampled_from(("two_shot", "one_shot")))}
    expected = oracle.all_reduce(inputs, op, wire, out, **kwargs)
    order = torch.tensor(data.draw(st.permutations(range(60))))[: data.draw(st.integers(0, 60))]
    testing.assert_same_bits(oracle.all_reduce([x[order] for x in inputs], op, wire, out, **kwargs), expected[order])
    testing.assert_same_bits(oracle.reduce(inputs, op, wire, out, **kwargs, root=data.draw(testing.roots(n))), expected)
    parts = oracle.reduce_scatter(inputs, op, wire, None, **kwargs, sizes=data.draw(testing.splits(n, 60)))
    if n > 1 and dtype == out == wire:
        testing.assert_same_bits(torch.cat(parts), expected)


@given(st.data())
def test_a_ring_to_a_root_is_its_chunk_of_a_reduce_scatter(data):
    n = data.draw(testing.world_sizes())
    dtype, wire, _ = data.draw(testing.dtype_triples(every=True))
    op = data.draw(testing.ops(dtype, every=True))
    kwargs = {"scale": data.draw(testing.scales())} if op == "premul_sum" else {}
    inputs, root = data.draw(testing.inputs(n, (24,), dtype)), data.draw(testing.roots(n))
    sizes = [24 if rank == root else 0 for rank in range(n)]
    part = oracle.reduce_scatter(inputs, op, wire, wire, **kwargs, sizes=sizes)[root]
    testing.assert_same_bits(oracle.reduce(inputs, op, wire, wire, root=root, **kwargs), part)
    # And it is the same ring with the ranks counted from elsewhere.
    turned = inputs[root:] + inputs[:root]
    for algorithm in ("ring", "tree"):
        testing.assert_same_bits(
            oracle.reduce(inputs, op, wire, algorithm=algorithm, root=root, **kwargs),
            oracle.reduce(turned, op, wire, algorithm=algorithm, **kwargs),
        )


@pytest.mark.parametrize("numel", [0, 1, 15, 16, 17, 100, 1000])
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_chunks_cover_everything_once(n, numel):
    chunk = oracle.chunk_size(numel, n)
    assert chunk % 16 == 0 and n * chunk >= numel and n * (chunk - 16) < max(numel, 1)
    x = torch.arange(numel)
    for way in ways(n, wire=torch.int64):
        testing.assert_same_bits(oracle.all_reduce([x] + [torch.zeros_like(x)] * (n - 1), **way), x)


# Moves.


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


# The bound.


def exactly(column, op, scale):
    """The reduction of finite numbers, without any rounding; the scale as FP32 has it."""
    numbers = [fractions.Fraction(v) for v in column]
    if op == "prod":
        return math.prod(numbers, start=fractions.Fraction(1))
    if op in ("min", "max"):
        return min(numbers) if op == "min" else max(numbers)
    total = sum(numbers) * (fractions.Fraction(scale) if op == "premul_sum" else 1)
    return total / len(numbers) if op == "avg" else total


@given(st.data())
def test_the_oracle_lies_within_its_own_bound(data):
    """Exact sums and products of fractions, the oracle's bits, and the bound, against each other."""
    n = data.draw(testing.world_sizes())
    dtype, wire, out = data.draw(testing.dtype_triples(every=True).filter(lambda t: t[0] in oracle.FLOATS))
    op = data.draw(testing.ops(dtype, every=True))
    kwargs = {"scale": data.draw(testing.scales())} if op == "premul_sum" else {}
    inputs = data.draw(testing.inputs(n, (n * data.draw(st.integers(0, 8)),), dtype))
    for way in ways(n, op=op, wire=wire):
        outputs = [oracle.all_reduce(inputs, op, wire, out, **way, **kwargs)] * n
        testing.check_all_reduce(outputs, inputs, op, wire, algorithm=None, **kwargs)
    for way in ways(n, "reduce_scatter", op, wire):
        outputs = oracle.reduce_scatter(inputs, op, wire, out, **way, **kwargs)
        testing.check_reduce_scatter(outputs, inputs, op, wire, algorithm=None, **kwargs)
    for way in ways(n, "reduce", op, wire):
        outputs = [oracle.reduce(inputs, op, wire, out, **way, **kwargs), *inputs[1:]]
        testing.check_reduce(outputs, inputs, op, wire, algorithm=None, **kwargs)
    value, error = oracle.bound(inputs, op, wire, out, **kwargs)
    scale = float(torch.tensor(kwargs.get("scale", 1.0), dtype=oracle.accumulator(dtype)))
    for column, v, e in zip(zip(*(x.double().tolist() for x in inputs)), value.tolist(), error.tolist()):
        if all(abs(x) < math.inf for x in column) and e < math.inf:
            assert abs(exactly(column, op, scale) - fractions.Fraction(v)) <= fractions.Fraction(e)


def test_the_bound_is_tight_enough_to_be_of_use():
    inputs = testing.make_inputs(8, (1000,), FP32, "random")
    size = torch.stack(inputs).double().abs().sum(0)
    for wire, most in ((FP32, 2e-6), (BF16, 0.04)):
        for op, scale, factor in (("sum", None, 1), ("avg", None, 1 / 8), ("premul_sum", -0.25, 0.25)):
            _, error = oracle.bound(inputs, op, wire, scale=scale)
            assert bool((error <= factor * most * size + 1e-35).all())
    for op in ("min", "max"):
        value, error = oracle.bound(inputs, op, FP32)
        assert not error.any() and value.isfinite().all()
        assert bool((oracle.bound(inputs, op, BF16)[1] <= value.abs() * 2.0**-8).all())
    value, error = oracle.bound([1 + x.abs() % 1 for x in inputs], "prod", BF16)
    assert bool((error <= 0.04 * value).all())
    value, error = oracle.bound(filled([0.5, 0.0, 1e30, 1e-30], 1), "prod")
    assert value.item() == error.item() == 0.0


def test_the_bound_is_needed():
    """Every hop of a ring loses nearly a whole unit roundoff; every share of the direct family half a subnormal."""
    u = 2.0**-8
    # In the chunk of rank 0: 1 + u goes as 1, 1 + 1 + 2u as 2, and the total 2 + 2 + 4u as 4.
    inputs = filled([(2 + 4 * u) * (1 - 2.0**-20), (1 + u) * (1 - 2.0**-20), (1 + 2 * u) * (1 - 2.0**-20)], 1)
    result = oracle.all_reduce(inputs, wire=BF16)
    assert result.item() == 4.0
    value, error = oracle.bound(inputs, wire=BF16)
    assert 1.7 * u * value < value - 4.0 <= error
    least = 2.0**-24  # of FP16
    inputs = filled([0.49 * least] * 8, 1)
    assert oracle.all_reduce(inputs, wire=FP16, algorithm="two_shot").item() == 0.0
    value, error = oracle.bound(inputs, wire=FP16)
    assert 3.9 * least < value <= error < 10 * least


@pytest.mark.parametrize("op, wrong", [("prod", 1.07), ("min", 1.004), ("max", 1.004), ("premul_sum", 1.07)])
def test_the_bound_refuses(op, wrong):
    inputs = [x.abs() + 0.5 for x in testing.make_inputs(8, (100,), FP32, "small", 3)]
    kwargs = {"scale": 0.1} if op == "premul_sum" else {}
    good = oracle.all_reduce(inputs, op, BF16, **kwargs)
    testing.check_all_reduce([good] * 8, inputs, op, BF16, algorithm=None, **kwargs)
    with pytest.raises(AssertionError, match="more than"):
        testing.check_all_reduce([good * wrong] * 8, inputs, op, BF16, algorithm=None, **kwargs)


def test_the_bound_of_complex_numbers():
    inputs = testing.make_inputs(3, (20,), C64)
    outputs = [oracle.all_reduce(inputs, "avg")] * 3
    testing.check_all_reduce(outputs, inputs, "avg", algorithm=None)
    value, error = oracle.bound(inputs, "avg")
    assert value.shape == error.shape == (20, 2)


# What is compared, and what is refused.


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


def test_what_types_have():
    assert all(oracle.has("sum", dtype) for dtype in oracle.DTYPES) and len(oracle.DTYPES) == 14
    assert not oracle.ops(torch.int4) and not oracle.has("sum", torch.uint16)
    refused = [("and", FP32), ("avg", torch.int32), ("avg", torch.bool), ("premul_sum", torch.int8), ("max", C64)]
    refused += [("prod", C64), ("xor", E4M3), ("sum", torch.float8_e4m3fnuz)]
    for op, dtype in refused:
        assert not oracle.has(op, dtype)
        x = [torch.zeros(2, dtype=dtype)] * 2
        kwargs = {"scale": 2.0} if op == "premul_sum" else {}
        for collective in (oracle.all_reduce, oracle.reduce_scatter, oracle.reduce):
            with pytest.raises(TypeError, match=f"has no '{op}'|cannot be sent"):
                collective(x, op, **kwargs)


@pytest.mark.parametrize(
    "dtypes",
    [(FP64, FP32, FP64), (FP32, FP64, FP32), (FP32, FP32, FP64), (torch.int32, FP32, torch.int32)]
    + [(torch.int32, torch.int64, torch.int64), (C64, C64, torch.complex128), (torch.bool, torch.uint8, torch.bool)],
)
def test_what_does_not_convert(dtypes):
    dtype, wire, out = dtypes
    x = [torch.zeros(2, dtype=dtype)] * 2
    with pytest.raises(TypeError, match="does not convert"):
        oracle.all_reduce(x, "sum", wire, out)
    for move in (oracle.all_gather, oracle.gather, oracle.broadcast, oracle.scatter, oracle.all_to_all):
        with pytest.raises(TypeError, match="does not convert"):
            move(x, wire, out)


def test_every_small_float_converts():
    for dtype, wire, out in itertools.product(oracle.SMALL_FLOATS, repeat=3):
        result = oracle.all_reduce(filled([1.0, 0.5], 3, dtype), "sum", wire, out)
        assert result.dtype == out and result.tolist() == [1.5] * 3


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x: oracle.all_reduce(x, algorithm="star"), "has no all_reduce 'star'"),
        (lambda x: oracle.all_reduce(x, "median"), "has no op 'median'"),
        (lambda x: oracle.reduce_scatter(x, algorithm="tree"), "has no reduce_scatter 'tree'"),
        (lambda x: oracle.reduce(x, algorithm="hierarchical"), "has no reduce 'hierarchical'"),
        (lambda x: oracle.all_reduce(x, algorithm="hierarchical"), "a node_size that divides 2 ranks, not None"),
        (lambda x: oracle.all_reduce(x, algorithm="hierarchical", node_size=3), "divides 2 ranks, not 3"),
        (lambda x: oracle.all_reduce(x, "max", algorithm="multimem"), "multimem adds"),
        (lambda x: oracle.all_reduce(x, "sum", E4M3, algorithm="multimem"), "multimem adds"),
        (lambda x: oracle.all_reduce(x, "premul_sum"), "a scale belongs to op 'premul_sum'"),
        (lambda x: oracle.all_reduce(x, scale=2.0), "a scale belongs to op 'premul_sum'"),
        (lambda x: oracle.reduce(x, root=2), "root is 2; with 2 ranks it can be 0 to 1"),
        (lambda x: oracle.broadcast(x, root=-1), "root is -1"),
        (lambda x: oracle.broadcast([None, *x[1:]]), "the root, rank 0, gives no tensor"),
        (lambda x: oracle.reduce_scatter(x), "cannot be cut along dimension 0 into 2 equal parts"),
        (lambda x: oracle.scatter([y[0] for y in x]), r"shape \(\) cannot be cut"),
        (lambda x: oracle.reduce_scatter(x, sizes=[1, 1]), r"into 2 parts of \[1, 1\] rows"),
        (lambda x: oracle.all_to_all(x, splits=[[1, 2], [4, -1]]), r"of \[4, -1\] rows"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call([torch.ones(3)] * 2)


def test_no_bound_for_integers():
    with pytest.raises(TypeError, match="there is no bound"):
        oracle.bound([torch.ones(2, dtype=torch.int32)], "sum")
