"""``tricoll doctor``: what this machine has, what of tricoll works on it, and what to do about the rest.

Every probe stands alone: one that raises becomes a line with the error. See docs/doctor.md.
"""

from __future__ import annotations

import datetime
import functools
import io
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import pages
from . import environment, fabrics, gpu, machine, selftest
from .finding import Finding, Probe, collect, public

if TYPE_CHECKING:
    from rich.console import Console

FORMAT = 1  # of the JSON; raised when a field changes its meaning or goes
SECTIONS: dict[str, tuple[Probe, ...]] = {
    "software": (machine.python, machine.system, machine.packages, machine.extras),
    "machine": (machine.cores, machine.memory, machine.shared_memory, machine.limits),
    "gpu": (gpu.runtime, gpu.driver, gpu.gpus, gpu.nvshmem, gpu.device_bitcode),
    "network": (machine.interfaces, machine.infiniband),
    "environment": (environment.variables, environment.settings),
    "fabrics": (fabrics.availability, fabrics.tuning),
}
TESTS = "self-test"
FATAL = ("fabrics", TESTS)  # a failure there is what the exit code tells
MARKS = {"ok": " ", "absent": "-", "problem": "!", "failed": "x"}
STYLES = {"ok": "", "absent": "dim", "problem": "yellow", "failed": "bold red"}
BEGIN, END = "<!-- tricoll doctor: begin -->", "<!-- tricoll doctor: end -->"


@dataclass(frozen=True)
class Report:
    """What was found, by section."""

    sections: dict[str, list[Finding]]
    tested: bool

    @property
    def failed(self) -> bool:
        """Whether something that should work everywhere does not, or a self-test failed."""
        return any(found.state == "failed" for name in FATAL for found in self.sections.get(name, ()))

    def as_dict(self) -> dict[str, Any]:
        """For bug reports. No values of variables that tricoll does not know, no host's name, no user's folder."""
        taken = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        sections = {name: [public(asdict(found)) for found in findings] for name, findings in self.sections.items()}
        return {
            "format": FORMAT,
            "tricoll": machine.version("tricoll"),
            "taken": taken,
            "tested": self.tested,
            "failed": self.failed,
            "sections": sections,
        }

    def as_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2)


def examine(test: bool = True, progress: Callable[[str], None] = lambda what: None) -> Report:
    """Look at everything; ``test``: run the self-test of each fabric that works here, too."""
    sections = {}
    for name, probes in SECTIONS.items():
        progress(name)
        sections[name] = [found for probe in probes for found in collect(probe.__name__, probe)]
    sections[TESTS] = []
    for found in sections["fabrics"]:
        if test and found.name in fabrics.FABRICS and found.data is True:
            progress(f"{found.name}: all-reduce")
            sections[TESTS] += collect(f"{found.name} test", functools.partial(selftest.probe, found.name))
    return Report(sections, test)


def show(report: Report, console: Console) -> None:
    """Print a report for people."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    for name, findings in report.sections.items():
        if not findings:
            continue
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, min_width=16)
        table.add_column(overflow="fold")
        for found in findings:
            text = Text(public(found.text), STYLES[found.state])
            if found.hint:
                text.append(f"\n-> {public(found.hint)}", "")
            table.add_row(MARKS[found.state], Text(found.name), text)
        console.print(Text(name, "bold"), Padding(table, (0, 0, 0, 1)))
    console.print(Text(verdict(report), "bold"))


def verdict(report: Report) -> str:
    """The last line."""
    every = [found for findings in report.sections.values() for found in findings]
    failed, problems = (sum(found.state == state for found in every) for state in ("failed", "problem"))
    works = [found.name for found in report.sections["fabrics"] if found.data is True]
    counted = lambda n, what: f"{n} {what}{'s' * (n != 1)}"
    tested = "" if report.tested else ", not tested"
    trouble = ", ".join([counted(failed, "failure")] * bool(failed) + [counted(problems, "problem")] * bool(problems))
    return f"works here: {', '.join(works) or 'no fabric'}{tested}; {trouble or 'no problems'}"


def check_page(path: Path) -> None:
    """Raise ValueError if :func:`write` cannot write to a page, before there is work done."""
    pages.around(path, BEGIN, END)


def write(report: Report, path: Path) -> None:
    """Put the report, as it is printed, into a page of the documentation, between BEGIN and END."""
    from rich.console import Console

    before, after = pages.around(path, BEGIN, END)
    text = io.StringIO()
    show(report, Console(width=100, file=text, color_system=None))
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    path.write_text(before + "\n".join(["```text", *lines, "```"]) + "\n" + after)
