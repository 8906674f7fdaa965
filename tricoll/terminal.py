"""What commands print on: tables on standard output, and progress on standard error."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn


def console(width: int = 100) -> Console:
    """For tables, which need some room: at least ``width`` columns."""
    wide = Console(highlight=False)
    wide.width = max(wide.width, width)
    return wide


def progress(shown: bool = True, percent: bool = False) -> Progress:
    """A progress bar that is gone at the end. ``percent``: of tasks whose parts nobody counts."""
    done = TaskProgressColumn() if percent else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), done, TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown)
