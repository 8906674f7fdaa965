"""Sizes, times and rates as people write them, and as they are shown."""

import pytest

from tricoll import units


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (units.nbytes, "25MB", 25_000_000),
        (units.nbytes, "25MiB", 25 << 20),
        (units.nbytes, "1M", 1 << 20),
        (units.nbytes, " 4096 ", 4096),
        (units.nbytes, "1.5 kB", 1500),
        (units.nbytes, "1e6", 1_000_000),
        (units.seconds, "4s", 4.0),
        (units.seconds, "5us", 5e-6),
        (units.rate, "50GB/s", 50e9),
        (units.rate, "400Gb/s", 50e9),
        (units.count, "8e9", 8e9),
        (units.count, "70B", 70e9),
        (units.count, "64", 64),
    ],
)
def test_units(read, text, value):
    assert read(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (units.nbytes, "25Mb"), (units.nbytes, ""), (units.nbytes, "-1"), (units.nbytes, "1..2"),
        (units.nbytes, "1e400"),
        (units.seconds, "4"), (units.seconds, "4m"), (units.rate, "50GB"), (units.count, "eight"),
    ],
)  # fmt: skip
def test_bad_units(read, text):
    with pytest.raises(ValueError, match=rf"^'{text}' is not a .*: write "):
        read(text)


def test_a_rate_is_more_than_zero():
    """It is divided by."""
    with pytest.raises(ValueError, match=r"^'0GB/s' is not a rate: it must be more than 0"):
        units.rate("0GB/s")


def test_units_are_shown():
    shown = [units.show_bytes(128e6), units.show_bytes(999.9), units.show_seconds(0.0016138), units.show_rate(5e10)]
    assert shown == ["128 MB", "999.9 B", "1.614 ms", "50 GB/s"]
    assert units.show_seconds(0.99999e-3) == "1 ms" and units.show_seconds(0) == "0 s"
