"""Train a digit classifier on local ranks, tricoll's BF16 gradients next to Gloo's FP32, and compare the two runs."""

# No ``from __future__ import annotations`` here: DDP compares a hook's annotations with the classes themselves.

import contextlib
import functools
import hashlib
import itertools
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich import box
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from . import ddp, launch
from .communicator import Communicator

BATCH = 16  # images a rank and step
TEST = 360  # images kept for testing
ROWS = 8  # of the table, at most
NAMES = ("tricoll BF16", "Gloo FP32", "tricoll FP32")  # of the trainings; the last one is for scale
STYLES = ("cyan", "yellow", "dim")
Digits = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]


@dataclass
class Row:
    """The steps since the row before, as one rank saw them."""

    step: int  # the last of them
    loss: float
    accuracy: float  # on the test images after these steps, 0 to 1
    sent: float  # bytes a step
    calls: float  # all-reduces a step
    seconds: float  # an all-reduce


@dataclass
class Run:
    """What one rank saw of one training."""

    losses: list[float] = field(default_factory=list)  # of this rank's images, one a step
    times: list[float] = field(default_factory=list)  # seconds, one an all-reduce
    elements: int = 0  # all-reduced
    sent: int = 0  # bytes: counted by tricoll, computed for Gloo
    seconds: float = 0.0  # in all steps, tests not included
    rows: list[Row] = field(default_factory=list)
    parameters: list[torch.Tensor] = field(default_factory=list)  # float32, flat, one a row; on rank 0
    digest: str = ""  # of the parameters' bits at the end


def run(nprocs: int = 4, steps: int = 240, seed: int = 0) -> None:
    """Train a digit classifier on local CPU ranks, with tricoll's BF16 gradients and with Gloo's FP32, and compare.

    Args:
        nprocs: the number of ranks.
        steps: optimiser steps of each training.
        seed: of the initial parameters and of the batches.
    """
    if nprocs < 1 or steps < 1:
        raise SystemExit(f"nprocs is {nprocs} and steps is {steps}; both must be at least 1")
    console = Console(highlight=False)
    console.width = min(console.width, 100)
    digits = load_digits()
    introduce(console, nprocs, steps, seed, digits)
    with progress(console, nprocs, steps) as ticks:
        ranks = launch(train, nprocs, digits, steps, seed, ticks)
    trainings = [list(each) for each in zip(*ranks)]  # of each training, one Run a rank
    for part in (steps_table(trainings), curves(trainings), totals(trainings), conclusion(nprocs)):
        console.print(part)


def load_digits() -> Digits:
    """Images (N x 1 x 8 x 8, float32) and labels (int64) to train with, and the same to test with."""
    try:
        from sklearn import datasets
    except ImportError:
        raise SystemExit('The demo needs scikit-learn, for its images: pip install "tricoll[demo]"') from None
    data = datasets.load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))  # the same for every seed
    images = (torch.from_numpy(data.images).float().unsqueeze(1)[order] - 4.9) / 6.0  # mean 0, standard deviation 1
    labels = torch.from_numpy(data.target).long()[order]
    return images[TEST:], labels[TEST:], images[:TEST], labels[:TEST]


def network() -> torch.nn.Module:
    """A small convolutional classifier of 8 x 8 images."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.GELU(),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.GELU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 256),
        torch.nn.GELU(),
        torch.nn.Linear(256, 10),
    )


# On the ranks.


def train(comm: Communicator, digits: Digits, steps: int, seed: int, ticks: str) -> list[Run]:
    """The trainings of NAMES, one after the other. Rank 0 adds a byte to the file ``ticks`` after every step."""
    dist.init_process_group("gloo")
    # PyTorch's hook does what DDP does without one: divide, then add up in FP32.
    hooks: list[tuple[Any, Hook]] = [(comm, ddp.bf16_hook), (None, allreduce_hook), (comm, ddp.fp32_hook)]
    with open(ticks, "ab", buffering=0) as file:
        tick = (lambda: file.write(b".")) if comm.rank == 0 else (lambda: 0)
        return [train_with(state, hook, comm, digits, steps, seed, tick) for state, hook in hooks]


def train_with(
    state: Any, hook: Hook, comm: Communicator, digits: Digits, steps: int, seed: int, tick: Callable[[], int]
) -> Run:
    """One training, with gradients averaged by ``hook``."""
    images, labels, test_images, test_labels = digits
    torch.manual_seed(seed)
    batches = torch.Generator().manual_seed(seed)
    run = Run()
    model = DistributedDataParallel(network())
    model.register_comm_hook(state, timed(hook, run))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def backward(batch: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        return loss.item()

    for _ in range(2):  # not counted: first calls take longer, and DDP arranges its buckets anew after one
        backward(torch.arange(BATCH))
    run.times, run.elements = [], 0
    before = comm.stats()["payload_bytes"]
    last_step, last_call, last_sent = 0, 0, 0

    for step in range(1, steps + 1):
        start = time.perf_counter()
        batch = torch.randint(len(images), (comm.world_size * BATCH,), generator=batches)
        run.losses.append(backward(batch[comm.rank :: comm.world_size]))
        optimizer.step()
        run.seconds += time.perf_counter() - start
        tick()
        if step not in rows(steps):
            continue
        run.sent = (
            comm.stats()["payload_bytes"] - before if state is comm else ring_bytes(run.elements, comm.world_size)
        )
        with torch.no_grad():
            accuracy = (model.module(test_images).argmax(1) == test_labels).float().mean().item()
        run.rows.append(
            Row(
                step,
                fmean(run.losses[last_step:]),
                accuracy,
                (run.sent - last_sent) / (step - last_step),
                (len(run.times) - last_call) / (step - last_step),
                fmean(run.times[last_call:]),
            )
        )
        last_step, last_call, last_sent = step, len(run.times), run.sent
        if comm.rank == 0:
            run.parameters.append(flat(model))
    run.digest = hashlib.sha256(flat(model).numpy().tobytes()).hexdigest()
    return run


def timed(hook: Hook, run: Run) -> Hook:
    """``hook``, waited for and timed: no training computes while it communicates, so that the times compare."""

    @functools.wraps(hook)
    def wrapper(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        start = time.perf_counter()
        future = hook(state, bucket)
        future.wait()
        run.times.append(time.perf_counter() - start)
        run.elements += bucket.buffer().numel()
        return future

    return wrapper


def rows(steps: int) -> range:
    """The steps that have a row in the table: at most ROWS, the last one included."""
    every = -(-steps // ROWS)
    return range(steps - (steps - 1) // every * every, steps + 1, every)


def ring_bytes(elements: int, world_size: int) -> int:
    """The bytes that a rank sends at least when a ring all-reduces FP32."""
    return 4 * 2 * (world_size - 1) * elements // world_size


def flat(model: torch.nn.Module) -> torch.Tensor:
    """All parameters as one float32 vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# On the screen. ``trainings`` has, for each of NAMES, a Run a rank.


def introduce(console: Console, nprocs: int, steps: int, seed: int, digits: Digits) -> None:
    """Say what is about to happen."""
    parameters = sum(p.numel() for p in network().parameters())
    console.print()
    console.rule(f"[bold]tricoll demo: handwritten digits on {nprocs} CPU ranks", align="left")
    console.print(
        f"A convolutional network of {parameters:,} parameters learns {len(digits[0]):,} images of digits; "
        f"{len(digits[2])} others test it. DistributedDataParallel trains it on {nprocs} processes of this machine, "
        f"for {steps} steps of {nprocs} x {BATCH} images, each time from seed {seed} and with the same batches:"
    )
    table = Table(box=None, show_header=False, padding=(0, 1))
    for which, what in enumerate(
        (
            "tricoll.ddp.bf16_hook: FP32 gradients, BF16 on the wire",
            "what PyTorch does without a hook: FP32 all the way",
            "tricoll.ddp.fp32_hook, for scale: Gloo's sums in another order",
        )
    ):
        table.add_row(label(which), what)
    console.print(table, "")


def label(which: int) -> str:
    """The name of a training, in its colour."""
    return f"[{STYLES[which]}]{NAMES[which]}[/]"


@contextlib.contextmanager
def progress(console: Console, nprocs: int, steps: int) -> Iterator[str]:
    """A progress bar that follows the size of the file whose name it yields, which grows by a byte a step."""
    columns = (TextColumn("{task.description:22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory() as folder, Progress(*columns, console=console, transient=True) as bars:
        ticks = Path(folder) / "ticks"
        ticks.touch()
        task = bars.add_task(f"Starting {nprocs} ranks", total=len(NAMES) * steps)
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.1):
                if done := ticks.stat().st_size:
                    bars.update(task, completed=done, description=f"Training, {NAMES[(done - 1) // steps]}")

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield str(ticks)
        finally:
            over.set()
            watcher.join()


def titled(title: str) -> Table:
    """An empty table that fits 80 columns."""
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def steps_table(trainings: list[list[Run]]) -> Table:
    """A line for each of the first two trainings every few steps."""
    table = titled("Training, step by step: means since the line above")
    for name in (
        "Step",
        "",
        "Loss",
        "Test\naccuracy",
        "Sent,\na rank",
        "Calls,\na rank",
        "Time of\na call",
        "Apart\n(L2)",
    ):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for i, row in enumerate(trainings[0][0].rows):
        for which in range(2):
            seen = [rank.rows[i] for rank in trainings[which]]
            table.add_row(
                "" if which else f"{row.step}",
                label(which),
                f"{fmean(r.loss for r in seen):.4f}",
                f"{seen[0].accuracy:.1%}",
                f"{fmean(r.sent for r in seen) / 1e3:.1f} kB{'*' if which else ' '}",
                f"{seen[0].calls:g}",
                f"{fmean(r.seconds for r in seen) * 1e3:.1f} ms",
                "" if which else f"{apart(trainings[0], trainings[1], i)[1]:.1e}",
            )
    return table


def apart(a: list[Run], b: list[Run], row: int = -1) -> tuple[float, float]:
    """The largest absolute difference of two trainings' parameters, and its L2 norm over that of ``b``."""
    x, y = (ranks[0].parameters[row].double() for ranks in (a, b))
    return (x - y).abs().max().item(), ((x - y).norm() / y.norm()).item()


def curves(trainings: list[list[Run]], width: int = 48) -> Group:
    """The losses of the first two trainings as bars, on a logarithmic scale."""
    curves = []
    for ranks in trainings[:2]:
        losses = [fmean(step) for step in zip(*(r.losses for r in ranks))]
        parts = min(width, len(losses))
        cuts = [i * len(losses) // parts for i in range(parts + 1)]
        curves.append([math.log(max(fmean(losses[a:b]), 1e-9)) for a, b in itertools.pairwise(cuts)])
    low, high = min(map(min, curves)), max(map(max, curves))
    lines = []
    for which, curve in enumerate(curves):
        bars = "".join("▁▂▃▄▅▆▇█"[round(7 * (v - low) / (high - low or 1))] for v in curve)
        ends = f"{math.exp(curve[0]):.3f} to {math.exp(curve[-1]):.3f}"
        lines.append(f" {label(which)}{' ' * (13 - len(NAMES[which]))}{bars}  {ends}")
    return Group("[bold]Loss, on a logarithmic scale", "", *lines, "")


def totals(trainings: list[list[Run]]) -> Table:
    """The trainings side by side."""
    table = titled("In total")
    table.add_column("")
    for which in range(len(NAMES)):
        table.add_column(label(which), justify="right", no_wrap=True)

    def line(what: str, value: Callable[[list[Run]], str]) -> None:
        table.add_row(what, *(value(ranks) for ranks in trainings))

    def sent(ranks: list[Run]) -> str:
        return f"{sum(r.sent for r in ranks) / 1e6:.1f} MB{'*' if ranks is trainings[1] else ' '}"

    line("Loss, last step", lambda ranks: f"{fmean(r.losses[-1] for r in ranks):.4f}")
    line("Test accuracy", lambda ranks: f"{ranks[0].rows[-1].accuracy:.1%}")
    line("Sent, all ranks", sent)
    line("All-reduces, a rank", lambda ranks: f"{len(ranks[0].times)}")
    line("Time in them", lambda ranks: f"{fmean(sum(r.times) for r in ranks):.2f} s")
    line("  without the wait for others", lambda ranks: f"{sum(map(min, zip(*(r.times for r in ranks)))):.2f} s")
    line("Time of all steps", lambda ranks: f"{max(r.seconds for r in ranks):.2f} s")
    line("Same bits on all ranks", lambda ranks: "yes" if len({r.digest for r in ranks}) == 1 else "NO")
    for title, which in (("Parameters apart, largest", 0), ("  relative, L2", 1)):
        values = [f"{apart(ranks, trainings[1])[which]:.1e}" for ranks in trainings]
        table.add_row(title, values[0], "(reference)" if not which else "", values[2])
    return table


def conclusion(nprocs: int) -> Group:
    """What the numbers mean, and what they do not."""
    return Group(
        "Calls are all-reduces; sent and calls are those of one step. A call's time runs until the average is there, "
        "mean of the ranks. Without the wait: call by call, the shortest time of any rank, which is that of the last "
        "one to come. Apart: the difference from Gloo's parameters, largest and L2 norm relative to theirs.",
        "* Computed, because Gloo does not count: the least that a ring all-reduce of FP32 sends, 2(n-1)/n x 4 bytes "
        "an element and rank. What tricoll sends is counted.",
        "",
        "Buckets here are of half a megabyte, where a call costs as much as its bytes. [bold]tricoll bench "
        "gradients[/] sets those of 1 to 64 MB against Gloo and PyTorch's own BF16 hook.",
        "",
        f"[bold]What this ran on:[/] the host fabric, {nprocs} processes of this machine that share memory, with "
        "tricoll's kernels executed on the CPU. The times are a CPU's and say nothing about a GPU. On GPUs the same "
        "kernels, compiled, would use the nvshmem fabric: loads and stores over NVLink where a peer is mapped, NVSHMEM "
        "puts elsewhere, with the cast to BF16 fused in, so that it costs no pass over memory. No figure of a GPU is "
        "shown, because none was measured here.",
    )
