"""What ranks did, and what that says of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

AT_ONCE = 1.0  # seconds
GOOD = ("right", "yes", "refused", "no")  # the rest is a defect: wrong, garbage, crash, hang


@dataclass(frozen=True)
class Verdict:
    """What came of a probe.

    Attributes:
        mark: "right" or "wrong"; "yes" or "no" to a property that not every library promises; "refused": an error on
            every rank, before anything was written; "garbage": values where there should have been an error; "crash":
            a process ended; "hang": it had not returned when the time was up.
        text: what was seen.
        example: the smallest call that shows it, for what is not right.
    """

    mark: str
    text: str = ""
    example: str = ""


@dataclass(frozen=True)
class Outcome:
    """What one rank did: ``kind`` is "value", "error", "crash" or "hang"; ``text`` is the error's."""

    kind: str
    value: Any = None
    text: str = ""
    seconds: float = 0.0


def same(outcomes: Sequence[Outcome]) -> str:
    """The kind that all ranks' outcomes have; the worst, if they differ: "hang", "crash", "mixed" (values, errors)."""
    kinds = {outcome.kind for outcome in outcomes}
    for kind in ("hang", "crash"):
        if kind in kinds:
            return kind
    return kinds.pop() if len(kinds) == 1 else "mixed"


def refused(outcomes: Sequence[Outcome]) -> bool:
    """Whether all ranks raised an error at once: a backend that does not take such an argument, no failed call."""
    return all(outcome.kind == "error" and outcome.seconds < AT_ONCE for outcome in outcomes)


def first(outcomes: Sequence[Outcome], kind: str) -> str:
    """What the first rank with such an outcome said; and which it was, unless that was an error."""
    rank, outcome = next((rank, outcome) for rank, outcome in enumerate(outcomes) if outcome.kind == kind)
    return outcome.text if kind == "error" else f"rank {rank} {outcome.text}"
