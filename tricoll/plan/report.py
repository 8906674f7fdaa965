"""A plan for people: the lanes of its timeline, tables, and what to do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..units import show_bytes, show_rate, show_seconds
from .buckets import Timeline
from .step import BYTES_A_PARAMETER, MEMORY, Plan

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..schedule.sweep import Point

SHADES = " ░▒▓█"


def lanes(line: Timeline, since: float, until: float, width: int = 64) -> tuple[str, str]:
    """Two rows of characters: backward, and the communication stream, whose cells are as dark as it is busy.

    ``#`` is communication after backward, which the step waits for.
    """
    edges = np.linspace(since, until, width + 1)
    moments = np.stack([line.start, line.end], 1).ravel()
    worked = np.repeat(np.cumsum(line.end - line.start), 2)
    worked[::2] -= line.end - line.start
    busy = np.diff(np.interp(edges, moments, worked)) / np.diff(edges)
    exposed = edges[:-1] >= line.backward - 1e-9 * until
    compute = np.clip((line.backward - edges[:-1]) / np.diff(edges), 0, 1)
    shade = lambda share: SHADES[math.ceil(share * 4 - 1e-6)] if share > 0 else " "
    communication = ["#" if out and share > 1e-6 else shade(share) for share, out in zip(busy.tolist(), exposed)]
    return "".join(map(shade, compute.tolist())), "".join(communication)


def show(plan: Plan, console: Console) -> None:
    """Print a plan for people."""
    line, t = plan.timeline, plan.topology
    console.print(
        f"{plan.parameters:.4g} parameters on {t}; all-reduce by {plan.algorithm}, profile {plan.profile.name}; "
        f"{show_bytes(plan.parameters * plan.gradient_bytes)} of gradients in {len(line.sizes)} buckets of "
        f"{show_bytes(plan.bucket)}; backward takes {show_seconds(line.backward)}.\n"
    )
    for title, since in (("the step", 0.0), ("its last buckets", line.last_buckets)):
        compute, communication = lanes(line, since, line.total)
        console.print(f"{title}: {show_seconds(since)} to {show_seconds(line.total)}", markup=False)
        console.print(f"  backward       |{compute}|", markup=False)
        console.print(f"  communication  |{communication}|", markup=False)
    console.print("  (the darker, the busier; # is exposed: the step waits for it)\n")
    console.print(_times(plan))
    console.print(_advice(plan) + "\n")
    console.print(_memory(plan))
    for sentence in _ends(plan):
        console.print(sentence)
    console.print()
    console.print(_turning(plan))


def show_sweep(points: list[Point], console: Console) -> None:
    """Print simulated times over the number of ranks, without and with noise."""
    names = list(dict.fromkeys(p.algorithm for p in points))
    columns = [name + noise for name in names for noise in ("", ", noise")]
    table = _table("ranks", *columns, title="An all-reduce of a bucket, simulated")
    seconds = {(p.ranks, p.algorithm, p.noisy): show_seconds(p.seconds) for p in points}
    for n in sorted({p.ranks for p in points}):
        table.add_row(f"{n:,}", *(seconds.get((n, name, noisy), "") for name in names for noisy in (False, True)))
    console.print(table)


def _table(*columns: str, title: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def _times(plan: Plan) -> Table:
    table = _table(
        "all-reduce", "bucket", "number", "each", "together", "hidden", "exposed", "+ step", title="Communication"
    )
    rows = [(plan.algorithm, plan.timeline), *plan.others.items(), (f"best for {plan.algorithm}", plan.best)]
    for name, line in rows:
        times = (line.end[0] - line.start[0], line.communication, line.hidden, line.exposed)
        share = f"{line.exposed / line.backward:.3%}" if line.backward else ""
        table.add_row(name, show_bytes(line.sizes[0]), str(len(line.sizes)), *map(show_seconds, times), share)
    return table


def _advice(plan: Plan) -> str:
    line, best = plan.timeline, plan.best
    said = f"{show_seconds(line.exposed)} of {show_seconds(line.communication)} is exposed. "
    if best.exposed < 0.95 * line.exposed:
        said += f"The best bucket size is {show_bytes(best.sizes[0])}: {show_seconds(best.exposed)} exposed. "
    else:
        said += "No other bucket size is better by more than 5 %. "
    if plan.others:
        name, other = min(plan.others.items(), key=lambda item: item[1].exposed)
        if other.exposed < line.exposed:
            said += f"With this bucket size, {name} exposes {show_seconds(other.exposed)}: --algo {name}."
    return said


def _memory(plan: Plan) -> Table:
    table = _table("memory of a GPU", "bytes a parameter", "bytes", title="Memory, without activations")
    for name, each in MEMORY.items():
        table.add_row(name, str(each), show_bytes(each * plan.parameters))
    table.add_section()
    table.add_row("together", str(BYTES_A_PARAMETER), show_bytes(plan.ending.memory))
    return table


def _ends(plan: Plan) -> list[str]:
    """Sentences: when plain data parallelism ends, by memory and by communication."""
    ending, line = plan.ending, plan.timeline
    limit = f"a GPU of {show_bytes(ending.parameters * BYTES_A_PARAMETER)} holds {ending.parameters:.3g} parameters"
    if ending.fits:
        memory = f"Memory: this model fits; {limit}, less what activations need."
    else:
        memory = (
            f"Memory: plain data parallelism has ended: {limit}, and more GPUs do not help. Shard the optimiser's "
            "state, the gradients or the weights (ZeRO, FSDP), or split the model."
        )
    rest = f"it takes {show_seconds(line.communication)}, and backward {show_seconds(line.backward)}"
    if line.communication > line.backward:
        communication = f"Communication: it cannot be hidden any more: {rest}."
    elif ending.gpus is None:
        communication = f"Communication: {rest}; up to {ending.searched:,} GPUs it stays below that."
    else:
        communication = f"Communication: {rest}; with these buckets it takes longer from {ending.gpus:,} GPUs on."
    return [memory, communication]


def _turning(plan: Plan) -> Table:
    link = plan.profile.link("signal", "inter" if plan.topology.nodes > 1 else "mapped")
    title = f"Sizes at which things change, one kind of link ({show_seconds(link.alpha)}, {show_rate(link.beta)})"
    table = _table(
        "ranks", "a ring's latency equals its bandwidth term at", "a plain tree is faster below", title=title
    )
    for each in plan.turning:
        table.add_row(f"{each.ranks:,}", show_bytes(each.balanced), show_bytes(each.tree_below))
    return table
