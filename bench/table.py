"""The table as nccl-tests prints it, to the column, so that what reads nccl-tests' output reads ours.

More columns stand behind theirs, at the end of a line: the fastest and the slowest rank's time (out of place), the
accuracy, and the backend. ``plain`` leaves them out. Everything else that we say begins with ``#``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .results import Row, Timing

WIDTHS = (10, 12, 8, 6, 6, 7, 6, 6, 6, 7, 6, 6, 6)
NAMES = ("size", "count", "type", "redop", "root", *("time", "algbw", "busbw", "#wrong") * 2)
UNITS = ("(B)", "(elements)", "", "", "", *("(us)", "(GB/s)", "(GB/s)", "") * 2)
MORE_WIDTHS = (7, 7, 8, 8)
MORE_NAMES = ("fastest", "slowest", "ulps", "rms err")
MORE_UNITS = ("(us)", "(us)", "", "")


def header(plain: bool, cpu_time: bool = False) -> str:
    """The three lines above the rows."""
    lines = [
        f"# {'':10}  {'':12}  {'':8}  {'':6}  {'':6}           out-of-place                       in-place          "
    ]
    for names, more, last in ((NAMES, MORE_NAMES, "backend"), (UNITS, MORE_UNITS, "")):
        cells = [f"{name:>{width}}" for name, width in zip(names, WIDTHS, strict=True)]
        if not plain:
            cells += [f"{name:>{width}}" for name, width in zip(more, MORE_WIDTHS, strict=True)] + [last]
        lines.append("# " + "  ".join(cells) + (" " if plain else ""))
    text = "\n".join(lines)
    return text.replace("   time", "cputime") if cpu_time else text


def line(row: Row, plain: bool) -> str:
    """A row."""
    text = f"{row.size:12d}  {row.count:12d}  {row.type:>8}  {row.redop:>6}  {row.root:6d}"
    text += _timing(row.out_of_place) + _timing(row.in_place)
    if plain:
        return text
    ulps = "N/A" if row.max_ulps is None else f"{row.max_ulps:.3g}"
    rms = "N/A" if row.rms is None else f"{row.rms:.2e}"
    cells = (number(row.out_of_place.min, 7), number(row.out_of_place.max, 7), f"{ulps:>8}", f"{rms:>8}")
    chosen = "*" if row.choice and row.backend.partition("/")[0] == f"tricoll:{row.choice}" else ""
    return text + "  " + "  ".join(cells) + f"  {row.backend}{chosen}"


def _timing(t: Timing) -> str:
    wrong = "N/A" if t.nwrong is None else f"{t.nwrong:g}"
    return f"  {number(t.time, 7)}  {number(t.alg_bw, 6)}  {number(t.bus_bw, 6)}  {wrong:>6}"


def number(value: float, width: int) -> str:
    """Two decimals, or as many as there is room for."""
    for decimals in (2, 1, 0):
        if len(text := f"{value:{width}.{decimals}f}") <= width:
            return text
    return f"{value:{width}.{1 if width >= 7 else 0}e}"


def footer(wrong: int, bus_bandwidth: float, others: Sequence[tuple[str, float]] = ()) -> Iterator[str]:
    """The lines below the rows. ``others``: what else was measured, and its mean busbw."""
    yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    yield f"# Avg bus bandwidth    : {bus_bandwidth:g} "
    for label, value in others:
        yield f"# Avg bus bandwidth, {label} : {value:g}"
    yield "#"


def ratios(comparisons: Sequence[dict[str, Any]]) -> Iterator[str]:
    """How backends compare, as comments; nothing if there is one only."""
    if not comparisons:
        return
    base = comparisons[0]["backend"]
    yield f"# Time of {base} relative to others, out of place; below 1, it is faster. The median of the ratios of"
    yield "# samples that were taken in turn, and its 95 % confidence interval."
    widths = (10, 8, 6, 6)
    names = zip(("size", "type", "redop", "root"), widths, strict=True)
    yield "# " + "  ".join([*(f"{name:>{width}}" for name, width in names), f"{'ratio':>6}  {'interval':16}  to"])
    for c in comparisons:
        cells = [f"{c[key]:>{width}}" for key, width in zip(("size", "type", "redop", "root"), widths, strict=True)]
        known = c["low"] is not None
        interval = f"[{c['low']:.3f}, {c['high']:.3f}]" if known else "too few samples"
        yield "# " + "  ".join([*cells, f"{c['ratio']:6.3f}  {interval:16}  {c['to']}"])
    yield "#"
