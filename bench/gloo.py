"""The host fabric against Gloo, in one run: ``python -m tricoll.bench.gloo``.

FP32 tensors are reduced in place, by tricoll with BF16 on the wire and by Gloo in FP32, one sample of each in turn, so
that a noisy machine hits both alike. A sample's time is that of its slowest rank, from a barrier on.
"""

from __future__ import annotations

import statistics
import time
from typing import Annotated

import torch
import torch.distributed as dist
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tricoll.communicator import Communicator
from tricoll.pool import Pool

SIZES = (1_000, 1 << 18, 1 << 20, 1 << 22, 1 << 24)  # elements


def samples(comm: Communicator, numel: int, count: int, wire: str) -> list[tuple[float, float]]:
    """Seconds of each sample on this rank: tricoll's and Gloo's."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    x, y = torch.randn(numel), torch.randn(numel)
    seconds = []
    for _ in range(count + 2):
        pair = []
        for call in (lambda: comm.all_reduce(x, wire=wire), lambda: dist.all_reduce(y)):
            x.fill_(1.0), y.fill_(1.0)
            dist.barrier()
            start = time.perf_counter()
            call()
            pair.append(time.perf_counter() - start)
        seconds.append((pair[0], pair[1]))
    return seconds[2:]  # the first two warm up


def measure(pool: Pool, numel: int, count: int = 10, wire: str = "bf16") -> tuple[float, float]:
    """Median seconds of an all-reduce of ``numel`` FP32 elements: tricoll's and Gloo's."""
    ranks = pool.run(samples, numel, count, wire)
    ours = [max(r[i][0] for r in ranks) for i in range(count)]
    theirs = [max(r[i][1] for r in ranks) for i in range(count)]
    return statistics.median(ours), statistics.median(theirs)


def main(
    ranks: Annotated[int, typer.Option(help="Local ranks.")] = 4,
    count: Annotated[int, typer.Option(help="Samples a size.")] = 10,
    wire: Annotated[str, typer.Option(help="What tricoll sends.")] = "bf16",
) -> None:
    """Time all-reduce on the host fabric and with Gloo, side by side."""
    table = Table("MiB (FP32)", "elements", f"tricoll, {wire} wire (ms)", "Gloo, FP32 (ms)", "ratio")
    for column in table.columns:
        column.justify = "right"
    with Pool(ranks) as pool:
        for numel in track(SIZES, "measuring", transient=True):
            ours, theirs = measure(pool, numel, count, wire)
            row = (
                f"{numel / 2**18:.3g}",
                f"{numel:,}",
                f"{ours * 1e3:.3f}",
                f"{theirs * 1e3:.3f}",
                f"{ours / theirs:.2f}",
            )
            table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
