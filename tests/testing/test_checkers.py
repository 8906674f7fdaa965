"""The checkers: judged by whether they notice what is wrong."""

import pytest
import torch

from tricoll import oracle, testing

FP32, BF16 = torch.float32, torch.bfloat16


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
