"""Why an algorithm is chosen: all candidates, and a sentence."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ..units import show_seconds
from .choice import Candidate, best, candidates
from .machines import Profile, Topology


@dataclass(frozen=True)
class Explanation:
    """Why an algorithm is chosen for a call: all candidates, and a sentence."""

    collective: str
    nbytes: float
    topology: Topology
    profile: str
    reproducible: bool
    candidates: list[Candidate]
    reason: str

    @property
    def winner(self) -> Candidate:
        """The candidate that is taken."""
        return self.candidates[0]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: seconds, bytes, bytes a second; an infinite rate is None."""
        plain = dataclasses.asdict(self) | {"winner": self.winner.algorithm}
        for row in plain["candidates"]:
            row |= {key: None for key, value in row.items() if value == math.inf}
        return plain


def explain(
    collective: str,
    nbytes: float,
    topology: Topology,
    profile: Profile,
    *,
    reproducible: bool = False,
    available: Collection[str] | None = None,
) -> Explanation:
    """:func:`candidates`, and a sentence why the first one won and by how much. Raises as :func:`best` does.

    Args:
        collective: its name, one of ``COLLECTIVES``.
        nbytes: size as nccl-tests counts it: the tensor, or the whole buffer.
        topology: the ranks.
        profile: the machine's constants.
    """
    options: dict[str, Any] = {"reproducible": reproducible, "available": available}
    best(collective, nbytes, topology, profile, **options)  # raises if nothing is left
    found = candidates(collective, nbytes, topology, profile, **options)
    left = [c for c in found if not c.excluded]
    reason = _reason(left[0], left[1] if len(left) > 1 else None)
    return Explanation(collective, nbytes, topology, profile.name, reproducible, found, reason)


def _reason(first: Candidate, second: Candidate | None) -> str:
    took = f"{first.algorithm} is predicted to take {show_seconds(first.time)}"
    if second is None:
        return f"{took}, and nothing else is left to choose from."
    if first.time == second.time:
        return f"{took}, as {second.algorithm} is: the choice is between equals."
    ratio = second.time / first.time
    ahead = f"{ratio - 1:.2%} faster than" if ratio < 1.095 else f"{ratio:.3g} times as fast as"
    said = f"{took}, {ahead} {second.algorithm} ({show_seconds(second.time)}): "
    if second.latency - first.latency > second.bandwidth - first.bandwidth:
        steps = f"{first.steps} step" + ("s" if first.steps != 1 else "")
        return said + (
            f"its latency is {show_seconds(first.latency)} in {steps}, "
            f"and that of {second.algorithm} {show_seconds(second.latency)} in {second.steps}."
        )
    return said + (
        f"its data take {show_seconds(first.bandwidth)} on the busiest link, "
        f"and those of {second.algorithm} {show_seconds(second.bandwidth)}."
    )
