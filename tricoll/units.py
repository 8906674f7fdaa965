"""Sizes, times, rates and counts as people write them: ``25MB``, ``4s``, ``50GB/s``, ``400Gb/s``, ``8e9``, ``70B``."""

from __future__ import annotations

import math
import re

# Of a size. A bare letter, of either case, is a power of two, as in nccl-tests: 1M is 1,048,576 bytes, 1MB 1,000,000.
SIZES = {"": 1.0, "B": 1.0}
for _power, _letter in enumerate("KMGT", 1):
    SIZES |= {
        _letter: 1024.0**_power,
        _letter.lower(): 1024.0**_power,
        f"{_letter}iB": 1024.0**_power,
        f"{_letter}B": 1000.0**_power,
        f"{_letter.lower()}B": 1000.0**_power,
    }
TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0}
RATES = {f"{name}/s": size for name, size in SIZES.items() if name.endswith("B")}
RATES |= {f"{letter}b/s": 1000**power / 8 for power, letter in enumerate("KMGT", 1)}
COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}

_NUMBER = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*(\S*)\s*", re.IGNORECASE)


def _read(text: str, units: dict[str, float], what: str, examples: str) -> float:
    if match := _NUMBER.fullmatch(text):
        try:
            value = float(match[1]) * units[match[2]]
            if math.isfinite(value):
                return value
        except (KeyError, ValueError):
            pass
    raise ValueError(f"{text!r} is not {what}: write {examples}")


def nbytes(text: str) -> int:
    """Bytes: ``4096``, ``25MB`` (10^6), ``25MiB`` or, as in nccl-tests, ``25M`` (2^20)."""
    return round(_read(text, SIZES, "a size", "4096, 25MB (10^6) or 25M (2^20)"))


def seconds(text: str) -> float:
    """Seconds: ``4s``, ``5us``, ``1.5ms``."""
    return _read(text, TIMES, "a time", "4s, 5us or 1.5ms")


def rate(text: str) -> float:
    """Bytes a second: ``50GB/s`` or, in bits, ``400Gb/s``."""
    if value := _read(text, RATES, "a rate", "50GB/s, or 400Gb/s in bits"):
        return value
    raise ValueError(f"{text!r} is not a rate: it must be more than 0")


def count(text: str) -> float:
    """A number of things: ``8e9``, ``8B`` (10^9), ``350M``."""
    return _read(text, COUNTS, "a number", "8e9, 8B (10^9) or 350M")


def _scaled(value: float, steps: list[tuple[float, str]]) -> str:
    for size, name in steps:
        if abs(value) >= size * 0.99995:
            return f"{value / size:.4g} {name}"
    size, name = steps[-1]
    return f"{value / size:.4g} {name}"


def show_bytes(value: float) -> str:
    """``25 MB``: powers of ten, four digits."""
    return _scaled(value, [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")])


def show_seconds(value: float) -> str:
    """``1.614 ms``: four digits."""
    if value == 0:
        return "0 s"
    return _scaled(value, [(1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")])


def show_rate(value: float) -> str:
    """``50 GB/s``: powers of ten."""
    return show_bytes(value) + "/s"
