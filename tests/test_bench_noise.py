"""Intervals of medians and ratios: they cover as often as they say."""

import math
import statistics

import torch

from tricoll.bench import noise


def test_the_interval_of_a_median_covers_it_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(1000):
        sample = torch.rand(11, generator=generator, dtype=torch.float64).exp().tolist()
        interval = noise.median(sample)
        assert interval.median == statistics.median(sample)
        covered += interval.low <= math.exp(0.5) <= interval.high
    assert 930 <= covered <= 1000  # 978.5 are expected: k = 2 of 11


def test_too_few_samples_have_no_interval():
    assert noise.median([1.0] * 5).low == -math.inf
    assert "too few" in str(noise.median([1.0] * 5))
    assert (noise.median([3, 1, 2, 6, 5, 4]).low, noise.median([3, 1, 2, 6, 5, 4]).high) == (1, 6)


def test_ratios():
    slow = [1.0, 2.0, 50.0, 1.5, 1.0, 1.0, 3.0, 1.0]  # what disturbs, disturbs both
    assert noise.paired_ratio([2 * t for t in slow], slow) == noise.Interval(2.0, 2.0, 2.0)
    same = noise.unpaired_ratio([[1.0, 1.1, 0.9, 1.0]], [[1.0, 0.95, 1.05, 1.0]])
    assert same.low < 1 < same.high
    assert noise.unpaired_ratio([[2.0, 2.1, 1.9] * 3], [[1.0, 1.1, 0.9] * 3]).low > 1.5
    # Quiet runs that differ from one another: one of each does not show it, several do.
    quiet = [[t, 1.01 * t, 0.99 * t] * 3 for t in (1.0, 1.6, 1.1, 0.8)]
    assert noise.unpaired_ratio(quiet[1:2], quiet[:1]).low > 1.5
    between = noise.unpaired_ratio(quiet[1:3], [quiet[0], quiet[3]])
    assert between.low < 1.15 < 1.5 < between.high
