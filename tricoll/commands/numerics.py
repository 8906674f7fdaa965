"""``tricoll numerics``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import numerics as table
from .options import dtypes, usage_errors


def numerics(
    ranks: Annotated[
        list[int] | None, typer.Option(min=2, help="World size; may be repeated. Default: 2 4 8 16 32 64.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="input:wire:output, or one dtype for all three; floats.")
    ] = "fp32:bf16:bf16",
    node_size: Annotated[int, typer.Option(min=1, help="Ranks a node, for the hierarchical algorithm.")] = 8,
    elements: Annotated[int, typer.Option(min=1, help="In each rank's tensor.")] = 2**16,
    seed: Annotated[int, typer.Option(min=0, help="Of the data.")] = 0,
    markdown: Annotated[Path | None, typer.Option(help="Replace the tables of this file, between its markers.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the error over the ranks to this file (.png, .svg, .pdf).")
    ] = None,
) -> None:
    """Measure how far every algorithm's sum is from the exact one. Needs no GPU and no other process.

    The sums are those of tricoll.oracle, which says what the kernels give, bit for bit. Use it to choose an algorithm
    and a wire dtype: a ring with BF16 on the wire rounds at every hop, the direct algorithms once.

    \b
    Examples:
      tricoll numerics --plot error.png
      tricoll numerics --ranks 8 --ranks 16 --dtype fp32:fp16:fp32
      tricoll numerics --markdown docs/numerics.md      write the table of the documentation again
    """
    triples = dtypes([dtype])
    if len(triples) != 1 or not all(d.is_floating_point for d in triples[0]):
        raise typer.BadParameter(f"{dtype!r} is not one combination of floats", param_hint="--dtype")
    with usage_errors():
        table.run(ranks or table.RANKS, triples[0], node_size, elements, seed, markdown, plot)
