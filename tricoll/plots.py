"""Pictures of predictions: a step's timeline, time over size, and time over the number of ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import cost
from .cost import Explanation, Profile, Topology
from .schedule import Noise
from .schedule.sweep import Point
from .units import show_bytes, show_rate, show_seconds

if TYPE_CHECKING:
    from .plan import Plan, Timeline

# A colour for each algorithm, the same in every picture; distinguishable with colour-blindness (Okabe and Ito, 2008).
# Black for one that has none yet.
COLOURS: defaultdict[str, str] = defaultdict(
    lambda: "#000000",
    {
        "ring": "#0072b2",
        "tree": "#009e73",
        "one_shot": "#cc79a7",
        "two_shot": "#e69f00",
        "hierarchical": "#d55e00",
        "multimem": "#56b4e9",
    },
)


def figure(width: float, height: float, rows: int = 1) -> tuple[Any, Any]:
    """A figure (inches) and its axes. Raises ImportError, saying what to install, without Matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError('pictures need Matplotlib: pip install "tricoll[plot]"') from None
    # Without pyplot: no display is asked for, and no figure is kept alive.
    fig = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(fig)
    return fig, fig.subplots(rows, 1)


def save(fig: Any, path: Path) -> None:
    """Write it, by the file's suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)


def timeline(plan: Plan, path: Path) -> None:
    """Backward and the buckets' all-reduces as lanes: the whole step, and its end."""
    fig, axes = figure(10, 4.5, rows=2)
    line = plan.timeline
    _lanes(axes[0], line, 0.0, line.total)
    _lanes(axes[1], line, line.last_buckets, line.total)
    axes[0].set_title(
        f"{plan.parameters:.3g} parameters, {plan.topology}, {plan.algorithm}, buckets of {show_bytes(plan.bucket)}: "
        f"{show_seconds(line.hidden)} hidden, {show_seconds(line.exposed)} exposed"
    )
    axes[1].set_title("its last buckets")
    axes[1].set_xlabel("seconds since backward began")
    save(fig, path)


def _lanes(axis: Any, line: Timeline, since: float, until: float) -> None:
    axis.broken_barh([(0, line.backward)], (10, 8), color="#999999")
    seen = (line.end > since) & (line.start < until)
    start, end = line.start[seen], line.end[seen]
    hidden = np.stack([start, np.minimum(end, line.backward) - start], 1)[start < line.backward]
    late = np.maximum(start, line.backward)
    exposed = np.stack([late, end - late], 1)[end > line.backward]
    # Without outlines where there are many, and unsnapped: the picture then shows how much of the time is busy.
    style = {"edgecolor": "white", "linewidth": 0.5 if len(start) < 100 else 0, "snap": False}
    axis.broken_barh(hidden, (0, 8), color="#0072b2", label="hidden", **style)
    axis.broken_barh(exposed, (0, 8), color="#d55e00", label="exposed", **style)
    axis.axvline(line.backward, color="black", linewidth=0.8, linestyle=":")
    axis.set(xlim=(since, until + 0.02 * (until - since)), ylim=(-2, 28))
    axis.set_yticks([4, 14], ["communication", "backward"])
    axis.legend(loc="upper left", ncols=2, fontsize="small")


def sizes(explanation: Explanation, profile: Profile, path: Path, available: Collection[str] | None) -> None:
    """Predicted time of every candidate over the size, with the crossovers marked. Dashed: excluded."""
    fig, axis = figure(9, 6)
    e = explanation
    options: dict[str, Any] = {"reproducible": e.reproducible, "available": available}
    grid = np.geomspace(cost.SMALLEST, cost.LARGEST, 300)
    curves: dict[str, list[float]] = {}
    left = set()
    for nbytes in grid.tolist():
        for c in cost.candidates(e.collective, nbytes, e.topology, profile, **options):
            if c.steps:
                curves.setdefault(c.algorithm, []).append(c.time)
                if not c.excluded:
                    left.add(c.algorithm)
    for name, times in curves.items():
        dashed = {} if name in left else {"linestyle": "--", "alpha": 0.5}
        label = name if name in left else f"{name} (excluded)"
        axis.plot(grid, np.array(times) * 1e6, label=label, color=COLOURS[name], **dashed)
    for crossing in cost.crossovers(e.collective, e.topology, profile, **options):
        at = (crossing.nbytes, cost.best(e.collective, crossing.nbytes, e.topology, profile, **options).time * 1e6)
        axis.plot(*at, "o", color="black", markersize=5)
        axis.annotate(f"{crossing.above} from {show_bytes(crossing.nbytes)}", at, (8, -14), textcoords="offset points")
    axis.axvline(e.nbytes, color="grey", linewidth=0.8, linestyle=":")
    axis.set(xscale="log", yscale="log", xlabel="size (bytes)", ylabel="predicted time (us)")
    axis.set_title(f"{e.collective} on {e.topology}, profile {e.profile}")
    axis.grid(alpha=0.3)
    axis.legend()
    save(fig, path)


def scale(points: list[Point], nbytes: float, node_size: int, profile: Profile, noise: Noise, path: Path) -> None:
    """Simulated time over the number of ranks (:mod:`schedule.sweep`): lines, dashed with noise; dots: formulas."""
    fig, axis = figure(9, 6)
    worlds = sorted({p.ranks for p in points})
    for name, noisy in sorted({(p.algorithm, p.noisy) for p in points}):
        line = [p for p in points if (p.algorithm, p.noisy) == (name, noisy)]
        xs, label = [p.ranks for p in line], f"{name}, noise" if noisy else name
        axis.plot(xs, [p.seconds * 1e3 for p in line], "--" if noisy else "-", color=COLOURS[name], label=label)
        if not noisy:
            dots = [_predicted(name, nbytes, n, node_size, profile) * 1e3 for n in xs]
            axis.plot(xs, dots, ".", color=COLOURS[name])
    rate = show_rate(profile.link("signal", "inter").beta)
    axis.set(xscale="log", yscale="log", xlabel="ranks", ylabel="time (ms)")
    axis.set_title(
        f"All-reduce of {show_bytes(nbytes)}, {node_size} ranks a node, profile {profile.name} ({rate} between nodes)\n"
        f"lines: simulated; dots: formulas; noise: {noise}"
    )
    axis.set_xticks(worlds, [f"{n:,}" for n in worlds], rotation=45)
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend()
    save(fig, path)


def _predicted(name: str, nbytes: float, n: int, node_size: int, profile: Profile) -> float:
    """The formula's time, without what a call costs however it is carried out: the simulation has no such base."""
    topology = Topology(n, node_size)
    (c,) = [c for c in cost.candidates("all_reduce", nbytes, topology, profile) if c.algorithm == name]
    return c.time - profile.protocols[c.protocol].base
