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

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from . import oracle

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

SMALL_FLOATS = (torch.float32, torch.bfloat16, torch.float16)  # any of them can be cast to any other
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
OTHERS = (torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
KINDS = ("small", "random", "special", "ties", "cancelling", "huge", "bits", "mixed")
GUARD = 64  # bytes on each side of a guarded tensor, and what stands in them
CANARY = 0xA5


def _st() -> Any:
    try:
        import hypothesis.strategies as st
    except ImportError as error:
        raise ImportError('tricoll.testing draws with hypothesis: pip install "tricoll[test]"') from error
    return st


# What to draw.


def world_sizes(largest: int = 8) -> SearchStrategy[int]:
    """The number of ranks, 1 and sizes that are no power of two included.

    Args:
        largest: number of ranks.
    """
    return _st().integers(1, largest)


def numels(
    world_size: int, slot: int = 64, block: int = 32, channels: int = 1, most: int = 4000
) -> SearchStrategy[int]:
    """The number of elements: none, fewer than ranks, and both sides of every boundary up to ``most``.

    ``slot`` (elements in a message) and ``block`` (elements in a pass of a kernel's loop) are those of what is tested.

    Args:
        world_size: ranks.
        channels: programs that share the elements.
    """
    st = _st()
    marks = [world_size * m * k for m in (1, 16, block, slot, slot * channels) for k in (1, 2, 3)] + [slot, block]
    near = {max(m + d, 0) for m in [0, *marks] for d in (-1, 0, 1) if m + d <= most}
    return st.one_of(st.sampled_from(sorted(near)), st.integers(0, most))


def shapes(numel: int, first: int | None = None) -> SearchStrategy[tuple[int, ...]]:
    """A shape of ``numel`` elements and up to three dimensions.

    With ``first``, there is a first dimension and it is a multiple of that, as reduce-scatter wants it.

    Raises:
        ValueError: there is no such shape.
    """
    scalar = first is None and numel == 1
    first = first or 1
    if numel % first:
        raise ValueError(f"{numel} elements cannot have a first dimension that is a multiple of {first}")
    rest = numel // first
    found: list[tuple[int, ...]] = [(numel,), (first, rest), (first, 1, rest)]
    if rest:
        found += [(first * a, rest // a) for a in (2, 3, 5) if rest % a == 0]
        found += [(first * a, rest // (a * b), b) for a in (1, 2) for b in (2, 3) if rest % (a * b) == 0]
    else:
        found += [(first, 0, 2), (0, 8)]
    if scalar:
        found.append(())
    return _st().sampled_from(found)


def dtypes(floats: bool = False, every: bool = False) -> SearchStrategy[torch.dtype]:
    """A dtype that tricoll can reduce; with ``floats``, one that has fractions.

    With ``every``, float8, bool and complex types, too.
    """
    if every:
        return _st().sampled_from(oracle.FLOATS if floats else oracle.DTYPES)
    return _st().sampled_from([*SMALL_FLOATS, torch.float64] if floats else [*SMALL_FLOATS, *OTHERS])


def dtype_triples(every: bool = False) -> SearchStrategy[tuple[torch.dtype, torch.dtype, torch.dtype]]:
    """Dtypes of input, wire and output: floats of at most 32 bits in every combination, or three times the same.

    With ``every``, float8, bool and complex types, too.
    """
    st = _st()
    floats: Sequence[torch.dtype] = oracle.SMALL_FLOATS if every else SMALL_FLOATS
    others = [d for d in oracle.DTYPES if d not in floats] if every else OTHERS
    small = st.sampled_from(floats)
    return st.one_of(st.tuples(small, small, small), st.sampled_from([(d, d, d) for d in others]))


def ops(dtype: torch.dtype = torch.float32, every: bool = False) -> SearchStrategy[str]:
    """A reduction that ``dtype`` has: "sum" or "avg", or with ``every`` any of :func:`tricoll.oracle.ops`."""
    if every:
        return _st().sampled_from(oracle.ops(dtype))
    return _st().sampled_from(("sum", "avg") if dtype.is_floating_point else ("sum",))


def scales() -> SearchStrategy[float]:
    """What op="premul_sum" multiplies by: exact and inexact, of both signs, zero, and near the ends of FP32."""
    return _st().sampled_from((0.5, 1 / 3, -2.0, 1.0, 0.1, 0.0, -1e-30, 1e30))


def roots(world_size: int) -> SearchStrategy[int]:
    """A rank.

    Args:
        world_size: ranks.
    """
    return _st().integers(0, world_size - 1)


def node_sizes(world_size: int) -> SearchStrategy[int]:
    """Ranks a node: 1, all, or any other divisor of their number.

    Args:
        world_size: ranks.
    """
    return _st().sampled_from([size for size in range(1, world_size + 1) if world_size % size == 0])


def sizes(world_size: int, most: int = 20) -> SearchStrategy[list[int]]:
    """Rows of dimension 0 for each rank, at most ``most`` each: equal, unequal, none.

    Args:
        world_size: ranks.
    """
    st = _st()
    equal = st.integers(0, most).map(lambda rows: [rows] * world_size)
    return st.one_of(st.lists(st.integers(0, most), min_size=world_size, max_size=world_size), equal)


def splits(world_size: int, rows: int) -> SearchStrategy[list[int]]:
    """How ``rows`` of dimension 0 are cut into one part a rank, in any way: parts may be empty, one may be all.

    Args:
        world_size: ranks.
    """
    st = _st()
    cuts = st.lists(st.integers(0, rows), min_size=world_size - 1, max_size=world_size - 1).map(sorted)
    return cuts.map(lambda cuts: [b - a for a, b in zip([0, *cuts], [*cuts, rows], strict=True)])


def inputs(
    world_size: int, shape: Sequence[int], dtype: torch.dtype, sizes: Sequence[int] | None = None
) -> SearchStrategy[list[Tensor]]:
    """What each rank gives: tensors of one shape, different on every rank. See :func:`make_inputs`.

    Args:
        world_size: ranks.
        dtype: theirs.
    """
    st = _st()
    kinds, seeds = st.sampled_from(KINDS), st.integers(0, 2**32 - 1)
    make = lambda kind, seed: make_inputs(world_size, shape, dtype, kind, seed, sizes)
    return st.builds(make, kinds, seeds)


def settings() -> SearchStrategy[dict[str, Any]]:
    """Link settings for :func:`tricoll.simulate` or :func:`tricoll.init`, small enough that slots are used again."""
    st = _st()
    slots = st.integers(2, 5).flatmap(lambda slots: st.tuples(st.just(slots), st.integers(1, slots - 1)))
    return st.builds(
        lambda link, channels, slots, lines, block: {
            "link": link,
            "channels": channels,
            "slots": slots[0],
            "window": slots[1],
            "slot_bytes": 128 * lines,
            "block": block,
        },
        link=st.sampled_from(("mapped", "put")),
        channels=st.integers(1, 3),
        slots=slots,
        lines=st.sampled_from((1, 2, 3, 8)),
        block=st.sampled_from((16, 32, 128)),
    )


def schedules() -> SearchStrategy[dict[str, Any]]:
    """A schedule for :func:`tricoll.simulate`: the seed of its interleaving, and how puts are delivered."""
    st = _st()
    delivery = st.sampled_from(("adversarial", "adversarial", "adversarial", "prompt"))
    return st.fixed_dictionaries({"seed": st.integers(0, 2**32 - 1), "delivery": delivery})


def layouts() -> SearchStrategy[Layout]:
    """Where a tensor lies in memory: aligned or not, contiguous or not."""
    st = _st()
    return st.builds(Layout, st.sampled_from((0, 1, 2, 3, 5)), st.sampled_from((1, 1, 1, 2)), st.booleans())


# Values.


def make_inputs(
    world_size: int,
    shape: Sequence[int],
    dtype: torch.dtype,
    kind: str = "mixed",
    seed: int = 0,
    sizes: Sequence[int] | None = None,
) -> list[Tensor]:
    """One tensor a rank, all different.

    Args:
        world_size: ranks.
        dtype: theirs.
        kind: "small" integers, whose sum over up to 8 ranks is exact in any order and in the dtype itself; "random",
            over twelve orders of magnitude (float8: four); "special", zeros of both signs, infinities, NaN, subnormals
            and the ends of the range; "ties", half way between two bfloat16 or float16, or next to it; "cancelling",
            large and of alternating sign; "huge", near overflow; "bits", anything; or "mixed", each element of another
            kind.
        seed: the same seed gives the same values.
        sizes: rows of dimension 0 on each rank, in place of ``shape[0]``.
    """
    rows = [list(shape[:1])] * world_size if sizes is None else [[size] for size in sizes]
    return [_values((*rows[rank], *shape[1:]), dtype, kind, seed, rank) for rank in range(world_size)]


def _values(shape: tuple[int, ...], dtype: torch.dtype, kind: str, seed: int, rank: int) -> Tensor:
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it can be one of {KINDS}")
    if dtype.is_complex:
        return torch.view_as_complex(_values((*shape, 2), oracle.accumulator(dtype), kind, seed, rank))
    # Kinds must not share random numbers, or "mixed" would choose an element's kind by its value.
    own = torch.Generator().manual_seed((seed * 4096 + rank) * len(KINDS) + KINDS.index(kind))
    everyone = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=own).to(dtype)
    if kind == "mixed":
        each = [oracle.bits(_values(shape, dtype, k, seed, rank)) for k in KINDS[:-1]]
        choice = torch.randint(0, len(each), shape, generator=own)
        return torch.stack(each).gather(0, choice[None])[0].view(dtype)
    if kind == "small":
        most = {torch.float8_e4m3fn: 2, torch.float8_e5m2: 1}.get(dtype, 8)
        return torch.randint(0 if dtype == torch.uint8 else -most, most + 1, shape, generator=own).to(dtype)
    if kind == "special":
        table = torch.tensor(_specials(dtype), dtype=dtype)
        return table[torch.randint(0, len(table), shape, generator=own)]
    if kind == "bits" or not dtype.is_floating_point:
        integer = oracle.BITS[dtype.itemsize]
        range_ = torch.iinfo(integer)
        return torch.randint(range_.min, range_.max, shape, generator=own, dtype=integer).view(dtype)
    narrow = dtype in EIGHT_BITS
    if kind == "random":
        x = torch.randn(shape, generator=own, dtype=torch.float64)
        orders = (-2, 3) if narrow else (-6, 7)
        return (x * 10.0 ** torch.randint(*orders, shape, generator=own)).to(dtype)
    if kind == "ties":
        # An odd number of halves of a unit in the last place, of the type that keeps fewest bits here or there.
        digits = torch.randint(8, 12, shape, generator=own)
        x = 1 + torch.randint(0, 2048, shape, generator=own) / 2.0**digits
        off = torch.randint(-1, 2, shape, generator=own) * 2.0**-23
        scale = 2.0 ** torch.randint(-4, 5, shape, generator=own)
        return ((x + off) * scale).to(dtype)
    if kind == "cancelling":
        large = torch.randn(shape, generator=everyone)
        large = large * 2.0 ** torch.randint(0, 6 if narrow else 14, shape, generator=everyone)
        return (large * (-1) ** rank + torch.randn(shape, generator=own)).to(dtype)
    x = 0.2 + 0.8 * torch.rand(shape, generator=own, dtype=torch.float64)  # "huge"
    sign = torch.randint(0, 2, shape, generator=own) * 2 - 1
    return (x * sign * torch.finfo(dtype).max).to(dtype)


def _specials(dtype: torch.dtype) -> list[float]:
    if not dtype.is_floating_point:
        whole = torch.iinfo(dtype)
        return [0, 1, 2, whole.min, whole.max, whole.max - 1]
    info = torch.finfo(dtype)
    least = info.tiny * info.eps
    positive = [0.0, 1.0, 1 + info.eps, info.eps / 2, info.tiny, info.tiny - least, least, 2 * least, info.max]
    return [*positive, math.inf, *(-v for v in positive), -math.inf, math.nan]


# Places.


class Layout(NamedTuple):
    """Where a tensor lies in a buffer of its own. Drawn by :func:`layouts`."""

    offset: int = 0  # elements behind an address that is a multiple of 64 bytes
    stride: int = 1  # of neighbours, in elements
    transposed: bool = False  # whether the first dimension varies fastest

    def strides(self, shape: Sequence[int]) -> list[int]:
        """Of a tensor of this shape, in elements.

        Args:
            shape: of the tensor.
        """
        order = range(len(shape)) if self.transposed else reversed(range(len(shape)))
        strides, step = [0] * len(shape), self.stride
        for d in order:
            strides[d], step = step, step * max(shape[d], 1)
        return strides


class Guarded:
    """A tensor that is a view into a larger buffer, and a way to see that nothing around it was written.

    >>> guarded = Guarded(torch.zeros(5), Layout(offset=1, stride=2))
    >>> guarded.view.fill_(1.0).stride()
    (2,)
    >>> guarded.check()

    Args:
        values: what ``view`` gets: its shape, dtype and elements.
        layout: where it lies.
    """

    def __init__(self, values: Tensor, layout: Layout = Layout()) -> None:  # noqa: B008
        """``view`` gets the shape, the dtype and the elements of ``values``."""
        strides, guard = layout.strides(values.shape), GUARD // values.element_size()
        extent = sum((size - 1) * stride for size, stride in zip(values.shape, strides, strict=True)) + 1
        total = guard + layout.offset + (extent if values.numel() else 0) + guard
        self.memory = torch.full((total, values.element_size()), CANARY, dtype=torch.uint8, device=values.device)
        place = (values.shape, strides, guard + layout.offset)
        self.outside = torch.ones(total, dtype=torch.bool, device=values.device)
        self.outside.as_strided(*place).fill_(False)
        self.view = self.memory.view(-1).view(values.dtype).as_strided(*place)
        self.view.copy_(values)

    def check(self) -> None:
        """Raise AssertionError if memory outside the view has changed."""
        changed = ((self.memory != CANARY).any(1) & self.outside).nonzero().view(-1)
        if len(changed):
            start = self.view.storage_offset()
            raise AssertionError(
                f"{len(changed)} elements outside the tensor were written; the first is {int(changed[0]) - start} "
                f"elements from its start (shape {tuple(self.view.shape)}, strides {self.view.stride()})"
            )


# Judging.


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
