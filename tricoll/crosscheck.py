"""The kernels on a simulator's virtual clock against the cost model, and the simulated schedules beside them.

``python -m tricoll.crosscheck`` runs every all-reduce at many sizes and numbers of ranks and prints medians and
outliers; with ``--markdown docs/cost-model.md`` it writes them to that page, between its markers. Three answers to one
question: the *kernels* wait for each other as on a GPU, and only time is made up (:func:`tricoll.simulate`); the
*model* is :mod:`tricoll.cost`; the *schedules* follow messages, without slots and kernels (:mod:`tricoll.schedule`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from . import cost, pages, schedule
from .communicator import Communicator
from .cost import Link, Topology
from .units import show_bytes, show_rate, show_seconds
from .world import simulate

LINK = Link(5e-6, 50e9)  # all links alike, so that what differs is the algorithm
# Slots and windows as for such links: sending what a rank's slots hold takes 42 us, several alphas.
SHAPE: dict[str, Any] = {"slots": 8, "slot_bytes": 2 << 20, "window": 2}
ALGORITHMS = ("ring", "tree", "two_shot", "one_shot", "hierarchical", "multimem")
RANKS = (2, 3, 4, 8, 16, 32)
NODES = {4: 2, 8: 4, 16: 4, 32: 8}  # ranks, and ranks a node, where hierarchical has something to do
SIZES = tuple(1 << power for power in range(10, 27, 2))  # 1 KiB to 64 MiB
MOST = 512 << 20  # bytes of all ranks' tensors together
OUTLIER = 0.05

BEGIN, END = "<!-- crosscheck: begin -->", "<!-- crosscheck: end -->"


@dataclass(frozen=True)
class Case:
    """An all-reduce, and how long it takes: seconds. ``schedule`` is None where there is no simulated schedule."""

    algorithm: str
    ranks: int
    nbytes: int
    kernel: float
    model: float
    schedule: float | None

    @property
    def ratio(self) -> float:
        """Kernels' time by the model's."""
        return self.kernel / self.model


def cases(
    algorithms: Sequence[str] = ALGORITHMS, ranks: Sequence[int] = RANKS, sizes: Sequence[int] = SIZES
) -> list[tuple[str, int, int]]:
    """(algorithm, ranks, bytes) of what can be run within MOST bytes."""
    return [
        (name, n, nbytes)
        for name in algorithms
        for n in ranks
        for nbytes in sizes
        if n * nbytes <= MOST and (name != "hierarchical" or n in NODES)
    ]


def check(algorithm: str, ranks: int, nbytes: int) -> Case:
    """Run one. The in-switch algorithm on mapped links, the others with puts."""
    mapped = algorithm == "multimem"
    node_size = NODES[ranks] if algorithm == "hierarchical" else ranks
    topology = Topology(ranks, node_size, mapped)

    def work(comm: Communicator) -> None:
        comm.all_reduce(torch.zeros(nbytes // 4), algo=algorithm)

    ran = simulate(
        work,
        ranks,
        profile=LINK,
        delivery="prompt",
        link="mapped" if mapped else "put",
        node_size=node_size,
        **SHAPE,
    )
    profile = cost.uniform(
        LINK.alpha, LINK.beta, multicast=True, slot_bytes=SHAPE["slot_bytes"], window=SHAPE["window"]
    )
    model = cost.predict(algorithm, "all_reduce", nbytes, topology, profile).time
    followed = None
    if algorithm in schedule.ALGORITHMS:
        fabric = schedule.Fabric(topology, LINK, LINK)
        followed = schedule.simulate(algorithm, nbytes, fabric, profile.piece).seconds
    return Case(algorithm, ranks, nbytes, ran.virtual_time, model, followed)


def median(found: Sequence[Case], algorithm: str) -> float:
    """Of the ratios of an algorithm."""
    return statistics.median(case.ratio for case in found if case.algorithm == algorithm)


# Why a ratio is not 1.
REASONS = {
    "ring": "Each window of pieces goes all the way round before the next one starts, and waits for its last message.",
    "tree": "A rank works on half as many pieces ahead as a link has slots (4 here). While these are on their way it "
    "waits, so with few ranks, which soon have sent them, every 4 pieces cost an alpha.",
    "two_shot": "Every window of pieces ends with a wait for its results, alpha long, in which nothing is sent.",
    "one_shot": "Every window of pieces is sent and then waited for: alpha a window in which nothing is sent, where "
    "the model has one in all.",
    "hierarchical": "The shares of a step are given when the step before has passed. Where sending them takes about as "
    "long as alpha, or longer, each step waits for an alpha in the node, and not only the first one.",
    "multimem": "Every piece's shares are put in place just before their sums are asked for: alpha a piece in which "
    "nothing is sent. The model has two in all.",
}


def markdown(found: Sequence[Case]) -> Iterator[str]:
    """Lines: what was run, medians, and the outliers with their reasons."""
    yield (
        f"Written by `python -m tricoll.crosscheck --markdown docs/cost-model.md`: {len(found)} all-reduces of FP32 on "
        f"links of {show_seconds(LINK.alpha)} and {show_rate(LINK.beta)}, {SHAPE['slots']} slots of "
        f"{SHAPE['slot_bytes'] >> 20} MiB a rank's links, windows of {SHAPE['window']}; nodes of "
        f"{', '.join(f'{size} for {n} ranks' for n, size in NODES.items())} for `hierarchical`. Virtual times: nothing "
        "here was measured."
    )
    yield ""
    yield "| algorithm | runs | kernels by model, median | least | most | outside 5 % | schedules by model, median |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    names = [name for name in ALGORITHMS if any(case.algorithm == name for case in found)]
    for name in names:
        mine = [case for case in found if case.algorithm == name]
        ratios = [case.ratio for case in mine]
        outside = sum(abs(ratio - 1) > OUTLIER for ratio in ratios)
        followed = [case.schedule / case.model for case in mine if case.schedule is not None]
        beside = f"{statistics.median(followed):.3f}" if followed else "-"
        figures = (f"{ratio:.3f}" for ratio in (median(found, name), min(ratios), max(ratios)))
        yield f"| `{name}` | {len(mine)} | " + " | ".join(figures) + f" | {outside} | {beside} |"
    for name in names:
        outliers = [case for case in found if case.algorithm == name and abs(case.ratio - 1) > OUTLIER]
        if outliers:
            yield ""
            yield f"`{name}`: {REASONS[name]}"
            sizes = sorted({case.nbytes for case in outliers})
            yield ""
            yield "| ranks | " + " | ".join(show_bytes(nbytes) for nbytes in sizes) + " |"
            yield "| ---: |" + " ---: |" * len(sizes)
            for n in sorted({case.ranks for case in outliers}):
                ratio = {case.nbytes: f"{case.ratio:.3f}" for case in outliers if case.ranks == n}
                yield f"| {n} | " + " | ".join(ratio.get(nbytes, "") for nbytes in sizes) + " |"


def main(
    path: Annotated[
        Path | None, typer.Option("--markdown", help="Replace the section of this page, between its markers.")
    ] = None,
    algo: Annotated[list[str] | None, typer.Option(help="Only these; may be repeated.")] = None,
    ranks: Annotated[list[int] | None, typer.Option(min=2, help="Default: 2 3 4 8 16 32.")] = None,
) -> None:
    """Run the kernels on a virtual clock and compare with the cost model. Takes a quarter of an hour and up to 6 GB."""
    from rich.console import Console
    from rich.progress import track

    unknown = [name for name in algo or () if name not in ALGORITHMS]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: there are {', '.join(ALGORITHMS)}", param_hint="--algo")
    try:
        before, after = pages.around(path, BEGIN, END) if path else ("", "")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--markdown") from None
    todo = cases(algo or ALGORITHMS, ranks or RANKS)
    console = Console(stderr=True)
    found = [check(*case) for case in track(todo, "simulating", console=console, transient=True)]
    written = "\n".join(markdown(found)) + "\n"
    if path:
        path.write_text(before + written + after)
    typer.echo(written, nl=False)


if __name__ == "__main__":
    typer.run(main)
