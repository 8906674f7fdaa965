"""The constants with which the cost model predicts measured times best, and how well they choose."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import cost
from ..cost import Link, Profile, Protocol, Topology
from ..tuned import Target
from .samples import Point

MOST_STEPS = 100  # of the fit
PRIOR = 0.3  # how much an algorithm's overhead of a typical time costs in the fit, in relative errors
HOLD_OUT = 4  # every so manyth size is not fitted, and used to judge the fit
NEAR = 1.10  # the choice is good if it takes at most this much times the best one's time
MICRO = 1e-6  # seconds, and seconds a kilobyte
LEAST = 1e-6  # of a constant: infinite bandwidths and logarithms of 0 are no use
NOTHING = 1e-3  # a nanosecond: what is less is reported as 0


@dataclass(frozen=True)
class Judged:
    """A size of a collective: what was chosen by the fitted model, and what was the fastest. Seconds, as measured."""

    collective: str
    nbytes: int
    chosen: str
    best: str
    taken: float
    least: float
    held_out: bool

    @property
    def near(self) -> bool:
        return self.taken <= NEAR * self.least


@dataclass(frozen=True)
class Fit:
    """A profile, and how well it predicts: relative errors, and choices."""

    profile: Profile
    errors: Mapping[Point, float]  # predicted / measured - 1
    judged: Sequence[Judged]
    held_out: frozenset[int]

    def error(self, held_out: bool, collective: str = "", algorithm: str = "") -> float:
        """Median of the absolute relative errors; NaN if there is nothing to judge by."""
        found = [
            abs(error)
            for point, error in self.errors.items()
            if (point.nbytes in self.held_out) == held_out
            and collective in ("", point.collective)
            and algorithm in ("", point.algorithm)
        ]
        return statistics.median(found) if found else math.nan

    def good_choices(self, held_out: bool) -> tuple[int, int]:
        """Of how many sizes and collectives the choice is within NEAR of the best, and how many there are."""
        judged = [j for j in self.judged if j.held_out or not held_out]
        return sum(j.near for j in judged), len(judged)

    def report(self) -> dict[str, Any]:
        good, of = self.good_choices(True)
        every, all_of = self.good_choices(False)
        return {
            "median_error_fitted": self.error(False),
            "median_error_held_out": self.error(True),
            "held_out_choices_near_best": [good, of],
            "all_choices_near_best": [every, all_of],
        }


def fit(points: Sequence[Point], origin: Mapping[str, Any]) -> Fit:
    """The constants that predict the measured times best: relative errors, of which large ones count less.

    Least squares of log(predicted / measured) with a Cauchy loss, on all but every fourth size; and of what is left of
    it in comparison with the other algorithms at the same size, which took turns and so are comparable even if the
    machine was now slower, now faster. Fitted are, for the protocols in use, ``base`` and ``message``, alpha and beta
    of each class of links, and an overhead of each algorithm of a collective, which costs something (as a share of a
    typical time) so that it is used for what the others cannot explain. A protocol that only one algorithm uses has no
    alpha of its own: at one world size it cannot be told from ``base``, which has both.

    Raises ValueError if there is too little to fit.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise ImportError('the fit needs SciPy: pip install "tricoll[tune]"') from None

    whole = sorted({point.nbytes for point in points})
    held_out = frozenset(whole[HOLD_OUT - 2 : -1 : HOLD_OUT])  # none is beyond those that are fitted
    fitted = [point for point in points if point.nbytes not in held_out]
    unknowns = Unknowns(origin, sorted({(point.collective, point.algorithm) for point in fitted}))
    start, target = unknowns.start, unknowns.target
    if len(fitted) < 2 * len(start):
        raise ValueError(f"{len(fitted)} measured times are too few to fit {len(start)} constants to: add sizes")

    measured = np.array([point.seconds for point in fitted])
    cases = _cases(fitted)
    case = np.array([cases.index((point.collective, point.nbytes)) for point in fitted])
    together = [case == number for number in range(len(cases))]
    typical = float(np.median(measured)) / MICRO

    def residuals(constants: Any) -> Any:
        wrong = np.log(predict(fitted, unknowns.profile(constants), target.topology) / measured)
        usual = np.array([np.median(wrong[rows]) for rows in together])
        return np.concatenate([wrong, wrong - usual[case], PRIOR * constants[unknowns.common :] / typical])

    # Measured times are fitted in some tens of steps; those without any noise would go on to the last digit.
    found = least_squares(
        residuals, start, bounds=(LEAST, np.inf), x_scale=start, loss="cauchy", f_scale=0.1, max_nfev=MOST_STEPS
    )
    constants = np.where(unknowns.seconds & (found.x < NOTHING), 0.0, found.x)
    best = unknowns.profile(constants)
    errors = predict(points, best, target.topology) / np.array([point.seconds for point in points]) - 1
    judged = [_judge(c, nbytes, points, best, target, nbytes in held_out) for c, nbytes in _cases(points)]
    return Fit(best, dict(zip(points, errors.tolist())), judged, held_out)


class Unknowns:
    """The constants that are fitted, as a vector: in microseconds, and microseconds a kilobyte for 1 / beta.

    First ``base`` and ``message`` of the protocol ``signal``; alpha and 1 / beta of each class of its links; the same
    of ``packed``, without alpha; then an overhead for each of ``pairs``, (collective, algorithm).
    """

    def __init__(self, origin: Mapping[str, Any], pairs: Sequence[tuple[str, str]]) -> None:
        self.origin, self.pairs, self.target = origin, pairs, Target(**origin["target"])
        self.shared = self.target.fabric == "host"  # one machine, whose cores do all the sending; "nodes" are made up
        nodes = self.target.topology.nodes
        self.kinds = [self.target.link] + ["inter"] * (nodes > 1 and not self.shared)
        self.packed = self.target.link == "mapped" and nodes == 1
        # Where the fit begins, and whether it is a time.
        base, message, alpha, slowness, overhead = (100.0, True), (20.0, True), (20.0, True), (1.0, False), (10.0, True)
        common = [base, message, *[alpha, slowness] * len(self.kinds), *[base, message, slowness] * self.packed]
        self.common = len(common)
        start, seconds = zip(*common, *[overhead] * len(pairs))
        self.start, self.seconds = np.array(start), np.array(seconds)

    def profile(self, constants: Any) -> Profile:
        """The machine with these constants."""
        base, message, *rest = (float(value) for value in constants[: self.common])
        overheads: dict[str, dict[str, float]] = {}
        for (collective, algorithm), value in zip(self.pairs, constants[self.common :]):
            overheads.setdefault(collective, {})[algorithm] = float(value) * MICRO
        links = {kind: _link(rest[2 * i], rest[2 * i + 1]) for i, kind in enumerate(self.kinds)}
        links = {"mapped": links[self.target.link], "inter": links[self.target.link], **links}
        protocols = {"signal": Protocol(base * MICRO, links, message * MICRO)}
        if self.packed:
            base, message, slowness = rest[-3:]
            protocols["packed"] = Protocol(base * MICRO, {"mapped": _link(0.0, slowness)}, message * MICRO)
        settings = self.origin["settings"]
        return Profile(
            "tuned",
            f"measured by tricoll tune: {self.target}",
            protocols,
            multicast=self.origin["multicast"],
            channels=settings["channels"],
            slot_bytes=settings["slot_bytes"],
            window=settings["window"],
            shared=self.shared,
            overheads=overheads,
            provenance=self.origin,
        )


def _link(alpha: float, slowness: float) -> Link:
    return Link(alpha * MICRO, 1e3 / (slowness * MICRO))


def predict(points: Sequence[Point], profile: Profile, topology: Topology) -> Any:
    """Seconds by the model, an array. NaN if it has none."""
    found = [cost.predict(p.algorithm, p.collective, p.nbytes, topology, profile) for p in points]
    return np.array([c.time if c.steps else math.nan for c in found])


def _cases(points: Sequence[Point]) -> list[tuple[str, int]]:
    return sorted({(point.collective, point.nbytes) for point in points})


def _judge(
    collective: str, nbytes: int, points: Sequence[Point], profile: Profile, target: Target, held_out: bool
) -> Judged:
    measured = {p.algorithm: p.seconds for p in points if (p.collective, p.nbytes) == (collective, nbytes)}
    chosen = cost.best(collective, nbytes, target.topology, profile, available=list(measured)).algorithm
    best = min(measured, key=lambda name: measured[name])
    return Judged(collective, nbytes, chosen, best, measured[chosen], measured[best], held_out)
