"""A timeline of gradient buckets: they wait until they are full, and then for each other.

Backward produces the gradients of the last layers first. They are collected in buckets; when a bucket is full, its
all-reduce is started, on one communication stream, so that buckets wait for each other. What is still running when
backward ends is *exposed*: the step waits for it. Li et al., "PyTorch Distributed", 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..units import show_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_BUCKETS = 10_000_000  # of a timeline: more would only take memory


@dataclass(frozen=True)
class Timeline:
    """Buckets in the order in which they are sent. Float64 arrays, one element a bucket: bytes, and seconds since
    backward began at which the bucket is ready, and its all-reduce starts and ends. ``backward``: seconds."""

    sizes: NDArray[np.float64]
    ready: NDArray[np.float64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    backward: float

    @property
    def communication(self) -> float:
        """Seconds in which the communication stream works."""
        return float((self.end - self.start).sum())

    @property
    def exposed(self) -> float:
        """Seconds from the end of backward to the end of the last all-reduce."""
        return max(0.0, float(self.end[-1]) - self.backward)

    @property
    def hidden(self) -> float:
        """Seconds of communication during backward."""
        return float(np.minimum(self.end, self.backward).sum() - np.minimum(self.start, self.backward).sum())

    @property
    def last_buckets(self) -> float:
        """When the last three buckets begin to be filled: since then it is worth a closer look."""
        return float(self.ready[-4]) if len(self.ready) > 3 else 0.0

    @property
    def total(self) -> float:
        """Seconds from the start of backward until gradients are there."""
        return max(self.backward, float(self.end[-1]))


def bucket_sizes(total: float, bucket: float) -> NDArray[np.float64]:
    """``total`` bytes cut into buckets in reverse order of the layers: full ones, then what is left.

    Args:
        bucket: bytes of a bucket.

    Raises:
        ValueError: a size is not positive, or there would be more than ``MOST_BUCKETS``.
    """
    if not (bucket > 0 and total > 0):
        raise ValueError(f"cannot cut {total:.0f} bytes into buckets of {bucket:.0f}: both have to be more than 0")
    full, rest = divmod(total, bucket)
    if full > MOST_BUCKETS:
        raise ValueError(f"buckets of {show_bytes(bucket)} are {full:.3g}: take larger ones, at most {MOST_BUCKETS:,}")
    sizes = np.full(int(full) + (rest > 0), bucket, np.float64)
    if rest:
        sizes[-1] = rest
    return sizes


def ready_times(sizes: NDArray[np.float64], backward: float) -> NDArray[np.float64]:
    """When each bucket is full if backward produces gradients at a constant rate, over ``backward`` seconds.

    Args:
        sizes: bytes of each bucket.
    """
    return backward * np.cumsum(sizes) / sizes.sum()


def timeline(
    sizes: NDArray[np.float64], ready: NDArray[np.float64], seconds: NDArray[np.float64], backward: float
) -> Timeline:
    """One stream: a bucket starts when it is ready and the one before it has ended.

    All arrays have one element a bucket; ``ready`` may be any times, such as measured ones.

    Args:
        sizes: bytes of each bucket.
        ready: when each is full, in seconds since backward began.
        seconds: that its all-reduce takes.
        backward: seconds that backward takes.
    """
    # end[i] = max over j <= i of ready[j] + the seconds of j..i
    done = np.cumsum(seconds)
    end = done + np.maximum.accumulate(ready - (done - seconds))
    return Timeline(sizes, ready, end - seconds, end, backward)


def uniform_timeline(total: float, bucket: float, backward: float, seconds: Callable[[float], float]) -> Timeline:
    """``total`` bytes in buckets of ``bucket``, ready at a constant rate; ``seconds(size)`` is an all-reduce's time.

    Args:
        backward: seconds that backward takes.
    """
    sizes = bucket_sizes(total, bucket)
    times = np.full(len(sizes), seconds(float(sizes[0])))
    times[-1] = seconds(float(sizes[-1]))
    return timeline(sizes, ready_times(sizes, backward), times, backward)


def best_bucket(total: float, backward: float, seconds: Callable[[float], float]) -> Timeline:
    """The timeline that ends first, over bucket sizes from 64 KiB to everything, a tenth of a factor of 2 apart.

    Small buckets leave little exposed, until their latencies add up to more than backward.

    Args:
        total: bytes of gradients.
        backward: seconds that backward takes.
        seconds: the time of an all-reduce of so many bytes, in seconds.

    Returns:
        That of the bucket size that exposes least.
    """
    smallest = max(2.0**16, total / MOST_BUCKETS)
    steps = max(0, math.ceil(10 * math.log2(total / smallest)))
    sizes = [float(round(smallest * 2 ** (i / 10))) for i in range(steps)] + [total]
    # From the largest on: of equal ones, the fewer buckets.
    return min((uniform_timeline(total, s, backward, seconds) for s in reversed(sizes)), key=lambda t: t.total)
