"""The benchmark's sizes."""

import pytest
import typer

from tricoll.bench import options


def test_sizes():
    assert [options.size(t, "-b") for t in ("8", "1K", "16M", "1G", "0.5k", "2MiB")] == [
        8, 1024, 1 << 24, 1 << 30, 512, 2 << 20,
    ]  # fmt: skip
    assert options.sizes(1024, 1 << 20, 0, 4) == [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20]
    assert options.sizes(100, 250, 50, 4) == [100, 150, 200, 250]
    assert options.sizes(1, 4, 0, 1.1) == [1, 2, 3, 4]
    for wrong in ((2, 1, 0, 2), (1, 2, 0, 1), (0, 2, 0, 2)):
        with pytest.raises(typer.BadParameter):
            options.sizes(*wrong)
    with pytest.raises(typer.BadParameter, match="'1Q' is not a size"):
        options.size("1Q", "-b")
