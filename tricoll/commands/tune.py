"""``tricoll tune``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import units
from ..ranks import started
from ..terminal import console
from ..tune import report, session
from ..tune.measure import Grid, sizes
from .options import usage_errors


def tune(
    ranks: Annotated[int, typer.Option(min=2, help="Local ranks to start; under torchrun, its ranks are used.")] = 4,
    fabric: Annotated[
        str,
        typer.Option(help="host, nvshmem (a GPU a rank), openshmem; auto: nvshmem under torchrun on GPUs, else host."),
    ] = "auto",
    link: Annotated[str, typer.Option(help="mapped, put, or auto as in tricoll.init.")] = "auto",
    node_size: Annotated[int, typer.Option(min=0, help="Ranks a node. Default: all in one.")] = 0,
    least: Annotated[
        str, typer.Option("--min-bytes", help="Smallest size, of the whole buffer: 1K (2^10), 1kB (10^3).")
    ] = "1K",
    most: Annotated[str, typer.Option("--max-bytes", help="Largest size.")] = "64M",
    factor: Annotated[float, typer.Option(min=1.1, help="From one size to the next.")] = 2.0,
    calls: Annotated[int, typer.Option(min=1, help="Timed calls of each algorithm at each size in a pass.")] = 3,
    passes: Annotated[int, typer.Option(min=1, help="Passes over everything; medians are taken over all.")] = 5,
    output: Annotated[
        Path | None, typer.Option(help="Where the profile goes. Default: where tricoll.init looks for it.")
    ] = None,
    samples: Annotated[
        Path | None, typer.Option(help="Where samples are kept, to go on from. Default: next to the profiles.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget samples that there are, and measure again.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw measured and fitted time over size: FILE.png, .svg or .pdf.")
    ] = None,
) -> None:
    """Measure, so that algo="auto" chooses by figures, not by guesses.

    Times every algorithm of all_reduce, reduce_scatter, all_gather and broadcast, fits the constants of the cost model,
    tells how well they predict sizes that were kept out of the fit, and stores them as a profile for this machine,
    fabric, number of ranks and kind of links. A run that was stopped goes on where it was. Measure on a quiet machine.

    \b
    Examples:
      tricoll tune --ranks 4 --plot tuned.png                  some minutes
      tricoll tune --ranks 2 --max-bytes 1M --passes 2         a first look
      torchrun --nproc-per-node 4 --no-python tricoll tune     with the ranks of a job; on GPUs, if they have one each
    """
    with usage_errors():
        grid = Grid(sizes(units.nbytes(least), units.nbytes(most), factor), calls, passes)
        with started(ranks) as all_ranks:
            done = session.run(
                all_ranks, grid, fabric=fabric, link=link, node_size=node_size or None, samples=samples, fresh=fresh,
                output=output,
            )  # fmt: skip
        if done.fit is None:
            return  # rank 0 reports
        report.show(done.fit, console())
        typer.echo(f"\nprofile: {done.profile}\nsamples: {done.samples}")
        if plot:
            report.draw(done.fit, plot)
