"""Two results of the same benchmark: what became faster or slower, and what cannot be told from noise."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from . import noise

KEYS = (
    "backend",
    "collective",
    "ranks",
    "size",
    "type",
    "redop",
    "root",
    "bucket_mb",
)  # that make a row, where it has them
STYLES = {"faster": "green", "slower": "red", "wrong": "bold red", "unclear": "yellow"}
SIDES = ("out_of_place", "in_place", "")


@dataclass(frozen=True)
class Change:
    """One row in both results.

    Attributes:
        what: the row, in words.
        ratio: the new time relative to the old one.
        verdict: "faster" or "slower" if the whole interval is beyond the threshold; "same" if it is within; "unclear"
            if it is too wide to say; "wrong" if results are wrong that were right.
        times: medians in microseconds, old and new.
    """

    what: str
    ratio: noise.Interval
    verdict: str
    times: tuple[float, float]


def compare(
    old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]], threshold: float = 0.05, relative_to: str = ""
) -> Iterator[Change]:
    """The rows that all results have.

    Args:
        old, new: one run or more of each, as :func:`tricoll.bench.results.read_json` gives them.
        threshold: a change of less than this part is none.
        relative_to: a backend of both results. Times are divided by its, sample by sample, so that a machine that is
            slower today does not count.
    """
    before, after = ([_rows(run, relative_to) for run in runs] for runs in (old, new))
    for key in before[0]:
        if not all(key in rows for rows in [*before, *after]):
            continue
        a, b = ([rows[key] for rows in runs] for runs in (before, after))
        ratio = noise.unpaired_ratio([row["samples"] for row in b], [row["samples"] for row in a])
        if ratio.low > 1 + threshold:
            verdict = "slower"
        elif ratio.high < 1 - threshold:
            verdict = "faster"
        else:
            verdict = "same" if ratio.low >= 1 - threshold and ratio.high <= 1 + threshold else "unclear"
        if any(row["nwrong"] for row in b) and not any(row["nwrong"] for row in a):
            verdict = "wrong"
        old_time, new_time = (statistics.median(row["time"] for row in rows) for rows in (a, b))
        yield Change(" ".join(key), ratio, verdict, (old_time, new_time))


def _rows(report: dict[str, Any], relative_to: str) -> dict[tuple[str, ...], dict[str, Any]]:
    found = {}
    for row in report["results"]:
        for side in SIDES:
            timing = row if side == "" else row.get(side)
            if not timing or "samples" not in timing:
                continue
            key = tuple(str(row[k]) for k in KEYS if k in row and row[k] not in ("none", -1)) + (
                (side,) if side else ()
            )
            found[key] = {"samples": timing["samples"], "time": timing["time"], "nwrong": timing.get("nwrong")}
    if not relative_to:
        return found
    if not any(key[0] == relative_to for key in found):
        raise ValueError(f"there is no backend {relative_to!r} in both results")
    scaled = {}
    for key, row in found.items():
        if key[0] != relative_to and (peer := found.get((relative_to, *key[1:]))):
            scaled[key] = {**row, "samples": [x / y for x, y in zip(row["samples"], peer["samples"], strict=True)]}
    return scaled


def table(changes: Sequence[Change]) -> Table:
    """A line a change."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("", "old (us)", "new (us)", "new / old [95 %]", ""):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for c in changes:
        before, after = (f"{t:.1f}" for t in c.times)
        table.add_row(c.what, before, after, str(c.ratio), Text(c.verdict, STYLES.get(c.verdict, "")))
    return table


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What the two results were not measured with alike: machine, versions, settings."""
    found = []
    for part in ("machine", "config"):
        a, b = old[part], new[part]
        found += [
            f"{key}: {a.get(key)}, {b.get(key)}"
            for key in dict.fromkeys([*a, *b])
            if a.get(key) != b.get(key) and key != "load_average"
        ]
    return found
