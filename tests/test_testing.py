"""The checkers: judged by whether they notice what is wrong; and what the strategies draw."""

import doctest
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tricoll import oracle, testing
from tricoll.testing import Guarded, Layout

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


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


def test_reduce_leaves_the_others_alone():
    inputs = [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])]
    total = torch.tensor([11.0, 22.0])
    for algorithm in ("ring", "tree", "two_shot", None):
        for others in (None, inputs[0].clone()):
            testing.check_reduce([others, total], inputs, algorithm=algorithm, root=1)
        with pytest.raises(AssertionError, match=r"reduce, rank 1: 1 of 2 elements wrong, first \[1\]: 21.0 "):
            testing.check_reduce([None, torch.tensor([11.0, 21.0])], inputs, algorithm=algorithm, root=1)
        with pytest.raises(AssertionError, match="reduce to rank 1, what rank 0 gave: 2 of 2 elements wrong"):
            testing.check_reduce([total, total], inputs, algorithm=algorithm, root=1)
    for check in (testing.check_reduce, testing.check_gather):
        with pytest.raises(AssertionError, match="the root, rank 1, has no result"):
            check([total, None], inputs, root=1)


def test_broadcast():
    inputs = [torch.tensor([1.0, 1 + 2.0**-9]), None, None]
    testing.check_broadcast([torch.ones(2)] * 3, inputs, wire=BF16)
    text = r"broadcast from rank 0, rank 2: 1 of 2 elements wrong, first \[1\]: 1.001953125 \(0x3f804000\), not 1.0 "
    with pytest.raises(AssertionError, match=text):
        testing.check_broadcast([torch.ones(2), torch.ones(2), inputs[0]], inputs, wire=BF16)


def test_moves_say_whose_row_is_wrong():
    x = [torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]]), torch.tensor([[10, 20], [30, 40], [50, 60], [70, 80]])]
    right = {
        "all_gather": [torch.cat(x)] * 2,
        "gather": [None, torch.cat(x)],
        "scatter": [x[1][:2], x[1][2:]],
        "all_to_all": [torch.cat([x[0][:2], x[1][:2]]), torch.cat([x[0][2:], x[1][2:]])],
    }
    says = {
        "all_gather": r"all_gather, rank 1: 1 of 16 elements wrong, first \[3, 1\]: 9 .* not 8 .*, row 3 of rank 0",
        "gather": r"gather, rank 1: 1 of 16 elements wrong, first \[3, 1\]: 9 .* not 8 .*, row 3 of rank 0",
        "scatter": r"scatter, rank 1: 1 of 4 elements wrong, first \[1, 1\]: 81 .* not 80 .*, row 3 of rank 1",
        "all_to_all": r"all_to_all, rank 1: 1 of 8 elements wrong, first \[3, 1\]: 81 .* not 80 .*, row 3 of rank 1",
    }
    for collective, outputs in right.items():
        check = getattr(testing, f"check_{collective}")
        kwargs = {"root": 1} if collective in ("gather", "scatter") else {}
        check(outputs, x, **kwargs)
        wrong = [outputs[0], outputs[1].clone()]
        wrong[1][1 if collective == "scatter" else 3, 1] += 1
        with pytest.raises(AssertionError, match=says[collective]):
            check(wrong, x, **kwargs)
        with pytest.raises(AssertionError, match="of shape"):
            check([outputs[0], outputs[1][1:]], x, **kwargs)
        with pytest.raises(AssertionError, match="1 outputs"):
            check(outputs[1:], x, **kwargs)


def test_uneven_rows():
    inputs = [torch.arange(3), torch.arange(10, 15), torch.arange(20, 20)]
    testing.check_all_gather([torch.cat(inputs)] * 3, inputs)
    testing.check_gather([torch.cat(inputs), None, None], inputs)
    splits = [[0, 1, 2], [5, 0, 0], [0, 0, 0]]
    outputs = [torch.arange(10, 15), torch.tensor([0]), torch.tensor([1, 2])]
    testing.check_all_to_all(outputs, inputs, splits)
    outputs[2] = torch.tensor([1, 1])
    with pytest.raises(AssertionError, match=r"rank 2: 1 of 2 elements wrong, first \[1\]: 1 .*, row 2 of rank 0"):
        testing.check_all_to_all(outputs, inputs, splits)
    equal = [torch.arange(4.0), torch.ones(4)]
    for algorithm in ("ring", None):
        outputs = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0])]
        testing.check_reduce_scatter(outputs, equal, algorithm=algorithm, sizes=[3, 1])
        with pytest.raises(AssertionError, match="reduce_scatter, rank 0"):
            testing.check_reduce_scatter(outputs, equal, algorithm=algorithm, sizes=[2, 2])


def test_algorithms_with_arguments_of_their_own():
    inputs = [torch.full((16,), v) for v in (1.0, 2.0, 3.0, 4.0)]
    outputs = [torch.full((16,), 10.0)] * 4
    testing.check_all_reduce(outputs, inputs, algorithm="hierarchical", node_size=2)
    testing.check_all_reduce(
        [o / 4 for o in outputs], inputs, "premul_sum", algorithm="hierarchical", node_size=2, scale=0.25
    )
    for algorithm in ("ring", None):
        testing.check_all_reduce([o / 4 for o in outputs], inputs, "premul_sum", algorithm=algorithm, scale=0.25)
        with pytest.raises(AssertionError):
            testing.check_all_reduce(outputs, inputs, "premul_sum", algorithm=algorithm, scale=0.25)
    parts = [torch.full((4,), 5.0)] * 4
    testing.check_reduce_scatter(parts, inputs, "premul_sum", algorithm="hierarchical", node_size=4, scale=0.5)
    testing.check_reduce([torch.full((16,), 5.0), None, None, None], inputs, "premul_sum", scale=0.5)


@pytest.mark.parametrize(
    "inputs, wrong, text",
    [
        ([[True], [False]], [False], r"False \(0x00\), not True \(0x01\)"),
        ([[1.0], [2.0]], [2.0], r"2.0 \(0x40\), not 3.0 \(0x44\)"),
        (
            [[1 + 2j], [3 + 4j]],
            [4 + 5j],
            r"\(4\+5j\) \(0x40800000, 0x40a00000\), not \(4\+6j\) \(0x40800000, 0x40c00000\)",
        ),
    ],
)
def test_messages_of_all_types(inputs, wrong, text):
    dtype = torch.tensor(wrong).dtype
    dtype = torch.float8_e4m3fn if dtype == FP32 else dtype
    inputs = [torch.tensor(x, dtype=dtype) for x in inputs]
    with pytest.raises(AssertionError, match=text):
        testing.check_all_reduce([torch.tensor(wrong, dtype=dtype)] * 2, inputs)


def test_any_order_of_complex_numbers():
    inputs = [torch.tensor([1 + 2j, 1e8 + 1j]), torch.tensor([3 + 4j, 1j]), torch.tensor([0j, -1e8])]
    for order in ((0, 1, 2), (0, 2, 1)):
        total = inputs[order[0]] + inputs[order[1]] + inputs[order[2]]
        testing.check_all_reduce([total] * 3, inputs, algorithm=None)
    wrong = torch.tensor([4 + 6j, 2.1j])
    with pytest.raises(AssertionError, match=r"first \[1\]: 2.0999.*j .*more than \(.*j\) from 2j"):
        testing.check_all_reduce([wrong] * 3, inputs, algorithm=None)


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


# What is drawn.


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
