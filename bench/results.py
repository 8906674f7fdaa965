"""A benchmark's rows, what they were measured with, and their files: JSON as nccl-tests writes it (and more), CSV."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from tricoll.tuned import processor

from .collective import busbw_factor
from .measure import Case, Seen, Side

TYPES = {  # as nccl-tests spells them
    "int8": torch.int8, "uint8": torch.uint8, "int32": torch.int32, "int64": torch.int64, "half": torch.float16,
    "float": torch.float32, "double": torch.float64, "bfloat16": torch.bfloat16, "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
}  # fmt: skip
AVERAGES = ("rank 0", "mean of the ranks", "fastest rank", "slowest rank")  # by the number that -a takes


@dataclass
class Timing:
    """Out of place, or in place. Times are microseconds a call, bandwidths GB/s (1e9 bytes)."""

    time: float  # median of the samples
    alg_bw: float
    bus_bw: float
    nwrong: int | None  # elements, all ranks and data sets together; None if nothing was checked
    min: float  # the fastest rank's, median of the samples
    max: float  # the slowest rank's
    samples: list[float] = field(default_factory=list)


@dataclass
class Row:
    """One size, type, op and root, of one backend."""

    backend: str
    collective: str
    ranks: int
    size: int  # bytes of the larger of a rank's two buffers
    count: int  # elements, nccl-tests' way
    type: str
    redop: str
    root: int
    out_of_place: Timing
    in_place: Timing
    max_ulps: float | None = None  # of sums of positive normal numbers
    rms: float | None = None  # error, relative, of sums of normal numbers
    sent: int | None = None  # bytes of payload a call, the rank that sends most
    choice: str | None = None  # the dispatcher's algorithm


def bandwidths(collective: str, nbytes: int, seconds: float, n: int) -> tuple[float, float]:
    """algbw and busbw in GB/s (1e9 bytes) of a buffer of ``nbytes``; 0 where no time has passed."""
    algbw = nbytes / seconds / 1e9 if seconds > 0 else 0.0
    return algbw, algbw * busbw_factor(collective, n)


def row(case: Case, counts: tuple[int, int, int], ranks: Sequence[Seen], average: int) -> Row:
    """What all ranks saw of one backend, as one row. ``average``: a number of AVERAGES."""
    count, x_numel, out_numel = counts
    n, nbytes = len(ranks), max(x_numel, out_numel) * case.dtype.itemsize
    name = next(name for name, dtype in TYPES.items() if dtype == case.dtype)
    ulps = [seen.ulps for seen in ranks if seen.ulps is not None]
    scale = sum(seen.scale for seen in ranks)
    out_of_place, in_place = (_timing(case, nbytes, [seen.sides[side] for seen in ranks], average) for side in (0, 1))
    return Row(
        ranks[0].label, case.collective, n, nbytes, count, name, case.op, case.root,
        out_of_place, in_place,
        max_ulps=max(ulps) if ulps else None,
        rms=(sum(seen.error for seen in ranks) / scale) ** 0.5 if scale else None,
        sent=max((seen.sent for seen in ranks if seen.sent is not None), default=None),
        choice=ranks[0].choice,
    )  # fmt: skip


def _timing(case: Case, nbytes: int, sides: Sequence[Side], average: int) -> Timing:
    combine = (lambda of_ranks: of_ranks[0], statistics.fmean, min, max)[average]
    samples = [combine(of_ranks) for of_ranks in zip(*(side.seconds for side in sides), strict=True)]
    fastest, slowest = (
        statistics.median(pick(of_ranks) for of_ranks in zip(*(side.seconds for side in sides), strict=True))
        for pick in (min, max)
    )
    seconds = statistics.median(samples)
    algbw, busbw = bandwidths(case.collective, nbytes, seconds, len(sides))
    wrong = sum(side.wrong for side in sides) if case.check else None
    us = [1e6 * s for s in samples]
    return Timing(1e6 * seconds, algbw, busbw, wrong, 1e6 * fastest, 1e6 * slowest, us)


@dataclass
class Report:
    """A whole run."""

    kind: str  # the benchmark's name
    command: str
    config: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=lambda: machine())
    start_time: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    results: list[dict[str, Any]] = field(default_factory=list)
    comparisons: list[dict[str, Any]] = field(default_factory=list)
    unavailable: list[str] = field(default_factory=list)  # what could not be measured, and why
    failed: bool = False

    @property
    def wrong(self) -> int:
        """Elements that were wrong, in all rows."""
        return sum(r[side]["nwrong"] or 0 for r in self.results for side in ("out_of_place", "in_place") if side in r)

    def bus_bandwidth(self, backend: str) -> float:
        """The mean busbw of a backend's rows, out of place and in place, GB/s."""
        own = [
            r[side]["bus_bw"] for r in self.results if r["backend"] == backend for side in ("out_of_place", "in_place")
        ]
        return statistics.fmean(own) if own else 0.0

    def add(self, one: Row) -> None:
        """A row."""
        self.results.append(asdict(one))

    def write_json(self, path: Path) -> None:
        """nccl-tests' keys, with more of our own."""
        report = asdict(self)
        report["tricoll_format"] = 1
        if self.results and "out_of_place" in self.results[0]:
            report["out_of_bounds"] = {"count": self.wrong, "okay": self.wrong == 0}
            report["average_bus_bandwidth"] = {"bandwidth": self.bus_bandwidth(self.results[0]["backend"])}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n")

    def write_csv(self, path: Path) -> None:
        """One line a row, without the samples."""
        flat = [_flat(r) for r in self.results]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for r in flat for key in r)))
            writer.writeheader()
            writer.writerows(flat)


def read_json(path: Path) -> dict[str, Any]:
    """A report that :meth:`Report.write_json` has written. Raises ValueError if it is something else."""
    try:
        report = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a benchmark's JSON: {error}") from None
    if not isinstance(report, dict) or report.get("tricoll_format") != 1:
        raise ValueError(f"{path} was not written by tricoll bench -J")
    return report


def _flat(of: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in of.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}_")
        elif not isinstance(value, list):
            flat[prefix + key] = value
    return flat


def machine() -> dict[str, Any]:
    """What this runs on, without its name."""
    packages = ("tricoll", "torch", "triton", "numpy")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in packages},
        "gpus": gpus,
        "load_average": round(os.getloadavg()[0], 2),  # over the minute before the start
    }
