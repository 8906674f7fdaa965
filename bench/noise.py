"""What can be said about times that were taken on a machine that others use, too: order statistics, no assumptions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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


def unpaired_ratio(a: Sequence[float], b: Sequence[float], resamples: int = 2000) -> Interval:
    """How long a takes relative to b, of runs that have nothing to do with each other: bootstrap of both medians."""
    random = numpy.random.default_rng(0)  # the same data always give the same verdict
    medians = [numpy.median(random.choice(numpy.asarray(x, dtype=float), (resamples, len(x))), axis=1) for x in (a, b)]
    tail = (1 - CONFIDENCE) / 2
    low, high = numpy.quantile(medians[0] / medians[1], (tail, 1 - tail))
    return Interval(float(numpy.median(a) / numpy.median(b)), float(low), float(high))
