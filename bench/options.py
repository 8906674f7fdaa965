"""How the benchmark's flags are read: nccl-tests' sizes, types, ops and roots, backends and algorithms."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import torch
import typer

from tricoll import dispatch, units
from tricoll.tensors import as_dtype

from . import backends
from .results import TYPES

Ngpus = Annotated[int, typer.Option("-g", "--ngpus", min=0, help="Local ranks to start. 0: one a GPU, or 4 without.")]
Fabric = Annotated[
    str,
    typer.Option(
        help="tricoll's: host, nvshmem (a GPU a rank), openshmem; auto: nvshmem under torchrun on GPUs, else host."
    ),
]
Timeout = Annotated[float, typer.Option("-T", "--timeout", min=1, help="Seconds that a rank waits for others.")]
Json = Annotated[Path | None, typer.Option("-J", "--output_file", help="Write everything to this JSON file.")]
Peers = Annotated[str, typer.Option("--backends", help="PyTorch's backends to compare with.")]


def size(text: str, hint: str) -> int:
    """A number of bytes: 1024, 1K (2^10), 16MB (10^6)."""
    try:
        return units.nbytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None


def sizes(first: int, last: int, step: int, factor: float) -> list[int]:
    """From the first to the last, multiplied by ``factor`` or, if ``step`` is given, with that added."""
    if first > last:
        raise typer.BadParameter(f"the first size, {first}, is larger than the last, {last}", param_hint="-b")
    if not step and (factor <= 1 or first < 1):
        raise typer.BadParameter("sizes do not grow: -f must be more than 1, and -b at least 1 byte", param_hint="-f")
    found = [first]
    while (following := found[-1] + step if step else max(found[-1] + 1, int(found[-1] * factor))) <= last:
        found.append(following)
    return found


def dtypes(text: str) -> list[torch.dtype]:
    """Of a name of nccl-tests or of PyTorch, or all."""
    if text == "all":
        return list(TYPES.values())
    with contextlib.suppress(TypeError):
        dtype = TYPES[text] if text in TYPES else as_dtype(text)
        if dtype in TYPES.values():
            return [dtype]
    raise typer.BadParameter(f"{text!r} is not one of {', '.join(TYPES)}, all", param_hint="-d")


def one_of(text: str, known: tuple[str, ...], hint: str) -> list[str]:
    """The names with commas between them, each once and one of ``known``, or all of these."""
    if text == "all":
        return list(known)
    for name in (chosen := text.split(",")):
        if name not in known:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(known)}, all", param_hint=hint)
    return list(dict.fromkeys(chosen))


def measured(names: str, algos: str, of: str) -> tuple[tuple[str, str], ...]:
    """What is measured: tricoll with each algorithm in the place of "tricoll"."""
    having = tuple(dispatch.having("send" if of == "sendrecv" else of))
    chosen = one_of(algos, ("auto", *having), "--algos")
    found: list[tuple[str, str]] = []
    for name in one_of(names, backends.NAMES, "--backends"):
        found += [(name, algo) for algo in chosen] if name == "tricoll" else [(name, "")]
    return tuple(found)


def peers(names: str) -> list[str]:
    """Backends to compare with: tricoll is measured whatever is said."""
    return [name for name in one_of(names, backends.NAMES, "--backends") if name != "tricoll"]


def numbers(text: str, hint: str) -> list[float]:
    """Positive numbers with commas between them."""
    try:
        found = [float(each) for each in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) <= 0:
        raise typer.BadParameter(f"{text!r} is not one or more positive numbers, with commas between", param_hint=hint)
    return found


def roots(text: str, n: int) -> list[int]:
    """A rank of ``n``, or all."""
    if text == "all":
        return list(range(n))
    if not text.isdigit() or int(text) >= n:
        raise typer.BadParameter(f"{text!r} is not a rank: 0 to {n - 1}, or all", param_hint="-r")
    return [int(text)]
