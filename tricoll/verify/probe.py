"""What a probe is, and the two ways to ask: search for a counterexample, or make one scene and judge it.

Functions whose first argument is an ``api`` run on the ranks; the others compare what came back, in the process that
asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import testing
from .backends import Api
from .outcome import Outcome, Verdict, first, refused, same
from .session import Session

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
EIGHT = 8  # ranks, where the number matters
NUMBERS = (*FLOATS, torch.int32, torch.int64, torch.uint8)


@dataclass(frozen=True)
class Probe:
    """A row of the table: its name, what is asked, and what the right answer is."""

    name: str
    question: str
    run: Callable[[Session], Verdict]


# Searches, with examples that hypothesis draws and reduces to the smallest.


class Stop(BaseException):
    """Ends a search at once: after a hang, reducing the example would hang as often."""


class Refused(Exception):
    """All ranks raised an error: there is no such call."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(text)
        self.what = what


class Crash(AssertionError):
    """A process ended."""


def search(session: Session, draw: Callable[[Any], dict[str, Any]], check: Callable[..., None]) -> Verdict:
    """Try ``check(**example)`` with drawn examples; it raises AssertionError or Refused. The smallest failure."""
    try:
        import hypothesis
        from hypothesis import strategies as st
    except ImportError as error:
        raise ImportError('examples are drawn with hypothesis: pip install "tricoll[test]"') from error

    without: dict[str, str] = {}
    seen: dict[str, Any] = {"right": 0}

    @hypothesis.settings(
        max_examples=session.examples,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
        print_blob=False,
    )
    @hypothesis.given(st.data())
    def attempt(data: Any) -> None:
        example = draw(data.draw)
        seen["example"] = _words(example)
        try:
            check(**example)
            seen["right"] += 1
        except Refused as reason:
            without.setdefault(reason.what, str(reason))

    try:
        attempt()
    except Stop as stop:
        return Verdict("hang", str(stop), seen["example"])
    except Crash as crash:
        return Verdict("crash", str(crash), seen["example"])
    except AssertionError as error:
        return Verdict("wrong", str(error).splitlines()[0], seen["example"])
    if not seen["right"]:
        return Verdict("refused", next(iter(without.values()), "no example was tried"))
    also = f"; refused: {', '.join(sorted(without))}" if without else ""
    return Verdict("right", f"{seen['right']} examples{also}")


def _words(example: dict[str, Any]) -> str:
    def word(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], Tensor):
            small = value[0].numel() <= 4
            return str([v.tolist() for v in value]) if small else f"{len(value)} tensors of {tuple(value[0].shape)}"
        return name_of(value)

    return ", ".join(f"{key}={word(value)}" for key, value in example.items())


def name_of(value: Any) -> str:
    """As it is shown: a dtype without "torch."."""
    return str(value).removeprefix("torch.")


def search_inputs(
    session: Session,
    call: Callable[..., Tensor],
    judge: Callable[..., None],
    kinds: Sequence[str],
    *,
    dtypes: Sequence[torch.dtype] = NUMBERS,
    ops: Sequence[str] = (),
    roots: bool = False,
    parts: bool = False,
) -> Verdict:
    """Search for inputs with which ``call(api, inputs, **more)`` gives what ``judge(outputs, inputs, **more)`` refuses.

    Args:
        session: whom to ask.
        call: made on every rank.
        judge: gets what all ranks returned; raises AssertionError.
        kinds: of values, see :func:`tricoll.testing.make_inputs`.
        dtypes: to draw from.
        ops: to draw ``op`` from; none: there is no such argument.
        roots: whether ``root`` is drawn, too.
        parts: whether the number of elements must be a multiple of that of the ranks.
    """
    from hypothesis import strategies as st

    n = session.ranks

    def draw(d: Any) -> dict[str, Any]:
        dtype = d(st.sampled_from(list(dtypes)))
        few = d(st.booleans())
        numel = d(st.integers(0, 40)) * (n if parts else 1) if few else n * d(st.sampled_from((1, 16, 100)))
        inputs = testing.make_inputs(n, (numel,), dtype, d(st.sampled_from(list(kinds))), d(st.integers(0, 99)))
        example: dict[str, Any] = {"inputs": inputs, "dtype": dtype}
        if ops:
            example["op"] = d(st.sampled_from(list(ops)))
        if roots:
            example["root"] = d(st.integers(0, n - 1))
        return example

    def check(inputs: list[Tensor], dtype: torch.dtype, **more: Any) -> None:
        what = f"{more['op']} of {name_of(dtype)}" if "op" in more else name_of(dtype)
        judge(values(session.ask(partial(call, **more), inputs), what), inputs, **more)

    return search(session, draw, check)


def values(outcomes: Sequence[Outcome], what: str) -> list[Any]:
    """What all ranks returned, for a ``check`` of a search; ``what`` they refuse, if they do."""
    kind = same(outcomes)
    if kind == "hang":
        raise Stop(first(outcomes, "hang"))
    if kind == "crash":
        raise Crash(first(outcomes, "crash"))
    if kind == "error" and refused(outcomes):
        raise Refused(what, outcomes[0].text)
    if kind != "value":
        raise AssertionError(f"an error: {first(outcomes, 'error')}")
    return [outcome.value for outcome in outcomes]


# Scenes: one call, or a few, and what must come of it.


def scene(
    session: Session,
    fn: Callable[..., Any],
    judge: Callable[[list[Any]], Verdict],
    example: str,
    ranks: int | None = None,
) -> Verdict:
    """Run on all ranks and judge the values; errors on every rank are "refused"."""
    outcomes = session.ask(fn, ranks=ranks)
    if verdict := trouble(outcomes, example):
        return verdict
    return judge([outcome.value for outcome in outcomes])


def trouble(outcomes: Sequence[Outcome], example: str) -> Verdict | None:
    """The verdict where not all ranks have a value, or None."""
    kind = same(outcomes)
    if kind == "value":
        return None
    if kind in ("hang", "crash"):
        return Verdict(kind, first(outcomes, kind), example)
    if refused(outcomes):
        return Verdict("refused", outcomes[0].text, example)
    return Verdict("wrong", f"an error: {first(outcomes, 'error')}", example)


def equal(expected: Tensor, example: str, found: list[Tensor]) -> Verdict:
    """Whether all ranks have these bits."""
    try:
        assert_equal(found, expected)
    except AssertionError as error:
        return Verdict("wrong", str(error).splitlines()[0], example)
    return Verdict("right", example)


def assert_equal(outputs: Sequence[Tensor], expected: Tensor) -> None:
    """AssertionError unless all ranks have these bits."""
    for rank, output in enumerate(outputs):
        testing.assert_same_bits(output, expected, f"rank {rank}")


def constants(session: Session, cases: Sequence[tuple[float, torch.dtype, str, float]], ranks: int) -> Verdict:
    """All-reduces of ``(value on every rank, dtype, op, right result)``: the first that is wrong, or right."""
    without = []
    for value, dtype, op, right in cases:
        example = f"{op} of {value:g} on {ranks} ranks, {name_of(dtype)}"
        fn = partial(_constant, value=value, dtype=dtype, op=op)
        verdict = scene(session, fn, partial(equal, _filled(right, dtype), example), example, ranks)
        if verdict.mark == "refused":
            without.append(example)
        elif verdict.mark != "right":
            return verdict
    if len(without) == len(cases):
        return verdict
    text = "; ".join(f"{op} of {value:g} ({name_of(dtype)})" for value, dtype, op, _ in cases)
    return Verdict("right", text + (f"; refused: {', '.join(without)}" if without else ""))


def _constant(api: Api, value: float, dtype: torch.dtype, op: str) -> Tensor:
    x = _filled(value, dtype).to(api.device)
    api.all_reduce(x, op)
    return x.cpu()


def _filled(value: float, dtype: torch.dtype) -> Tensor:
    return torch.full((33,), value, dtype=torch.float64 if isinstance(value, float) else torch.int64).to(dtype)
