"""Times that were measured, in a file that a run which was stopped goes on from."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .measure import ITEMSIZE, Grid, elements


@dataclass(frozen=True)
class Point:
    """A measured time: the median of all calls, in seconds."""

    collective: str
    nbytes: int
    algorithm: str
    seconds: float


class Samples:
    """A file with one line about where samples come from, and one for each block that has been measured."""

    def __init__(self, path: Path, origin: Mapping[str, Any]) -> None:
        """Raises ValueError if the file has samples of something else."""
        self.path, self.lines = path, []
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # a line that was being written when the run was stopped does not count
        if whole:
            try:
                there, *self.lines = map(json.loads, whole.splitlines())
            except json.JSONDecodeError as error:
                raise ValueError(f"{path} is not a file with samples ({error}): take another, or delete it") from None
            if there != origin:
                differing = [name for name in origin if not isinstance(there, dict) or there.get(name) != origin[name]]
                each = "; ".join(f"{name} was {there.get(name)}, is {origin[name]}" for name in differing)
                raise ValueError(f"{path} has samples of something else ({each}): --fresh measures again")
            os.truncate(path, len(whole.encode()))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(origin) + "\n")

    def write(self, line: dict[str, Any]) -> None:
        """Add what has been measured, at once."""
        self.lines.append(line)
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")

    def done(self, grid: Grid, world_size: int) -> list[tuple[int, str, int]]:
        """The blocks of a grid that have enough calls."""
        have = {
            (line["pass"], line["collective"], line["nbytes"])
            for line in self.lines
            if any(len(calls) >= grid.calls for calls in line["seconds"].values())
        }
        measured = lambda nbytes: elements(nbytes, world_size) * ITEMSIZE
        return [(p, c, nbytes) for p, c, nbytes in grid.blocks() if (p, c, measured(nbytes)) in have]

    def points(self) -> list[Point]:
        """Medians over all passes."""
        found: dict[tuple[str, int, str], list[float]] = {}
        for line in self.lines:
            for name, calls in line["seconds"].items():
                found.setdefault((line["collective"], line["nbytes"], name), []).extend(calls)
        return [Point(c, nbytes, name, statistics.median(calls)) for (c, nbytes, name), calls in sorted(found.items())]
