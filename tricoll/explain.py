"""``tricoll explain``: which algorithm a call would take, and why. ``python -m tricoll.explain`` prints a table for the
documentation: where the fastest algorithm of an all-reduce changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import cost
from .cost import PROFILES, Candidate, Explanation, Profile, Topology
from .units import show_bytes, show_rate, show_seconds

if TYPE_CHECKING:
    from rich.console import Console


def show(explanation: Explanation, console: Console) -> None:
    """Print an explanation for people."""
    from rich import box
    from rich.table import Table

    e = explanation
    size = show_bytes(e.nbytes)
    mode = ", reproducible" if e.reproducible else ""
    console.print(f"{e.collective} of {size} on {e.topology}, profile {e.profile}{mode}\n", markup=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("algorithm", no_wrap=True)
    for name in ("latency", "+ bandwidth", "= time", "busbw", "steps", "sent a rank", "roundings"):
        table.add_column(name, justify="right", no_wrap=True)
    for c in e.candidates:
        if c.steps or not c.excluded:
            name = c.algorithm + (" (packed)" if c.protocol == "packed" else "") + (" *" if c.excluded else "")
            table.add_row(name, *_figures(c), style="dim" if c.excluded else "bold" if c is e.winner else None)
    console.print(table)
    for c in e.candidates:
        if c.excluded:
            console.print(f"* {c.algorithm} is left out: {c.excluded}", markup=False)
    console.print(f"\n{e.reason}", markup=False)


def _figures(c: Candidate) -> tuple[str, ...]:
    times = (show_seconds(c.latency), show_seconds(c.bandwidth), show_seconds(c.time))
    rate = "" if math.isinf(c.busbw) else show_rate(c.busbw)
    return (*times, rate, str(c.steps), show_bytes(c.sent), str(c.roundings))


# The table of the documentation.

CASES = [  # profile, ranks, ranks a node (0: all)
    *(("nvlink", n, 0) for n in (8, 64, 512)),
    *(("nic-400g", n, 1) for n in (8, 64, 512)),
    ("h100", 8, 0),
    *(("h100", n, 8) for n in (64, 512)),
]


def markdown() -> Iterator[str]:
    """Lines of a Markdown table: the fastest all-reduce by size, for the profiles and topologies of CASES."""
    yield "| profile | ranks | fastest, from the smallest size on | reproducible |"
    yield "| --- | --- | --- | --- |"
    for name, ranks, node_size in CASES:
        topology, profile = Topology(ranks, node_size), PROFILES[name]
        cells = (_sequence(topology, profile, reproducible) for reproducible in (False, True))
        yield f"| {name} | {topology} | " + " | ".join(cells) + " |"


def _sequence(topology: Topology, profile: Profile, reproducible: bool) -> str:
    found = cost.crossovers("all_reduce", topology, profile, reproducible=reproducible)
    first = cost.best("all_reduce", cost.SMALLEST, topology, profile, reproducible=reproducible).algorithm
    return ", ".join([first, *(f"{c.above} from {show_bytes(float(f'{c.nbytes:.3g}'))}" for c in found)])


if __name__ == "__main__":
    print("\n".join(markdown()))
