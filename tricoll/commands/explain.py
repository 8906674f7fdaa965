"""``tricoll explain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .. import cost, dispatch, plots, units
from .. import explain as explaining
from ..terminal import console
from .options import MACHINES, usage_errors


def explain(
    collective: Annotated[str, typer.Argument(help="all_reduce, reduce_scatter, all_gather, broadcast, ...")],
    nbytes: Annotated[
        str, typer.Option("--bytes", help="Size as in nccl-tests, the whole buffer: 1M (2^20), 1MB (10^6) or 4096.")
    ],
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of the job.")],
    node_size: Annotated[int, typer.Option(min=0, help="Ranks a node. Default: all in one.")] = 0,
    profile: Annotated[str, typer.Option(help=f"The machine's constants: {MACHINES}.")] = "h100",
    reproducible: Annotated[
        bool, typer.Option("--reproducible", help="Only algorithms whose bits do not depend on sizes and places.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also algorithms that this version of tricoll does not have.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw predicted time over size, with crossovers: FILE.png, .svg or .pdf.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (seconds and bytes) instead.")] = False,
) -> None:
    """Which algorithm a collective would take, and why.

    Says by how much it wins, and what each algorithm costs by the alpha-beta model: latency (steps), bandwidth (bytes
    on the busiest link), busbw as in nccl-tests, and how often a value is rounded when a narrower dtype travels.
    Predicted, not measured: docs/cost-model.md.

    \b
    Examples:
      tricoll explain all_reduce --bytes 1M --ranks 64 --node-size 8
      tricoll explain all_reduce --bytes 1M --ranks 8 --reproducible --plot sizes.png
      tricoll explain broadcast --bytes 100MB --ranks 512 --node-size 8 --all --json
    """
    with usage_errors():
        cost.check_collective(collective)
        available = dispatch.having("send" if collective == "send_recv" else collective)
        if not available and not everything:
            raise ValueError(f"this version of tricoll does not have {collective}; --all predicts it all the same")
        topology, constants = cost.Topology(ranks, node_size), cost.load_profile(profile)
        among = None if everything else available
        explanation = cost.explain(
            collective, units.nbytes(nbytes), topology, constants, reproducible=reproducible, available=among
        )
    if as_json:
        typer.echo(json.dumps(explanation.as_dict(), indent=2))
    else:
        explaining.show(explanation, console())
    if plot:
        with usage_errors():
            plots.sizes(explanation, constants, plot, among)
