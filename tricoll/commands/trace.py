"""``tricoll trace``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import cost, units
from .. import trace as tracing
from .options import MACHINES, usage_errors


def trace(
    collective: Annotated[str, typer.Argument(help="all_reduce, reduce_scatter, all_gather, broadcast, ...")] = "",
    algo: Annotated[
        str, typer.Option(help="ring, tree, one_shot, two_shot, hierarchical, multimem, or auto.")
    ] = "auto",
    ranks: Annotated[int, typer.Option(min=1, help="Simulated ranks; a picture shows up to 16.")] = 4,
    nbytes: Annotated[
        str, typer.Option("--bytes", help="Size of the whole buffer, FP32: 64K (2^16), 1MB (10^6) or 4096.")
    ] = "64K",
    link: Annotated[str, typer.Option(help="mapped, put, or auto as in tricoll.init.")] = "auto",
    delivery: Annotated[
        str, typer.Option(help="prompt, or adversarial: as late and out of order as the memory model allows.")
    ] = "prompt",
    seed: Annotated[int, typer.Option(help="Of the scheduler.")] = 0,
    node_size: Annotated[int, typer.Option(min=0, help="Ranks a node. Default: all in one.")] = 0,
    root: Annotated[int, typer.Option(min=0, help="Of a broadcast, reduce, gather or scatter.")] = 0,
    absent: Annotated[
        list[int] | None, typer.Option(help="A rank that does not make the call; may be repeated. Shows who waits.")
    ] = None,
    alpha: Annotated[str, typer.Option(help="Latency of a message.")] = "5us",
    rate: Annotated[str, typer.Option(help="A rank's rate, to other nodes if there are several.")] = "50GB/s",
    node_alpha: Annotated[str, typer.Option(help="Latency inside a node, if there are several. Default: alpha.")] = "",
    node_rate: Annotated[str, typer.Option(help="A rank's rate inside a node. Default: rate.")] = "",
    profile: Annotated[str | None, typer.Option(help=f"Instead of those: a machine's constants: {MACHINES}.")] = None,
    flags: Annotated[
        bool | None, typer.Option(help="Draw flags without data. Default: if a wait does not end.")
    ] = None,
    messages: Annotated[int, typer.Option(min=0, help="How many the text lists.")] = 40,
    output: Annotated[
        list[Path] | None, typer.Option("--output", "-o", help="FILE.svg, .png or .pdf, or .json for Perfetto; repeat.")
    ] = None,
    pictures: Annotated[Path | None, typer.Option(help="Draw those of docs/algorithms.md into this folder.")] = None,
) -> None:
    """Draw what one call does: who sends what to whom, and who waits.

    Runs the kernels in the simulator, with a virtual clock on which only messages take time. The shape of the links is
    that of the TRICOLL_ variables. If the call deadlocks, what happened up to then is drawn, with the waits that never
    ended, and the exit code is 1. In Python: tricoll.trace.

    \b
    Examples:
      tricoll trace all_reduce --algo ring --ranks 4 --bytes 64K -o ring.svg
      tricoll trace broadcast --algo tree --ranks 8 --link put --delivery adversarial --seed 3 -o tree.png -o tree.json
      tricoll trace all_reduce --algo two_shot --absent 2                        who waits for a rank that is missing
      tricoll trace --pictures docs/pictures                                     the pictures of the documentation
    """
    with usage_errors():
        if pictures:
            for name, run, flagged in tracing.pictures():
                run.draw(pictures / f"{name}.svg", flagged)
                typer.echo(f"{pictures / name}.svg: {run.summary()}")
            return
        if not collective:
            raise ValueError("what is to be traced? One of " + ", ".join(tracing.COLLECTIVES))
        if profile:
            constants = cost.load_profile(profile)
        else:
            between = cost.Link(units.seconds(alpha), units.rate(rate))
            inside = cost.Link(units.seconds(node_alpha or alpha), units.rate(node_rate or rate))
            constants = cost.two_levels(inside if node_size else between, between, "given")
        run = tracing.record(
            collective,
            algo,
            ranks=ranks,
            nbytes=units.nbytes(nbytes),
            link=link,
            delivery=delivery,
            seed=seed,
            node_size=node_size,
            root=root,
            absent=absent or (),
            profile=constants,
        )
        for path in output or ():
            if path.suffix == ".json":
                run.chrome_trace(path)
            else:
                run.draw(path, flags)
    typer.echo(run.summary() if output else run.text(messages))
    if run.error:
        typer.echo(f"\ntricoll: {run.error}", err=True)
        raise typer.Exit(1)
