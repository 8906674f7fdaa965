"""The command line: ``tricoll --help``."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from .bench.cli import app as bench
from .commands.compile import compile_kernels
from .commands.demo import demo
from .commands.doctor import doctor
from .commands.explain import explain
from .commands.numerics import numerics
from .commands.plan import plan
from .commands.trace import trace
from .commands.tune import tune
from .commands.verify import verify

app = typer.Typer(
    name="tricoll",
    help="Collectives for multi-GPU training, with device code written in Triton.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
app.add_typer(bench)
for command in (demo, numerics, plan, explain, tune, verify, trace, doctor):
    app.command()(command)
app.command("compile")(compile_kernels)


def _version(asked: bool) -> None:
    if asked:
        versions = {name: importlib.metadata.version(name) for name in ("tricoll", "triton", "torch")}
        typer.echo(f"tricoll {versions['tricoll']} (Triton {versions['triton']}, PyTorch {versions['torch']})")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
