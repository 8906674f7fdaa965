"""The oracle and the checkers: judged by arithmetic done another way, and by whether they notice what is wrong."""

import doctest
import fractions
import sys

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tricoll import oracle, testing
from tricoll.testing import Guarded, Layout

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


# The oracle.


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


def test_the_owner_rounds_what_it_keeps_except_where_nobody_else_has_it():
    x = [torch.tensor([1 + 2.0**-12, 1 + 2.0**-12])]
    assert oracle.all_reduce(x, wire=BF16).tolist() == [1.0, 1.0]
    assert oracle.all_gather(x, wire=BF16).tolist() == [1.0, 1.0]
    assert oracle.reduce_scatter(x, wire=BF16)[0].tolist() == x[0].tolist()


def test_an_average_divides_before_it_rounds():
    inputs = [torch.tensor([61440.0], dtype=FP16), torch.tensor([49152.0], dtype=FP16)]
    assert oracle.reduce_scatter([x.repeat(2) for x in inputs], "avg")[0].item() == 55296.0
    assert oracle.all_reduce([torch.tensor([float(r == 0)]) for r in range(3)], "avg").item() == numpy.float32(1 / 3)


def test_integers_wrap_and_fp64_stays():
    assert oracle.all_reduce([torch.tensor([200, 1], dtype=torch.uint8)] * 2).tolist() == [144, 2]
    assert oracle.all_reduce([torch.tensor([2**60 + 1])] * 2).tolist() == [2**61 + 2]
    third = torch.tensor([1 / 3], dtype=torch.float64)
    assert oracle.all_reduce([third] * 2).item() == 2 / 3


@pytest.mark.parametrize("numel", [0, 1, 15, 16, 17, 100, 1000])
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_chunks_cover_everything_once(n, numel):
    chunk = oracle.chunk_size(numel, n)
    assert chunk % 16 == 0 and n * chunk >= numel and n * (chunk - 16) < max(numel, 1)
    x = torch.arange(numel)
    testing.assert_same_bits(oracle.all_reduce([x] + [torch.zeros_like(x)] * (n - 1)), x)


@given(st.data())
def test_the_oracle_lies_within_its_own_bound(data):
    """Exact sums of fractions, the oracle's bits, and the bound, against each other."""
    n = data.draw(testing.world_sizes())
    dtype, wire, out = data.draw(testing.dtype_triples().filter(lambda t: t[0].is_floating_point))
    op = data.draw(testing.ops())
    inputs = data.draw(testing.inputs(n, data.draw(testing.shapes(data.draw(testing.numels(n, most=40)))), dtype))
    value, error = oracle.bound(inputs, op, wire, out)
    testing.check_all_reduce([oracle.all_reduce(inputs, op, wire, out)] * n, inputs, op, wire, algorithm=None)
    flat = [x.reshape(-1).double().tolist() for x in inputs]
    for column, v, e in zip(zip(*flat, strict=True), value.reshape(-1).tolist(), error.reshape(-1).tolist()):
        if all(abs(x) < float("inf") for x in column) and e < float("inf"):
            exact = sum(map(fractions.Fraction, column)) / (n if op == "avg" else 1)
            assert abs(exact - fractions.Fraction(v)) <= fractions.Fraction(e)


def test_the_bound_is_tight_enough_to_be_of_use():
    inputs = testing.make_inputs(8, (1000,), FP32, "random")
    size = torch.stack(inputs).double().abs().sum(0)
    for wire, most in ((FP32, 2e-6), (BF16, 0.04)):
        _, error = oracle.bound(inputs, "sum", wire)
        assert bool((error <= most * size + 1e-35).all())


def test_same_bits():
    nan = torch.tensor([0x7FC00000, 0x7F800001, -1], dtype=torch.int32).view(FP32)
    assert oracle.same_bits(nan, nan.flip(0)) and not oracle.same_bits(nan, torch.full((3,), torch.inf))
    assert not oracle.same_bits(torch.tensor(0.0), torch.tensor(-0.0))
    assert not oracle.same_bits(torch.zeros(2), torch.zeros(2, 1))
    assert not oracle.same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.int32))
    assert oracle.same_bits(torch.arange(6).view(2, 3).t(), torch.tensor([[0, 3], [1, 4], [2, 5]]))
    assert oracle.same_bits(torch.zeros(0), torch.zeros(0))


def test_what_the_oracle_does_not_know():
    for wrong in ({"algorithm": "star"}, {"op": "median"}):
        with pytest.raises(ValueError, match="the oracle has no"):
            oracle.all_reduce([torch.ones(1)], **wrong)


# The checkers notice what is wrong.


def checked(wrong, inputs, outputs, **kwargs):
    check = testing.check_all_reduce
    check([o.clone() for o in outputs], inputs, **kwargs)
    wrong_outputs = [o.clone() for o in outputs]
    wrong(wrong_outputs)
    with pytest.raises(AssertionError) as caught:
        check(wrong_outputs, inputs, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize("algorithm", ["ring", None])
def test_one_wrong_element_is_named(algorithm):
    inputs = testing.make_inputs(3, (4, 5), FP32, "small")
    outputs = [oracle.all_reduce(inputs)] * 3

    def wrong(outputs):
        outputs[2][1, 3] += 1

    text = checked(wrong, inputs, outputs, algorithm=algorithm)
    assert text.startswith("all_reduce, rank 2: 1 of 20 elements wrong, first [1, 3]: ")
    assert "0x" in text


def test_one_wrong_bit_is_noticed():
    inputs = testing.make_inputs(2, (10,), FP32, "random")

    def wrong(outputs):
        outputs[1].view(torch.int32)[7] ^= 1

    assert "rank 1: 1 of 10 elements wrong, first [7]" in checked(wrong, inputs, [oracle.all_reduce(inputs)] * 2)
    # Another order of additions might give that bit, but not on one rank alone.
    text = checked(wrong, inputs, [oracle.all_reduce(inputs)] * 2, algorithm=None)
    assert "rank 1, compared with rank 0" in text


def test_shapes_dtypes_and_missing_ranks():
    inputs = [torch.ones(4)] * 2
    for outputs, message in (
        ([torch.full((4,), 2.0)], "2 inputs and 1 outputs"),
        ([torch.full((2, 2), 2.0)] * 2, "of shape"),
    ):
        for algorithm in ("ring", None):
            with pytest.raises(AssertionError, match=message):
                testing.check_all_reduce(outputs, inputs, algorithm=algorithm)
    with pytest.raises(AssertionError, match=r"is torch.float32 .* not torch.bfloat16"):
        testing.assert_same_bits(torch.zeros(1), torch.zeros(1, dtype=BF16))
    with pytest.raises(AssertionError, match="rank 1, compared with rank 0"):
        testing.assert_same_on_all_ranks([torch.zeros(1), -torch.zeros(1)])


def test_reduce_scatter_and_all_gather():
    inputs = [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])]
    for algorithm in ("ring", None):
        testing.check_reduce_scatter([torch.tensor([11.0]), torch.tensor([22.0])], inputs, algorithm=algorithm)
        with pytest.raises(AssertionError, match="reduce_scatter, rank 1"):
            testing.check_reduce_scatter([torch.tensor([11.0]), torch.tensor([11.0])], inputs, algorithm=algorithm)
    testing.check_all_gather([torch.tensor([1.0, 2.0, 10.0, 20.0])] * 2, inputs)
    with pytest.raises(AssertionError, match=r"all_gather, rank 0: 4 of 4 elements wrong, first \[0\]"):
        testing.check_all_gather([torch.tensor([10.0, 20.0, 1.0, 2.0])] * 2, inputs)


@pytest.mark.parametrize(
    "inputs, wrong",
    [
        ([1.0, torch.nan], 1.0),
        ([torch.inf, -torch.inf], torch.inf),
        ([torch.inf, 1.0], torch.nan),
        ([torch.inf, 1.0], 3e38),
        ([1.0, 2.0], torch.nan),
        ([1.0, 2.0], torch.inf),
    ],
)
def test_any_order_still_needs_its_infinities_and_nan(inputs, wrong):
    inputs = [torch.tensor([v]) for v in inputs]
    testing.check_all_reduce([inputs[0] + inputs[1]] * 2, inputs, algorithm=None)
    with pytest.raises(AssertionError):
        testing.check_all_reduce([torch.tensor([wrong])] * 2, inputs, algorithm=None)


def test_any_order_of_integers_is_exact():
    inputs = [torch.tensor([200], dtype=torch.uint8), torch.tensor([100], dtype=torch.uint8)]
    testing.check_all_reduce([torch.tensor([44], dtype=torch.uint8)] * 2, inputs, algorithm=None)
    with pytest.raises(AssertionError):
        testing.check_all_reduce([torch.tensor([255], dtype=torch.uint8)] * 2, inputs, algorithm=None)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("where", [-1, 15, 1])
def test_guarded_notices_writes_around_it(where, stride):
    guarded = Guarded(torch.zeros(15 if where != 1 else 8), Layout(3, stride))
    guarded.view.fill_(7.0)
    guarded.check()
    if where == 1 and stride == 1:
        return  # that element belongs to the tensor
    place = guarded.view.storage_offset() + (where * stride if where == 15 else where)
    guarded.memory.view(-1).view(FP32)[place] = 0.0
    with pytest.raises(AssertionError, match=r"1 elements outside the tensor were written; the first is -?[0-9]+"):
        guarded.check()


@given(st.data())
def test_layouts_hold_their_values(data):
    shape = data.draw(testing.shapes(data.draw(testing.numels(2, most=50))))
    values = data.draw(testing.inputs(1, shape, data.draw(testing.dtypes())))[0]
    layout = data.draw(testing.layouts())
    guarded = Guarded(values, layout)
    testing.assert_same_bits(guarded.view, values)
    guarded.view.copy_(values + 1)
    guarded.check()
    if values.numel():
        assert guarded.view.data_ptr() % 64 == layout.offset * values.element_size() % 64


# What is drawn.


@pytest.mark.parametrize("kind", testing.KINDS)
@pytest.mark.parametrize("dtype", [*testing.SMALL_FLOATS, *testing.OTHERS], ids=str)
def test_inputs_differ_by_rank_and_by_seed(dtype, kind):
    one, other = testing.make_inputs(2, (50,), dtype, kind, 5)
    assert one.dtype == dtype and one.shape == (50,)
    assert not oracle.same_bits(one, other)
    assert oracle.same_bits(one, testing.make_inputs(3, (50,), dtype, kind, 5)[0])
    assert not oracle.same_bits(one, testing.make_inputs(2, (50,), dtype, kind, 6)[0])


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=str)
def test_inputs_are_nasty(dtype):
    x = torch.cat(testing.make_inputs(4, (4000,), dtype))
    assert x.isnan().any() and x.isposinf().any() and x.isneginf().any()
    assert ((x != 0) & (x.abs() < torch.finfo(dtype).tiny)).any()
    assert (oracle.bits(x) == oracle.bits(torch.tensor(-0.0, dtype=dtype))).any()
    a, b = testing.make_inputs(2, (4000,), dtype, "huge")
    total = a.float() + b.float()
    assert (total.abs() > torch.finfo(dtype).max).any() or dtype == FP32
    a, b = testing.make_inputs(2, (4000,), dtype, "cancelling")
    assert ((a + b).abs() < 0.01 * a.abs()).float().mean() > 0.1
    if dtype == FP32:
        x = torch.cat(testing.make_inputs(2, (4000,), dtype, "ties"))
        assert ((oracle.bits(x) & 0xFFFF) == 0x8000).float().mean() > 0.05


def test_sums_of_small_are_exact_in_every_type():
    for dtype in testing.SMALL_FLOATS:
        inputs = testing.make_inputs(8, (1000,), dtype, "small")
        exact = torch.stack([x.double() for x in inputs]).sum(0)
        for wire in (FP32, BF16, FP16):
            assert oracle.same_bits(oracle.all_reduce(inputs, wire=wire, out_dtype=torch.float64), exact + 0.0)


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


@given(testing.settings(), testing.schedules())
def test_settings_are_valid(settings, schedule):
    from tricoll.workspace import settings_for

    assert settings_for(**settings).window < settings["slots"]
    assert set(schedule) == {"seed", "delivery"}


def test_without_hypothesis(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis.strategies", None)
    with pytest.raises(ImportError, match=r'pip install "tricoll\[test\]"'):
        testing.world_sizes()
    testing.check_all_reduce([torch.ones(1)], [torch.ones(1)])  # the checkers do not need it


def test_the_example_in_the_documentation():
    assert doctest.testmod(testing).failed == 0
    assert doctest.testmod(oracle).failed == 0


def test_another_backend(pool):
    """Gloo, judged by the same checkers."""

    def gloo(comm, inputs):
        import torch.distributed as dist

        dist.init_process_group("gloo")
        results = []
        for ranks in inputs:
            x = ranks[comm.rank].clone()
            dist.all_reduce(x)
            results.append(x)
        return results

    inputs = [testing.make_inputs(3, (500,), FP32, kind) for kind in testing.KINDS]
    results = pool(3).run(gloo, inputs)
    for i, ranks in enumerate(inputs):
        testing.check_all_reduce([r[i] for r in results], ranks, algorithm=None)
