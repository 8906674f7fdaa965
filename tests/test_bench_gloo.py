"""The host fabric is worth having: its time as a ratio to Gloo's, measured in the same run."""

import pytest

from tricoll.bench import gloo


@pytest.mark.parametrize(
    ("numel", "count", "limit"),
    [(1 << 24, 10, 1.0), (1 << 22, 10, 1.5), (1000, 100, 8.0)],
    ids=["64 MiB", "16 MiB", "4 kB"],
)
def test_time_of_an_all_reduce(pool, numel, count, limit):
    """FP32 gradients with BF16 on the wire, 4 ranks, median of the slowest rank's times."""
    ours, theirs = gloo.measure(pool(4), numel, count)
    assert ours < limit * theirs, f"{ours * 1e3:.3f} ms, and Gloo {theirs * 1e3:.3f} ms"
