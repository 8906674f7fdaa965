"""What to draw: strategies for hypothesis, which they import when they are first used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import oracle
from .memory import Layout
from .values import KINDS, make_inputs

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

SMALL_FLOATS = (torch.float32, torch.bfloat16, torch.float16)  # any of them can be cast to any other
OTHERS = (torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _st() -> Any:
    try:
        import hypothesis.strategies as st
    except ImportError as error:
        raise ImportError('tricoll.testing draws with hypothesis: pip install "tricoll[test]"') from error
    return st


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
