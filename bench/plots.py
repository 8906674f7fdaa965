"""Pictures of results, for :mod:`tricoll.bench.report`. Needs matplotlib: ``pip install "tricoll[bench]"``."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tricoll import numerics
from tricoll import plots as pictures

Rows = Sequence[dict[str, Any]]
MARKERS = "osD^vx*P"


def figures(reports: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    """(name, what is to be seen, matplotlib figure) of everything that these reports have."""
    for number, report in enumerate(reports):
        kind, rows = report["kind"], report["results"]
        name = kind if len(reports) == 1 else f"{number + 1}_{kind}"
        if not rows:
            continue
        if kind == "gradients":
            yield f"{name}_time", "Time to average FP32 gradients in place, of the slowest rank.", gradients(rows)
        elif kind == "overlap":
            yield f"{name}_exposed", "Communication that the backward pass does not hide.", overlap(rows)
        else:
            yield f"{name}_busbw", "Bus bandwidth over size, out of place.", bandwidth(rows)
            yield (
                f"{name}_time",
                "Time over size, out of place. Dotted: what the smallest time and the largest bandwidth of each allow.",
                time(rows),
            )
            if report["comparisons"]:
                yield (
                    f"{name}_ratio",
                    "Time relative to others, with 95 % confidence intervals.",
                    ratios(report["comparisons"]),
                )
    points = [
        r for report in reports for r in report["results"] if r.get("rms") and r.get("collective") == "all_reduce"
    ]
    if points:
        yield (
            "accuracy",
            "Relative RMS error of sums of normal numbers; lines are what tricoll.oracle says.",
            accuracy(points),
        )


def _axes(x: str, y: str) -> tuple[Any, Any]:
    figure, axes = pictures.figure(7, 4.2)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, which="major", alpha=0.3)
    return figure, axes


def _logarithmic(axes: Any, *names: str) -> None:
    """Logarithmic axes with ticks at 1, 2 and 5 and plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    for name in names:
        axes.set(**{f"{name}scale": "log"})
        axis = getattr(axes, f"{name}axis")
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")


def _by(rows: Rows, key: Callable[[dict[str, Any]], str]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _labels(rows: Rows) -> Callable[[dict[str, Any]], str]:
    """What tells rows apart: the backend, and the type, op and root where there are several."""
    several = [key for key in ("type", "redop", "root") if len({row[key] for row in rows}) > 1]
    return lambda row: " ".join([row.get("backend", ""), *(str(row[key]) for key in several)])


def _sizes(axes: Any, rows: Rows, key: str = "size") -> None:
    axes.set_xscale("log", base=2)
    ticks = sorted({row[key] for row in rows})
    ticks = ticks[:: math.ceil(len(ticks) / 9)]
    axes.set_xticks(ticks, [_bytes(tick) for tick in ticks], minor=False)
    axes.minorticks_off()


def _bytes(n: float) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if n >= unit:
            return f"{n / unit:.3g} {name}"
    return f"{n:g} B"


def bandwidth(rows: Rows) -> Any:
    """busbw over size."""
    rows = [row for row in rows if row["size"]]
    figure, axes = _axes("size", "busbw (GB/s)")
    for marker, (label, own) in zip(MARKERS * 9, _by(rows, _labels(rows)).items()):
        axes.plot(
            [r["size"] for r in own], [r["out_of_place"]["bus_bw"] for r in own], marker=marker, ms=4, label=label
        )
    _sizes(axes, rows)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    return figure


def time(rows: Rows) -> Any:
    """Time over size, with floors."""
    rows = [row for row in rows if row["size"]]
    figure, axes = _axes("size", "time (us)")
    for marker, (label, own) in zip(MARKERS * 9, _by(rows, _labels(rows)).items()):
        sizes, times = [r["size"] for r in own], [r["out_of_place"]["time"] for r in own]
        (line,) = axes.plot(sizes, times, marker=marker, ms=4, label=label)
        per_byte = min(t / s for t, s in zip(times, sizes))
        floor = [max(min(times), per_byte * s) for s in sizes]
        axes.plot(sizes, floor, ":", color=line.get_color(), lw=1)
    _logarithmic(axes, "y")
    _sizes(axes, rows)
    axes.legend(fontsize="small")
    return figure


def ratios(comparisons: Rows) -> Any:
    """The first backend's time relative to the others'."""
    comparisons = [c for c in comparisons if c["size"]]
    figure, axes = _axes("size", f"time of {comparisons[0]['backend']} / time of the other")
    label = _labels(comparisons)
    for marker, (peer, own) in zip(
        MARKERS * 9, _by(comparisons, lambda c: f"to {c['to']} {label(c | {'backend': ''})}").items()
    ):
        middle = [c["ratio"] for c in own]
        low = [c["ratio"] - (c["ratio"] if c["low"] is None else c["low"]) for c in own]
        high = [(c["ratio"] if c["high"] is None else c["high"]) - c["ratio"] for c in own]
        axes.errorbar([c["size"] for c in own], middle, yerr=(low, high), marker=marker, ms=4, capsize=3, label=peer)
    axes.axhline(1, color="black", lw=0.8)
    _logarithmic(axes, "y")
    _sizes(axes, comparisons)
    axes.legend(fontsize="small")
    return figure


@functools.cache
def _oracle() -> list[numerics.Measured]:
    dtypes = (torch.float32, torch.bfloat16, torch.float32)
    return list(numerics.measure((2, 4, 8, 16, 32, 64), dtypes, elements=2**13))


def accuracy(points: Rows) -> Any:
    """Errors over the number of ranks: what was measured, on the lines of the oracle."""
    figure, axes = _axes("ranks", "relative RMS error")
    found = _oracle()
    for case in numerics.CASES:
        line = [(m.ranks, m.rms) for m in found if m.case == case]
        name = str(case) if case.fp32_wire else f"{case}, BF16 wire"
        axes.plot(*zip(*line), lw=1, alpha=0.6, label=f"{name} (oracle)")
    for marker, (label, own) in zip(MARKERS * 9, _by(points, lambda r: f"{r['backend']}, {r['type']}").items()):
        last = list({r["ranks"]: r for r in own}.values())  # of the largest size
        axes.plot([r["ranks"] for r in last], [r["rms"] for r in last], marker, ms=6, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(fontsize="x-small", ncols=2)
    return figure


def gradients(rows: Rows) -> Any:
    """Time over the bucket's size."""
    figure, axes = _axes("bucket (MB of FP32)", "time (ms)")
    for marker, (label, own) in zip(MARKERS, _by(rows, lambda r: r["backend"]).items()):
        axes.plot([r["size"] / 1e6 for r in own], [r["time"] / 1e3 for r in own], marker=marker, ms=4, label=label)
    _logarithmic(axes, "x", "y")
    axes.legend(fontsize="small")
    return figure


def overlap(rows: Rows) -> Any:
    """Exposed communication over the bucket's size, measured and predicted."""
    figure, axes = _axes("bucket (MB of FP32)", "exposed communication (ms a step)")
    for marker, (label, own) in zip(MARKERS, _by(rows, lambda r: r["backend"]).items()):
        sizes = [r["bucket_mb"] for r in own]
        (line,) = axes.plot(sizes, [r["exposed"] / 1e3 for r in own], marker=marker, ms=4, label=f"{label}, measured")
        axes.plot(
            sizes, [r["predicted"] / 1e3 for r in own], "--", color=line.get_color(), lw=1, label=f"{label}, predicted"
        )
    _logarithmic(axes, "x")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    return figure
