"""How to judge what comes back: a checker for each collective, and what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .. import oracle


def assert_same_bits(actual: Tensor, expected: Tensor, what: str = "result") -> None:
    """Raise AssertionError unless two tensors are the same in the sense of :func:`tricoll.oracle.same_bits`.

    Args:
        actual: what there is.
        expected: what there should be.
        what: its name in the message.
    """
    _assert_like(actual, expected, what)
    _raise_first(oracle.differing(actual, expected), actual, lambda at: f"not {_pattern(expected[at])}", what)


def assert_same_on_all_ranks(outputs: Sequence[Tensor], what: str = "result") -> None:
    """Raise AssertionError unless all ranks have the same bits.

    Args:
        outputs: of each rank.
        what: their name in the message.
    """
    for rank, output in enumerate(outputs):
        assert_same_bits(output, outputs[0], f"{what}, rank {rank}, compared with rank 0")


def check_all_reduce(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    op: str = "sum",
    wire: torch.dtype | None = None,
    algorithm: str | None = "ring",
    *,
    scale: float | None = None,
    node_size: int | None = None,
) -> None:
    """Judge an all-reduce.

    Args:
        outputs: what each rank got, in rank order. Their dtype is the one that was asked for.
        inputs: what each rank gave; a copy, if the operation worked in place.
        op: one of :func:`tricoll.oracle.ops`.
        wire: the dtype that travelled; None: that of the inputs.
        algorithm: whose bits to expect. None: any order of combination, each step of which may be rounded to FP32 and
            to the wire dtype (:func:`tricoll.oracle.bound`), but the same bits on all ranks.
        scale: what op="premul_sum" multiplied by.
        node_size: ranks a node, for algorithm="hierarchical".

    Raises:
        AssertionError: naming the first wrong element, its rank, and the bits found and expected.
    """
    _assert_ranks(outputs, inputs)
    if algorithm is None:
        for rank, output in enumerate(outputs):
            _assert_within(output, inputs, op, wire, scale, f"all_reduce, rank {rank}")
        assert_same_on_all_ranks(outputs, "all_reduce")
        return
    expected = oracle.all_reduce(inputs, op, wire, outputs[0].dtype, algorithm, scale=scale, node_size=node_size)
    for rank, output in enumerate(outputs):
        assert_same_bits(output, expected, f"all_reduce, rank {rank}")


def check_reduce_scatter(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    op: str = "sum",
    wire: torch.dtype | None = None,
    algorithm: str | None = "ring",
    *,
    scale: float | None = None,
    node_size: int | None = None,
    sizes: Sequence[int] | None = None,
) -> None:
    """Judge a reduce-scatter along dimension 0. See :func:`check_all_reduce`.

    Args:
        sizes: rows for each rank; None: the same number for all.
    """
    _assert_ranks(outputs, inputs)
    if algorithm is None:
        n = len(inputs)
        parts = [x.split(list(sizes) if sizes else [len(x) // n] * n) for x in inputs]
        for rank, output in enumerate(outputs):
            mine = [part[rank] for part in parts]
            _assert_within(output, mine, op, wire, scale, f"reduce_scatter, rank {rank}")
        return
    expected = oracle.reduce_scatter(
        inputs, op, wire, outputs[0].dtype, algorithm, scale=scale, node_size=node_size, sizes=sizes
    )
    for rank, output in enumerate(outputs):
        assert_same_bits(output, expected[rank], f"reduce_scatter, rank {rank}")


def check_reduce(
    outputs: Sequence[Tensor | None],
    inputs: Sequence[Tensor],
    op: str = "sum",
    wire: torch.dtype | None = None,
    algorithm: str | None = "ring",
    *,
    root: int = 0,
    scale: float | None = None,
) -> None:
    """Judge a reduce to ``root``. See :func:`check_all_reduce`.

    Args:
        outputs: what the root got, and on every other rank the tensor that it gave, which must not have changed, or
            None.
    """
    result = _result_of_root(outputs, inputs, root, "reduce")
    what = f"reduce, rank {root}"
    if algorithm is None:
        _assert_within(result, inputs, op, wire, scale, what)
    else:
        assert_same_bits(result, oracle.reduce(inputs, op, wire, result.dtype, algorithm, root=root, scale=scale), what)
    for rank, output in enumerate(outputs):
        if rank != root and output is not None:
            assert_same_bits(output, inputs[rank], f"reduce to rank {root}, what rank {rank} gave")


def check_all_gather(outputs: Sequence[Tensor], inputs: Sequence[Tensor], wire: torch.dtype | None = None) -> None:
    """Judge an all-gather along dimension 0, in which the inputs may differ in size. See :func:`check_all_reduce`."""
    _assert_ranks(outputs, inputs)
    expected, origin = oracle.all_gather(inputs, wire, outputs[0].dtype), _rows_of_ranks(inputs)
    for rank, output in enumerate(outputs):
        _assert_moved(output, expected, origin, f"all_gather, rank {rank}")


def check_gather(
    outputs: Sequence[Tensor | None], inputs: Sequence[Tensor], root: int = 0, wire: torch.dtype | None = None
) -> None:
    """Judge a gather to ``root`` along dimension 0, in which the inputs may differ in size.

    Args:
        inputs: what each rank gave.
        root: the rank.
        wire: the dtype that travelled; None: that of the inputs.
        outputs: what the root got; the others' are not looked at and may be None.
    """
    result = _result_of_root(outputs, inputs, root, "gather")
    expected = oracle.gather(inputs, wire, result.dtype)
    _assert_moved(result, expected, _rows_of_ranks(inputs), f"gather, rank {root}")


def check_broadcast(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor | None], root: int = 0, wire: torch.dtype | None = None
) -> None:
    """Judge a broadcast: what each rank got, the root too. Of the inputs, only the root's matters.

    Args:
        outputs: what each rank got, in rank order.
        inputs: what each rank gave.
        root: the rank.
        wire: the dtype that travelled; None: that of the inputs.
    """
    _assert_ranks(outputs, inputs)
    expected = oracle.broadcast(inputs, wire, outputs[0].dtype, root=root)
    for rank, output in enumerate(outputs):
        assert_same_bits(output, expected, f"broadcast from rank {root}, rank {rank}")


def check_scatter(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor | None], root: int = 0, wire: torch.dtype | None = None
) -> None:
    """Judge a scatter along dimension 0. Of the inputs, only the root's matters.

    Args:
        outputs: what each rank got, in rank order.
        inputs: what each rank gave.
        root: the rank.
        wire: the dtype that travelled; None: that of the inputs.
    """
    _assert_ranks(outputs, inputs)
    expected = oracle.scatter(inputs, wire, outputs[0].dtype, root=root)
    for rank, output in enumerate(outputs):
        origin = [(root, rank * len(expected[rank]) + row) for row in range(len(expected[rank]))]
        _assert_moved(output, expected[rank], origin, f"scatter, rank {rank}")


def check_all_to_all(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    splits: Sequence[Sequence[int]] | None = None,
    wire: torch.dtype | None = None,
) -> None:
    """Judge an all-to-all along dimension 0.

    Args:
        outputs: what each rank got, in rank order.
        inputs: what each rank gave.
        wire: the dtype that travelled; None: that of the inputs.
        splits: ``splits[r][s]`` rows of rank r's tensor go to rank s; None: the same number to all.
    """
    _assert_ranks(outputs, inputs)
    expected = oracle.all_to_all(inputs, wire, outputs[0].dtype, splits=splits)
    n = len(inputs)
    sent = splits or [[len(x) // n] * n for x in inputs]
    for rank, output in enumerate(outputs):
        firsts = [sum(counts[:rank]) for counts in sent]
        origin = [(source, firsts[source] + row) for source in range(n) for row in range(sent[source][rank])]
        _assert_moved(output, expected[rank], origin, f"all_to_all, rank {rank}")


def _assert_ranks(outputs: Sequence[Tensor | None], inputs: Sequence[Tensor | None]) -> None:
    if len(outputs) != len(inputs):
        raise AssertionError(f"there are {len(inputs)} inputs and {len(outputs)} outputs; each must be one a rank")


def _result_of_root(outputs: Sequence[Tensor | None], inputs: Sequence[Tensor], root: int, collective: str) -> Tensor:
    _assert_ranks(outputs, inputs)
    result = outputs[root]
    if result is None:
        raise AssertionError(f"{collective}: the root, rank {root}, has no result")
    return result


def _rows_of_ranks(inputs: Sequence[Tensor]) -> list[tuple[int, int]]:
    return [(rank, row) for rank, x in enumerate(inputs) for row in range(len(x) if x.dim() else 1)]


def _assert_moved(output: Tensor, expected: Tensor, origin: Sequence[tuple[int, int]], what: str) -> None:
    # ``origin``: of each row of the result, whose it was, and which.
    def complaint(at: tuple[int, ...]) -> str:
        rank, row = origin[at[0]]
        return f"not {_pattern(expected[at])}, row {row} of rank {rank}"

    _assert_like(output, expected, what)
    _raise_first(oracle.differing(output, expected), output, complaint, what)


def _assert_like(actual: Tensor, expected: Tensor, what: str) -> None:
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        raise AssertionError(
            f"{what}: is {actual.dtype} of shape {tuple(actual.shape)}, "
            f"not {expected.dtype} of shape {tuple(expected.shape)}"
        )


def _assert_within(
    output: Tensor,
    inputs: Sequence[Tensor],
    op: str,
    wire: torch.dtype | None,
    scale: float | None,
    what: str,
) -> None:
    if output.dtype not in (*oracle.FLOATS, *oracle.COMPLEX):
        return assert_same_bits(output, oracle.reduce(inputs, op, wire, output.dtype), what)  # no order matters
    value, error = oracle.bound(inputs, op, wire, output.dtype, scale=scale)
    _assert_like(output, inputs[0].to(output.dtype), what)
    actual = output.detach().cpu().resolve_conj()
    actual = torch.view_as_real(actual).double() if output.is_complex() else actual.double()
    near = (actual - value).abs() <= error
    wrong = ~(near | (actual == value) | (actual.isnan() & value.isnan()) | error.isinf())
    if output.is_complex():
        value, error, wrong = torch.view_as_complex(value), torch.view_as_complex(error), wrong.any(-1)
    _raise_first(wrong, output, lambda at: f"more than {error[at].item()} from {value[at].item()}", what)


def _raise_first(wrong: Tensor, actual: Tensor, complaint: Callable[[tuple[int, ...]], str], what: str) -> None:
    count = int(wrong.sum())
    if count:
        at = tuple(wrong.nonzero()[0].tolist())
        raise AssertionError(
            f"{what}: {count} of {actual.numel()} elements wrong, first {list(at)}: "
            f"{_pattern(actual[at])}, {complaint(at)}"
        )


def _pattern(t: Tensor) -> str:
    parts = oracle.bits(t).reshape(-1)  # one, or two of a complex number
    digits = 2 * parts.element_size()
    return f"{t.item()} ({', '.join(f'0x{part & (1 << 4 * digits) - 1:0{digits}x}' for part in parts.tolist())})"
