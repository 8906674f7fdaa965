"""How far an all-reduce is from the exact sum: ``tricoll numerics``, which also writes the table of docs/numerics.md.

What the algorithms add is what :mod:`tricoll.oracle` says that they add, bit for bit; the exact sum is FP64's. The data
are normal numbers from a seeded generator, so the same command always writes the same figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from . import oracle, pages, plots

RANKS = (2, 4, 8, 16, 32, 64)
DTYPES = (torch.float32, torch.bfloat16, torch.bfloat16)  # of input, wire and output
BEGIN = "<!-- tricoll numerics: begin -->"
END = "<!-- tricoll numerics: end -->"


@dataclass(frozen=True)
class Case:
    """An algorithm that is measured, with the wire dtype that is asked for or, for scale, with FP32."""

    algorithm: str
    fp32_wire: bool = False

    def __str__(self) -> str:
        return f"{self.algorithm}, FP32 wire" if self.fp32_wire else self.algorithm


CASES = (Case("ring"), Case("tree"), Case("two_shot"), Case("hierarchical"), Case("ring", fp32_wire=True))


@dataclass(frozen=True)
class Measured:
    """The errors of one algorithm over one number of ranks.

    Attributes:
        rms: the root mean square of the error, by that of the exact sum.
        ulps: the largest error, in units in the last place that the output's dtype has at the exact sum. It is found
            where shares cancel: their roundings stay, the sum does not.
        ulps_positive: the same for the absolute values of the same data.
        of_bound: the largest error of both, as a part of the bound (:func:`bound`). At most 1.
    """

    case: Case
    ranks: int
    rms: float
    ulps: float
    ulps_positive: float
    of_bound: float


def roundings(algorithm: str, n: int, node_size: int) -> tuple[int, int]:
    """The most roundings that a share goes through in an all-reduce: ``(to the wire dtype, in the accumulator)``.

    Of two or more ranks. The proofs are in docs/numerics.md.
    """
    if algorithm == "tree":
        depth = math.ceil(math.log2(n))
        return depth + 1, 2 * depth - 1
    if algorithm == "hierarchical" and node_size > 1:
        nodes = n // node_size
        return nodes + 1, node_size - 1 + nodes - 1
    return (n if algorithm in ("ring", "hierarchical") else 2), n - 1


def bound(algorithm: str, n: int, node_size: int, wire: torch.dtype, out: torch.dtype, wide: torch.dtype) -> float:
    """What the error of a sum is below, by the sum of the absolute values. Without overflow and subnormal numbers.

    ``(1 + u_wire)^a (1 + u_wide)^b (1 + u_out) - 1``, with u the unit roundoff of a type and a and b of
    :func:`roundings`; without the factors whose rounding changes nothing.
    """
    unit = lambda dtype: float(torch.finfo(dtype).eps) / 2
    to_wire, added = roundings(algorithm, n, node_size)
    growth = added * math.log1p(unit(wide))
    if wire != wide:
        growth += to_wire * math.log1p(unit(wire))
    if unit(out) > unit(wire):
        growth += math.log1p(unit(out))
    return math.expm1(growth)


def measure(
    ranks: Iterable[int] = RANKS,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype] = DTYPES,
    node_size: int = 8,
    elements: int = 2**16,
    seed: int = 0,
) -> Iterator[Measured]:
    """Measure every algorithm that there is for each number of ranks; see :func:`run` for the arguments."""
    dtype, wire, out = dtypes
    for n in ranks:
        generator = numpy.random.default_rng([seed, n])
        inputs = [torch.from_numpy(generator.standard_normal(elements)).to(dtype) for _ in range(n)]
        positive = [x.abs() for x in inputs]
        exact, size = (torch.stack(each).sum(0, dtype=torch.float64) for each in (inputs, positive))
        for case in CASES:
            on_wire = torch.float32 if case.fp32_wire else wire
            if case.fp32_wire and (wire == torch.float32 or dtype == torch.float64):
                continue
            nodes = node_size if case.algorithm == "hierarchical" else None
            if nodes and n % nodes:
                continue
            sums = (
                oracle.all_reduce(each, "sum", on_wire, out, case.algorithm, node_size=nodes)
                for each in (inputs, positive)
            )
            error, error_positive = ((s.double() - right).abs() for s, right in zip(sums, (exact, size), strict=True))
            limit = bound(case.algorithm, n, node_size, on_wire, out, oracle.accumulator(dtype))
            yield Measured(
                case,
                n,
                rms=float((error.square().mean() / exact.square().mean()).sqrt()),
                ulps=float((error / ulp(exact, out)).max()),
                ulps_positive=float((error_positive / ulp(size, out)).max()),
                of_bound=float((torch.maximum(error, error_positive) / size).max()) / limit,
            )


def ulp(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The unit in the last place that ``dtype`` has at the FP64 numbers ``x``; that of its subnormals near zero."""
    info = torch.finfo(dtype)
    _, exponent = numpy.frexp(x.abs().clamp(min=info.tiny).numpy())  # |x| is in [2**(exponent - 1), 2**exponent)
    return torch.from_numpy(numpy.ldexp(info.eps, exponent - 1))


# What is shown.

TABLES = (
    ("rms", 1e-3, "Relative RMS error, in thousandths"),
    ("ulps_positive", 1, "Largest error of the sums of absolute values, in ulps of the output"),
    ("ulps", 1, "Largest error of the sums, in ulps of the output: that of a sum near zero"),
    ("of_bound", 1, "Largest error of all these sums, as a part of the proven bound"),
)


def run(
    ranks: Sequence[int] = RANKS,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype] = DTYPES,
    node_size: int = 8,
    elements: int = 2**16,
    seed: int = 0,
    markdown: Path | None = None,
    plot: Path | None = None,
) -> None:
    """Measure, show the tables, and write them to a file and draw them where that is asked for.

    Args:
        ranks: world sizes, 2 or more.
        dtypes: of input, wire and output.
        node_size: of the hierarchical algorithm; it is left out where this does not divide the ranks.
        elements: in each rank's tensor.
        seed: of the data.
        markdown: a file with the lines BEGIN and END; what is between them is replaced.
        plot: a file for a picture, of a type that matplotlib can write.

    Raises:
        ValueError: if the Markdown file has no such lines, or matplotlib cannot write such a file.
        ImportError: if there is no matplotlib.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    # What can fail does so before the work.
    around = pages.around(markdown, BEGIN, END) if markdown else ("", "")
    figure, axes = _figure(plot) if plot else (None, None)
    found: list[Measured] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=len(ranks))
        for n in ranks:
            progress.update(task, description=f"{n} ranks")
            found += measure([n], dtypes, node_size, elements, seed)
            progress.update(task, advance=1)
    console = Console(highlight=False)
    console.width = max(console.width, 100)
    console.print(_conditions(dtypes, node_size, elements, seed))
    for key, unit, title in TABLES:
        table = Table(box=None, padding=(0, 2, 0, 0))
        header, *rows = _cells(found, key, unit)
        for name in header:
            table.add_column(name, justify="left" if name == "ranks" else "right")
        for row in rows:
            table.add_row(*row)
        console.print(f"\n{title}:", table, sep="\n")
    if markdown:
        markdown.write_text(around[0] + _markdown(found, _conditions(dtypes, node_size, elements, seed)) + around[1])
    if plot:
        _draw(axes, found, _names(dtypes))
        plots.save(figure, plot)


def _names(dtypes: tuple[torch.dtype, torch.dtype, torch.dtype]) -> str:
    x, wire, out = (str(dtype).removeprefix("torch.") for dtype in dtypes)
    return f"{x} in, {wire} on the wire, {out} out"


def _conditions(dtypes: tuple[torch.dtype, torch.dtype, torch.dtype], node_size: int, elements: int, seed: int) -> str:
    return f"Sums of {elements:,} normal numbers a rank (seed {seed}): {_names(dtypes)}, nodes of {node_size} ranks."


def _cells(found: Sequence[Measured], key: str, unit: float) -> list[list[str]]:
    ranks = list(dict.fromkeys(m.ranks for m in found))
    three_digits = lambda value: f"{float(f'{value:.3g}'):,.10g}"
    values = {(m.case, m.ranks): three_digits(getattr(m, key) / unit) for m in found}
    cases = [case for case in CASES if any(m.case == case for m in found)]
    rows = [[str(case), *(values.get((case, n), "-") for n in ranks)] for case in cases]
    return [["ranks", *map(str, ranks)], *rows]


def _markdown(found: Sequence[Measured], conditions: str) -> str:
    lines = [conditions]
    for key, unit, title in TABLES:
        header, *rows = ["| " + " | ".join(row) + " |" for row in _cells(found, key, unit)]
        lines += ["", f"{title}:", "", header, "|---|" + "---:|" * (header.count("|") - 2), *rows]
    return "\n".join(lines) + "\n"


def _figure(plot: Path) -> tuple[Any, Any]:
    figure, axes = plots.figure(7, 4.5)
    known = sorted(figure.canvas.get_supported_filetypes())
    if plot.suffix.removeprefix(".") not in known:
        raise ValueError(f"{plot} is of no type that matplotlib can write: one of {', '.join(known)}")
    return figure, axes


def _draw(axes: Any, found: Sequence[Measured], names: str) -> None:
    for case, marker in zip(CASES, "osD^x", strict=True):
        line = [(m.ranks, m.rms) for m in found if m.case == case]
        if line:
            axes.plot(*zip(*line, strict=True), marker=marker, label=str(case))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({m.ranks for m in found})
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.set_xlabel("ranks")
    axes.set_ylabel("relative RMS error of the sum")
    axes.set_title(f"All-reduce of normal numbers: {names}", fontsize="medium")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
