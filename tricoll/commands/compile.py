"""``tricoll compile``: kernels as machine code, and a table of what is in it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..terminal import console, progress
from .options import dtypes

if TYPE_CHECKING:
    from ..compile import Compiled, Variant


def compile_kernels(
    arch: Annotated[
        list[int] | None,
        typer.Option(
            help="Compute capability, 90 for sm_90; may be repeated. Default: this machine's, else 80 90 100."
        ),
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(help="mapped (peers reachable by NVLink) or put; may be repeated. Default: both."),
    ] = None,
    kernel: Annotated[
        list[str] | None, typer.Option(help="all_reduce, ring, ring.all_reduce, ...; may be repeated. Default: all.")
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            help="input:wire:output, or one dtype for all three, or all for the usual ones; may be repeated. "
            "Default: fp32:bf16:fp32, what the DDP hook sends."
        ),
    ] = None,
    op: Annotated[list[str] | None, typer.Option(help="sum or avg; may be repeated. Default: avg.")] = None,
    world_size: Annotated[
        int, typer.Option(min=2, help="Ranks of the job; the direct algorithms (one_shot, two_shot) depend on it.")
    ] = 8,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Default: one a CPU.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table to this file, too.")] = None,
) -> None:
    """Compile kernels ahead of time and check the machine code. Needs no GPU.

    What is compiled stays in Triton's cache (TRITON_CACHE_DIR, else ~/.triton/cache). A training job on this
    architecture, with the default settings and 16-byte aligned tensors, then starts without compiling. Exits with 1 if
    a kernel does not compile or a check fails, with 2 if it could not start.

    \b
    Examples:
      tricoll compile --arch 90 --link mapped       warm up for H100s in one NVLink domain
      tricoll compile --arch 90 --dtype bf16 --op sum --op avg
      tricoll compile --arch 90 --dtype all         everything that is worth having
    """
    from .. import bitcode
    from ..compile import LINKS, build_all, catalogue
    from ..gates import problems

    archs = sorted(set(arch or _local_archs()))
    links = list(dict.fromkeys(link or LINKS))
    for name in links:
        if name not in LINKS:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(LINKS)}", param_hint="--link")
    variants = catalogue(archs, links, _kernels(kernel), dtypes(dtype), _ops(op))
    if not variants:
        raise typer.BadParameter("integers have no average: add --op sum", param_hint="--op")
    jobs = jobs or len(os.sched_getaffinity(0))
    done: list[Compiled] = []
    with progress() as bar:
        task = bar.add_task("compiling", total=len(variants))
        if "put" in links:
            bar.update(task, description="reducing NVSHMEM's library")  # some seconds an architecture, once
            try:
                for each in archs:
                    bitcode.slim(each)
            except (FileNotFoundError, RuntimeError) as error:
                bar.stop()
                typer.echo(f"tricoll: {error}\nKernels for mapped links do not need it: --link mapped", err=True)
                raise typer.Exit(2) from None
        bar.update(task, description="compiling")
        try:
            for compiled in build_all(variants, jobs, world_size=world_size):
                done.append(compiled)
                bar.update(task, advance=1, description=str(compiled.variant))
        except RuntimeError as error:
            bar.stop()
            typer.echo(f"tricoll: {error}", err=True)
            raise typer.Exit(1) from None
    done.sort(key=lambda compiled: variants.index(compiled.variant))
    _show(done)
    if markdown:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(_markdown(done))
    if said := [problem for compiled in done for problem in problems(compiled)]:
        typer.echo("\n".join(said), err=True)
        raise typer.Exit(1)


def _local_archs() -> list[int]:
    import torch

    from ..compile import ARCHS

    if not torch.cuda.is_available():
        return list(ARCHS)
    return [
        10 * major + minor for major, minor in map(torch.cuda.get_device_capability, range(torch.cuda.device_count()))
    ]


def _kernels(given: list[str] | None) -> list[str]:
    from ..compile import KERNELS

    chosen = []
    for name in given or KERNELS:
        if not (matching := [full for full in KERNELS if name in (full, *full.split("."))]):
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(KERNELS)}", param_hint="--kernel")
        chosen += matching
    return chosen


def _ops(given: list[str] | None) -> list[str]:
    from ..tensors import as_op

    try:
        return [as_op(name).name for name in given or ["avg"]]
    except TypeError as error:
        raise typer.BadParameter(str(error), param_hint="--op") from None


COLUMNS = ("kernel", "link", "arch", "dtypes", "op", "registers", "stack", "shared", "code", "instructions")


def _row(c: Compiled) -> tuple[str, ...]:
    v: Variant = c.variant
    sizes = (str(c.registers), str(c.stack), str(c.shared), f"{c.code / 1024:.0f} KiB", _per_access(c))
    return (v.kernel, v.link, f"sm_{v.arch}", v.dtypes, v.op, *sizes)


def _per_access(c: Compiled) -> str:
    return f"{c.instructions / (c.loads + c.stores):.1f}" if c.loads + c.stores else ""


def _show(done: list[Compiled]) -> None:
    from rich.table import Table

    from ..gates import problems

    table = Table(
        box=None, padding=(0, 1, 0, 0), caption="Registers, and bytes of stack, are a thread's. Nothing was run."
    )
    table.add_column("variant")
    for name in ("registers", "stack", "code", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("checks")
    for c in done:
        row = _row(c)
        table.add_row(str(c.variant), *row[5:7], row[8], f"{c.seconds:.1f}", "failed" if problems(c) else "passed")
    console().print(table)


def _markdown(done: list[Compiled]) -> str:
    from ..compile import WORLD_SIZE
    from ..gpu import GPU, WARPS

    tools = []
    for package in ("triton", "nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            tools.append(f"{package} {importlib.metadata.version(package)}")
    rows = ["| " + " | ".join(_row(c)) + " |" for c in done]
    return "\n".join(
        [
            "# Resources of the compiled kernels",
            "",
            "Written by `tricoll compile --markdown docs/resources.md`. The figures are those of the machine code, as",
            "`cuobjdump` reads it. **Nothing here ran on a GPU**, and no figure says how fast a kernel is.",
            "",
            f"Compiled with {' and '.join(tools)}: {WARPS} warps, blocks of {GPU.block} elements,",
            f"{GPU.slots} slots of {GPU.slot_bytes // 1024} KiB a ring, {WORLD_SIZE} ranks, 16-byte aligned tensors.",
            "",
            "Registers and stack (bytes) are a thread's, shared memory (bytes) and code a program's. A put kernel",
            "holds the NVSHMEM functions that it calls, for every transport; calling them takes the stack.",
            "Instructions are those of the bulk loops in PTX, for each load or store of 16 bytes in the kernel.",
            "",
            "| " + " | ".join(COLUMNS) + " |",
            "|" + "---|" * 5 + "---:|" * 5,
            *rows,
            "",
        ]
    )
