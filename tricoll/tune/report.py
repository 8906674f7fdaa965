"""What a fit has found, for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .. import plots
from ..tuned import Target
from ..units import show_bytes, show_rate, show_seconds
from .fit import NEAR, Fit, predict

if TYPE_CHECKING:
    from rich.console import Console


def show(fitted: Fit, console: Console) -> None:
    """Print the constants, how well they predict, and where they would choose what is not the fastest."""
    from rich import box
    from rich.table import Table

    profile = fitted.profile
    console.print(f"{profile.source}\n", markup=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("protocol", "link", "base", "a message", "alpha", "beta"):
        table.add_column(name, justify="left" if name in ("protocol", "link") else "right", no_wrap=True)
    for name, protocol in profile.protocols.items():
        for kind, link in protocol.links.items():
            figures = (show_seconds(protocol.base), show_seconds(protocol.message), show_seconds(link.alpha))
            table.add_row(name, kind, *figures, show_rate(link.beta))
    console.print(table)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("algorithm", "overhead", "error, fitted sizes", "error, held-out sizes"):
        table.add_column(name, justify="left" if name == "algorithm" else "right", no_wrap=True)
    for collective, algorithm in sorted({(point.collective, point.algorithm) for point in fitted.errors}):
        overhead = profile.overheads.get(collective, {}).get(algorithm, 0.0)
        errors = (f"{fitted.error(held_out, collective, algorithm):.0%}" for held_out in (False, True))
        table.add_row(f"{collective}, {algorithm}", show_seconds(overhead), *errors)
    console.print(table)
    console.print(
        f"Median relative error: {fitted.error(False):.1%} on the sizes that were fitted, {fitted.error(True):.1%} on "
        "those that were held out."
    )
    for held_out, what in ((True, "held-out sizes"), (False, "all sizes")):
        good, of = fitted.good_choices(held_out)
        console.print(f"The choice takes at most {NEAR:.2f} times the fastest one's time in {good} of {of} {what}.")
    for j in sorted((j for j in fitted.judged if not j.near), key=lambda j: -j.taken / j.least)[:5]:
        console.print(
            f"  {j.collective} of {show_bytes(j.nbytes)}: {j.chosen} would be chosen and took {show_seconds(j.taken)}, "
            f"{j.best} {show_seconds(j.least)}"
        )


def draw(fitted: Fit, path: Path) -> None:
    """Time over size, a panel a collective: measured (points; hollow: held out), and by the fitted model (lines)."""
    target = Target(**fitted.profile.provenance["target"])
    points = list(fitted.errors)
    names = sorted({point.collective for point in points})
    fig, axes = plots.figure(8, 3 * len(names), rows=len(names))
    for axis, collective in zip(np.atleast_1d(axes), names):
        mine = [point for point in points if point.collective == collective]
        for algorithm in sorted({point.algorithm for point in mine}):
            of = [point for point in mine if point.algorithm == algorithm]
            colour, x = plots.COLOURS[algorithm], [point.nbytes for point in of]
            axis.plot(x, predict(of, fitted.profile, target.topology), color=colour, label=algorithm)
            fill = ["none" if point.nbytes in fitted.held_out else colour for point in of]
            axis.scatter(x, [point.seconds for point in of], facecolors=fill, edgecolors=colour, s=20)
        axis.set(xscale="log", yscale="log", ylabel="seconds", title=f"{collective}, {target}")
        axis.legend(fontsize="small")
    np.atleast_1d(axes)[-1].set_xlabel("bytes")
    plots.save(fig, path)
