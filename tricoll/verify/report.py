"""What probes found, as a table, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import torch
from rich.table import Table
from rich.text import Text

from .outcome import GOOD, Verdict
from .probe import Probe
from .session import Session

STYLES = {"right": "green", "yes": "green", "refused": "yellow", "no": "yellow"}
LEGEND = (
    "right, wrong: as it must be, or not. yes, no: a property that not every library promises. refused: an error on "
    "every rank. garbage: ranks that disagree got values instead of an error. crash, hang: of the process."
)


def table(found: Sequence[tuple[Probe, Verdict]]) -> Table:
    """A row a probe: what was found and, where that is not right, the smallest call that shows it."""
    shown = Table(box=None, padding=(0, 2, 0, 0))
    shown.add_column("", no_wrap=True)
    shown.add_column("found", no_wrap=True)
    shown.add_column("what was seen; the smallest example")
    for probe, verdict in found:
        style = STYLES.get(verdict.mark, "bold red")
        text = Text(verdict.text)
        if example := _shown(verdict):
            text.append(f"\n{example}", "dim")
        shown.add_row(probe.name, Text(verdict.mark, style), text)
    return shown


def markdown(found: Sequence[tuple[Probe, Verdict]]) -> str:
    """The same as a table of Markdown."""
    clean = lambda text: text.replace("|", "\\|").replace("\n", " ")
    rows = ["| | found | what was seen | smallest example |", "|---|---|---|---|"]
    for probe, v in found:
        rows.append(f"| {probe.name} | {v.mark} | {clean(v.text)} | {clean(_shown(v))} |")
    return "\n".join(rows) + "\n"


def as_json(session: Session, found: Sequence[tuple[Probe, Verdict]]) -> str:
    """The same for programs."""
    rows = [{"probe": probe.name, "question": probe.question, **asdict(verdict)} for probe, verdict in found]
    about = {"backend": session.backend, "ranks": session.ranks, "timeout": session.timeout, "torch": torch.__version__}
    return json.dumps({**about, "rows": rows}, indent=1) + "\n"


def defects(found: Sequence[tuple[Probe, Verdict]]) -> int:
    """How many probes found what no library should do."""
    return sum(verdict.mark not in GOOD for _, verdict in found)


def _shown(verdict: Verdict) -> str:
    # The example, where something is not as one would like it.
    return "" if verdict.mark in ("right", "yes") else verdict.example
