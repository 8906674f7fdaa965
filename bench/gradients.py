"""The job that DDP has: FP32 gradients in, their FP32 average out, in place. ``tricoll bench gradients``.

tricoll's fused call is timed against what else does that job:

- *FP32*: divide by the number of ranks and all-reduce, which is what DDP does without a hook.
- *BF16 hook*: what ``torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook`` does. It casts to
  BF16, divides there, all-reduces the BF16 numbers and copies them back: three more passes over memory.

Memory traffic is what PyTorch's operations around the collective read and write, counted while they run; the
collective's own is not in it. Bytes on the wire are counted for tricoll; for others they are the least that a ring
all-reduce of that dtype sends.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from rich.table import Table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tricoll.communicator import Communicator
from tricoll.ranks import Ranks
from tricoll.terminal import progress
from tricoll.timing import timed

from . import data, noise
from .backends import Unavailable, open_torch, sent
from .results import Report

MEGABYTES = (1.0, 4.0, 16.0, 25.0, 64.0, 100.0)  # 1e6 bytes of FP32; 25 MiB is what DDP takes by default
OURS = {"tricoll, BF16 wire": torch.bfloat16, "tricoll, FP32 wire": torch.float32}
THEIRS = ("FP32", "BF16 hook")


@dataclass
class Seen:
    """What one rank saw of one way to do the job."""

    label: str
    failure: str = ""
    seconds: list[float] = field(default_factory=list)
    sent: float = 0.0  # bytes on the wire, from this rank
    sent_counted: bool = False
    traffic: int = 0  # bytes that are read and written around the collective
    error: float = 0.0  # sums of squares, of errors and of exact averages
    scale: float = 0.0


class Way(NamedTuple):
    """One way to do the job: what comes of it, its gradients, and the call that averages them."""

    seen: Seen
    x: Tensor
    call: Callable[[Tensor], Any]


class Traffic(TorchDispatchMode):
    """Counts the bytes that PyTorch's operations read and write, those of collectives excepted."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "aten" and not func.is_view:
            reads = args[1:] if func.overloadpacket is torch.ops.aten.copy_ else args  # copy_ does not read its target
            for t in [*tree_leaves(reads), *tree_leaves(result)]:
                self.bytes += t.numel() * t.element_size() if isinstance(t, Tensor) else 0
        return result


def fp32(x: Tensor, group: Any) -> None:
    """DDP without a hook."""
    x.div_(dist.get_world_size(group))
    dist.all_reduce(x, group=group)


def bf16_hook(x: Tensor, group: Any) -> None:
    """DDP with PyTorch's BF16 hook."""
    compressed = x.to(torch.bfloat16).div_(dist.get_world_size(group))
    dist.all_reduce(compressed, group=group)
    x.copy_(compressed)


def measure(
    comm: Communicator, numel: int, peers: Sequence[str], samples: int, warmup: int, timeout: float
) -> list[Seen]:
    """Time all ways for a bucket of ``numel`` gradients on this rank, in turn. Collective."""
    ways: list[Way] = []
    found = []
    for label, wire in OURS.items():
        found.append(Seen(label))
        x = torch.empty(numel, device=comm._fabric.device)
        ways.append(Way(found[-1], x, functools.partial(comm.all_reduce, op="avg", wire=wire)))
    for name in peers:
        try:
            backend = open_torch(name, timeout)
        except Unavailable as reason:
            found += [Seen(f"{name}, {how}", str(reason)) for how in THEIRS]
            continue
        for how, act in zip(THEIRS, (fp32, bf16_hook), strict=True):
            found.append(Seen(f"{name}, {how}"))
            x = torch.empty(numel, device=backend.device)
            ways.append(Way(found[-1], x, functools.partial(act, group=backend.group)))
    if not dist.is_initialized():
        dist.init_process_group("gloo")  # for the barrier
    able = [way for way in ways if _try(comm, way, warmup)]
    for sample in range(samples):
        turn = sample % len(able)
        for way in able[turn:] + able[:turn]:
            way.x.fill_(1.0)
            dist.barrier()
            way.seen.seconds.append(timed(functools.partial(way.call, way.x), 1, way.x.device))
    comm.barrier()  # on GPUs, errors come later
    return found


def _try(comm: Communicator, way: Way, warmup: int) -> bool:
    """Warm up, count and see how accurate it is. False if there is no such call; ``seen`` says why."""
    seen, x, call = way.seen, way.x, way.call
    n, numel = comm.world_size, x.numel()
    part = data.normal(torch.float32, False, n, seed=2)
    try:
        for _ in range(warmup):
            call(x.fill_(1.0))
        x.copy_(part(comm.rank, 0, numel))
        before = sent(comm)
        with Traffic() as traffic:
            call(x)
    except Exception as error:  # whatever a library says of what it does not have
        seen.failure = f"{type(error).__name__}: {error}".splitlines()[0]
        return False
    ours, after = seen.label in OURS, sent(comm)
    seen.sent_counted = ours and before is not None and after is not None
    if before is not None and after is not None and ours:
        seen.sent = after - before
    else:
        seen.sent = 2 * (n - 1) / n * numel * (2 if "BF16" in seen.label else 4)
    if not ours:  # tricoll's kernel is not made of PyTorch's operations, but for its CPU emulation
        seen.traffic = traffic.bytes
    exact = sum((part(r, 0, numel).double() for r in range(n)), torch.zeros(numel, dtype=torch.float64)) / n
    seen.error = float((x.cpu().double() - exact).square().sum())
    seen.scale = float(exact.square().sum())
    return True


def run(
    ranks: Ranks,
    peers: Sequence[str],
    megabytes: Sequence[float],
    samples: int,
    warmup: int,
    timeout: float,
    fabric: str,
    command: str,
) -> Report:
    """Measure all bucket sizes. A way that is missing is in the report's ``unavailable``."""
    config = {"ranks": ranks.size, "peers": list(peers), "megabytes": list(megabytes), "samples": samples}
    report = Report("gradients", command, config)
    with progress(ranks.prints) as bar:
        for size in bar.track(megabytes, description="buckets"):
            numel = int(size * 1e6 / 4)
            seen = ranks.run(measure, numel, peers, samples, warmup, timeout, timeout=timeout, fabric=fabric)
            for of_way in zip(*seen, strict=True):
                if failure := next((s.failure for s in of_way if s.failure), ""):
                    report.unavailable.append(f"{of_way[0].label}: {failure}")
                else:
                    report.results.append(_result(numel, of_way))
    report.unavailable = list(dict.fromkeys(report.unavailable))
    report.failed = not any(r["backend"] in OURS for r in report.results)
    return report


def _result(numel: int, ranks: Sequence[Seen]) -> dict[str, Any]:
    seconds = [max(of_ranks) for of_ranks in zip(*(seen.seconds for seen in ranks), strict=True)]
    return {
        "backend": ranks[0].label,
        "size": 4 * numel,
        "ranks": len(ranks),
        "time": 1e6 * statistics.median(seconds),  # microseconds, of the slowest rank
        "samples": [1e6 * s for s in seconds],
        "sent": max(seen.sent for seen in ranks),
        "sent_counted": ranks[0].sent_counted,
        "traffic": max(seen.traffic for seen in ranks),
        "rms": (sum(seen.error for seen in ranks) / sum(seen.scale for seen in ranks)) ** 0.5,
    }


def tables(report: Report) -> Iterator[Table | str]:
    """The results, a table a bucket size, and what they mean."""
    for size in dict.fromkeys(r["size"] for r in report.results):
        own = [r for r in report.results if r["size"] == size]
        table = Table(
            title=f"{size / 1e6:g} MB of FP32 gradients, {own[0]['ranks']} ranks", title_justify="left", box=None
        )
        for name in (
            "",
            "time\n(ms)",
            "relative to the first\n[95 %]",
            "sent a rank\n(MB)",
            "more memory\ntraffic (MB)",
            "RMS\nerror",
        ):
            table.add_column(name, justify="right" if name else "left", no_wrap=True)
        for r in own:
            ratio = noise.paired_ratio(r["samples"], own[0]["samples"])
            sent = f"{r['sent'] / 1e6:.2f}{' ' if r['sent_counted'] else '*'}"
            table.add_row(
                r["backend"], f"{r['time'] / 1e3:.3f}", str(ratio), sent, f"{r['traffic'] / 1e6:.1f}", f"{r['rms']:.1e}"
            )
        yield table
        yield ""
    yield (
        "Times are the slowest rank's, medians of samples that were taken in turn. More memory traffic: what "
        "operations around the collective read and write. RMS error: relative, of the average of normal numbers."
    )
    yield "* Computed: the least that a ring sends. What tricoll sends is counted on CPUs."
    yield from (f"Not measured: {text}" for text in report.unavailable)
