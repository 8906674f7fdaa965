"""``tricoll verify``."""

from __future__ import annotations

import importlib
import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from .. import verify as verifier
from ..terminal import console, progress


def verify(
    backend: Annotated[
        str, typer.Option(help="tricoll, gloo, nccl, or another that torch.distributed knows.")
    ] = "tricoll",
    ranks: Annotated[int, typer.Option("--ranks", "-g", min=3, help="Local ranks; some probes take 8.")] = 4,
    only: Annotated[str, typer.Option(help="Only the probes whose name contains this: mismatch, NaN, exact ...")] = "",
    examples: Annotated[int, typer.Option("--examples", "-n", min=1, help="That each property is tried with.")] = 25,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds, the backend's own; after 10 more, it hangs.")] = 10.0,
    load: Annotated[str, typer.Option("--import", help="A module that registers the backend.")] = "",
    json: Annotated[Path | None, typer.Option("-J", help="Write what was found to this JSON file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table to this Markdown file.")] = None,
) -> None:
    """Ask a collectives backend what it really does.

    Whether sums are exact, and the same bits everywhere; what becomes of NaN and of odd tensors, and what happens if
    ranks disagree or die. Useful with any backend of torch.distributed, whether or not you use tricoll. Every probe
    runs in processes of its own, so that a crash or a hang is a result. Exits with 1 if there are wrong results,
    crashes or hangs, with 2 if the backend is not there.

    \b
    Examples:
      tricoll verify --backend gloo
      tricoll verify --backend nccl --ranks 8 --only mismatch
      tricoll verify --backend ours --import our.package
    """
    session = verifier.Session(backend, ranks, timeout, examples, load)
    probes = verifier.chosen(only)
    if not probes:
        raise typer.BadParameter(f"no probe's name contains {only!r}", param_hint="--only")
    try:
        if load:
            importlib.import_module(load)
        verifier.check_available(backend, ranks)
        with tempfile.TemporaryDirectory() as folder, progress() as bar:
            os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", folder)  # not in whatever folder this is called
            task = bar.add_task("starting ranks", total=len(probes), completed=-1)
            found = verifier.run(session, only, lambda name: bar.update(task, advance=1, description=name))
    except (ImportError, verifier.Unavailable) as error:
        typer.echo(f"tricoll: {error}", err=True)
        raise typer.Exit(2) from None
    console().print(f"{backend}, {ranks} ranks, timeout {timeout:g} s\n", verifier.table(found), "", verifier.LEGEND)
    if json:
        json.write_text(verifier.as_json(session, found))
    if markdown:
        markdown.write_text(verifier.markdown(found))
    if verifier.defects(found):
        raise typer.Exit(1)
