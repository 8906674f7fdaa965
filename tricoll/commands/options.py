"""What options of several commands have in common: how they are read, and what is said if they are wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from ..cost import PROFILES

if TYPE_CHECKING:
    import torch

MACHINES = f"{', '.join(PROFILES)}, or a JSON file"  # what --profile takes


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """What is wrong with arguments, or missing for what they ask for, is said in a line; exit code 2."""
    try:
        yield
    except (ValueError, ImportError, OSError) as error:
        typer.echo(f"tricoll: {error}", err=True)
        raise typer.Exit(2) from None


def dtypes(given: list[str] | None) -> list[tuple[torch.dtype, torch.dtype, torch.dtype]]:
    """input:wire:output as an option has it, once or more often. None: what the gradient hooks send."""
    from ..compile import BF16_WIRE, DTYPES
    from ..tensors import as_dtype, can_convert

    chosen: list[tuple[torch.dtype, torch.dtype, torch.dtype]] = []
    for text in given or ():
        if text == "all":
            chosen += DTYPES
            continue
        try:
            names = [as_dtype(name) for name in text.split(":")]
        except TypeError as error:
            raise typer.BadParameter(str(error), param_hint="--dtype") from None
        if len(names) not in (1, 3):
            raise typer.BadParameter(f"{text!r} is not input:wire:output", param_hint="--dtype")
        x, wire, out = names * (3 // len(names))
        if not can_convert(x, wire) or not can_convert(wire, out):
            raise typer.BadParameter(f"{text}: casts are among fp32, fp16 and bf16", param_hint="--dtype")
        chosen.append((x, wire, out))
    return chosen or [BF16_WIRE]
