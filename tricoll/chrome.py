"""The JSON that chrome://tracing and https://ui.perfetto.dev read: tracks with spans, and arrows between them.

A *process* is a rank and a *track* one of its lanes; times are seconds here, and microseconds in the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

Record = dict[str, Any]


def name(rank: int, track: int, text: str) -> Record:
    """What a track is called."""
    return {"ph": "M", "name": "thread_name", "pid": rank, "tid": track, "args": {"name": text}}


def span(rank: int, track: int, text: str, start: float, end: float, details: dict[str, Any] | None = None) -> Record:
    """Something that lasts."""
    event = {"ph": "X", "name": text, "pid": rank, "tid": track, "ts": 1e6 * start, "dur": 1e6 * (end - start)}
    return event | {"args": details or {}}


def arrow(
    number: int, text: str, source: tuple[int, int], start: float, target: tuple[int, int], end: float
) -> list[Record]:
    """From a (rank, track) to another one, where there are spans at those times. No two arrows have one ``number``."""
    common = {"name": text, "cat": "message", "id": number}
    begin = {"ph": "s", "pid": source[0], "tid": source[1], "ts": 1e6 * start}
    finish = {"ph": "f", "bp": "e", "pid": target[0], "tid": target[1], "ts": 1e6 * end}
    return [common | begin, common | finish]


def write(path: str | os.PathLike[str], records: Iterable[Record]) -> None:
    with open(path, "w") as file:
        json.dump({"traceEvents": list(records), "displayTimeUnit": "ms"}, file)
