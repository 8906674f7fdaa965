"""``tricoll demo``."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import demo as training


def demo(
    ranks: Annotated[int, typer.Option(min=1, help="Processes to train with, on this machine's CPU.")] = 4,
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps of each training.")] = 240,
    seed: Annotated[int, typer.Option(help="Of the initial parameters and the batches.")] = 0,
) -> None:
    """Train a digit classifier on this machine's CPU, next to Gloo.

    Local ranks train it with BF16 gradients and, next to that, with Gloo in FP32; the runs are compared step by step.

    \b
    Example:
      tricoll demo --ranks 2 --steps 100
    """
    training.run(nprocs=ranks, steps=steps, seed=seed)
