"""Run a benchmark of one collective: all its rows, printed as they come. :func:`run` is ``tricoll bench``."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import tricoll
from tricoll.communicator import Communicator
from tricoll.ranks import Ranks

from . import noise, table
from .collective import named
from .measure import Case, measure
from .results import Report, Row, row

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """Everything that is measured in one run: ``case`` for every dtype, op, root and size."""

    case: Case
    sizes: Sequence[int]  # bytes
    dtypes: Sequence[torch.dtype]
    ops: Sequence[str]
    roots: Sequence[int]
    average: int = 1
    plain: bool = False
    step: str = ""  # how the sizes grow, in words
    options: dict[str, Any] | None = None  # of tricoll.init

    def cases(self) -> Iterator[Case]:
        """In the order of nccl-tests: all sizes of a dtype, op and root."""
        for dtype in self.dtypes:
            for op in self.ops:
                if op in ("avg", "mulsum") and not dtype.is_floating_point:
                    continue  # tricoll's integers have none
                for root in self.roots:
                    for size in self.sizes:
                        yield replace(self.case, dtype=dtype, op=op, root=root, elements=size // dtype.itemsize)


def run(plan: Plan, ranks: Ranks, say: Say, command: str) -> Report:
    """Measure and print. ``say`` prints a line; it is called on every rank that torchrun has started."""
    report = Report(plan.case.collective, command, _config(plan, ranks.size))
    for text in _introduction(plan, ranks, report):
        say(text)
    say(table.header(plan.plain, plan.case.cpu_time))
    for case in plan.cases():
        found = []
        for one in rows(case, ranks, plan, report, say):
            found.append(one)
            report.add(one)
            say(table.line(one, plan.plain))
        report.comparisons += compare_rows(found)
    labels = list(dict.fromkeys(r["backend"] for r in report.results))
    if labels:
        others = [(label, report.bus_bandwidth(label)) for label in labels[1:]]
        for text in [
            *table.footer(report.wrong, report.bus_bandwidth(labels[0]), others),
            *table.ratios(report.comparisons),
        ]:
            say(text)
    if any(algo not in ("", "auto") for _, algo in plan.case.backends):
        say('# * is what algo="auto" takes.')
    return report


def rows(case: Case, ranks: Ranks, plan: Plan, report: Report, say: Say) -> Iterator[Row]:
    """Measure one case; a row for every backend that can do it."""
    options = {"timeout": case.timeout, **(plan.options or {})}
    seen = ranks.run(measure, case, **options)
    counts = named(case.collective).counts(case.elements, ranks.size)
    tricolls = 0
    for of_backend in zip(*seen, strict=True):
        first = next((found.failure for found in of_backend if found.failure), "")
        if not first:
            tricolls += of_backend[0].label.startswith("tricoll")
            yield row(case, counts, of_backend, plan.average)
            continue
        what = f"{of_backend[0].label}: not measured; {first}"
        if what not in report.unavailable:
            report.unavailable.append(what)
            say(f"# {what}")
    # An algorithm, or another library, may not have this call; tricoll without any has failed.
    report.failed |= not tricolls and any(name == "tricoll" for name, _ in case.backends)


def compare_rows(found: Sequence[Row]) -> list[dict[str, Any]]:
    """The first of a case's rows relative to each of the others, out of place."""
    comparisons = []
    for other in found[1:]:
        first = found[0]
        ratio = noise.paired_ratio(first.out_of_place.samples, other.out_of_place.samples)
        known = math.isfinite(ratio.low)
        comparisons.append({
            "backend": first.backend, "to": other.backend, "size": first.size, "type": first.type, "redop": first.redop,
            "root": first.root, "ratio": ratio.median, "low": ratio.low if known else None,
            "high": ratio.high if known else None,
        })  # fmt: skip
    return comparisons


def _introduction(plan: Plan, ranks: Ranks, report: Report) -> Iterator[str]:
    case = plan.case
    yield f"# tricoll bench version {tricoll.__version__}"
    yield f"# Collective test starting: {case.collective}"
    yield (
        f"# nThread 1 nGpus {ranks.size} minBytes {min(plan.sizes)} maxBytes {max(plan.sizes)} step: {plan.step} "
        f"warmup iters: {case.warmup} iters: {case.iters} agg iters: {case.agg} validation: {case.check} "
        f"graph: {case.graph}"
    )
    if case.blocking:
        yield "# Blocking Enabled: wait for completion and barrier after each collective"
    yield "#"
    yield "# Using devices"
    for rank, (pid, host, fabric, device) in enumerate(ranks.run(_where, **(plan.options or {}))):
        where = f"device {rank:2d} [{fabric}] {device or report.machine['cpu']}"
        yield f"#  Rank {rank:2d} Group  0 Pid {pid:6d} on {host:>10} {where}"
    yield "#"


def _where(comm: Communicator) -> tuple[int, str, str, str]:
    device = comm._fabric.device
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return os.getpid(), socket.gethostname(), comm.fabric, gpu


def _config(plan: Plan, n: int) -> dict[str, Any]:
    case = plan.case
    return {
        "ranks": n,
        "minimum_bytes": min(plan.sizes),
        "maximum_bytes": max(plan.sizes),
        "step": plan.step,
        "warmup_iters": case.warmup,
        "iterations": case.iters,
        "samples": case.samples,
        "aggregated_iterations": case.agg,
        "validation": case.check,
        "graph": case.graph,
        "blocking_collectives": case.blocking,
        "average": plan.average,
        "init": plan.options,
        "wire": str(case.wire).removeprefix("torch.") if case.wire else None,
        "backends": [":".join(b).strip(":") for b in case.backends],
    }
