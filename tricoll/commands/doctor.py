"""``tricoll doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .. import doctor as examining
from ..terminal import console
from .options import usage_errors


def doctor(
    test: Annotated[bool, typer.Option("--test/--no-test", help="Run an all-reduce on each fabric that works.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a bug report, instead.")] = False,
    markdown: Annotated[Path | None, typer.Option(help="Write it to this page, too, between its markers.")] = None,
) -> None:
    """What works on this machine, and what to do about the rest.

    Looks at versions, cores, memory, GPUs, NVSHMEM, the network, environment variables and tuned profiles; then makes a
    real all-reduce on each fabric that works here, and compares every byte with the oracle. Needs nothing but the
    package: what is missing is said. Exits with 1 if a self-test fails, or sim or host cannot be used. Each line is
    explained in docs/doctor.md.

    \b
    Examples:
      tricoll doctor
      tricoll doctor --json > report.json      for a bug report: no hostnames, nothing that tricoll does not know
    """
    with usage_errors(), Console(stderr=True).status("") as status:
        if markdown:
            examining.check_page(markdown)
        report = examining.examine(test, status.update)
    if as_json:
        typer.echo(report.as_json())
    else:
        examining.show(report, console())
    if markdown:
        examining.write(report, markdown)
    if report.failed:
        raise typer.Exit(1)
