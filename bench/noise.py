"""What can be said about times that were taken on a machine that others use, too: order statistics, no assumptions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A median, and what it lies between with the confidence of CONFIDENCE; infinite ends where there is no saying."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        known = math.isfinite(self.low)
        return f"{self.median:.3f} " + (f"[{self.low:.3f}, {self.high:.3f}]" if known else "[too few samples]")


def median(values: Sequence[float]) -> Interval:
    """The median of independent samples of any distribution, with its confidence interval.

    Between the k-th smallest and the k-th largest of m lies the median with the probability 1 - 2 P(B < k), where B is
    binomial (m, 1/2); k is the largest for which that is at least CONFIDENCE. It takes 6 samples to have one.
    """
    ordered, m = numpy.sort(numpy.asarray(values, dtype=float)), len(values)
    k, below = 0, 0.0
    while (following := below + math.comb(m, k) / 2.0**m) <= (1 - CONFIDENCE) / 2:
        k, below = k + 1, following
    low, high = (ordered[k - 1], ordered[m - k]) if k else (-math.inf, math.inf)
    return Interval(float(numpy.median(ordered)), float(low), float(high))


def paired_ratio(a: Sequence[float], b: Sequence[float]) -> Interval:
    """How long a takes relative to b, sample by sample: what disturbs both of a pair does not count."""
    return median([x / y for x, y in zip(a, b, strict=True)])


def unpaired_ratio(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], resamples: int = 1000) -> Interval:
    """How long a takes relative to b, each the samples of one or more runs that have nothing to do with one another.

    A bootstrap of both medians, of runs and of the samples in them: with several runs of each, what differs from run
    to run is in the interval; with one, it cannot be.
    """
    random = numpy.random.default_rng(0)  # the same data always give the same verdict
    medians = [_medians([numpy.asarray(run, dtype=float) for run in runs], resamples, random) for runs in (a, b)]
    tail = (1 - CONFIDENCE) / 2
    low, high = numpy.quantile(medians[0] / medians[1], (tail, 1 - tail))
    ratio = numpy.median(numpy.concatenate(list(a))) / numpy.median(numpy.concatenate(list(b)))
    return Interval(float(ratio), float(low), float(high))


def _medians(runs: list[Any], resamples: int, random: Any) -> Any:
    drawn = random.integers(len(runs), size=(resamples, len(runs)))
    return numpy.array([numpy.median([random.choice(runs[r], len(runs[r])) for r in each]) for each in drawn])
