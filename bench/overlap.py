"""How much of DDP's communication the backward pass hides, at several bucket sizes. ``tricoll bench overlap``.

Small buckets are ready early but pay the cost of a call more often; large ones are ready late. What is left over, the
*exposed* communication, is the time of a backward pass with communication less that of one without (``no_sync``),
taken one after the other. Beside it stands what :func:`predict` says, from the times of the calls alone.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from rich.table import Table
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from tricoll import ddp
from tricoll.communicator import Communicator
from tricoll.ranks import Ranks
from tricoll.terminal import progress
from tricoll.timing import timed

from . import gradients, noise
from .backends import Unavailable, open_torch
from .results import Report


@dataclass(frozen=True)
class Job:
    """What is trained: ``layers`` linear layers of width x width FP32 parameters, on ``batch`` rows a rank."""

    layers: int = 16
    width: int = 512
    batch: int = 64
    samples: int = 10
    timeout: float = 60.0


@dataclass
class Seen:
    """What one rank saw of one backend at one bucket size."""

    label: str
    failure: str = ""
    with_: list[float] = field(default_factory=list)  # seconds of a backward pass, one a sample
    without: list[float] = field(default_factory=list)  # the same, without communication
    buckets: list[int] = field(default_factory=list)  # bytes, in the order in which they are ready
    alone: dict[int, list[float]] = field(default_factory=dict)  # seconds of a call for a bucket of so many bytes


def predict(backward: float, buckets: Sequence[int], seconds: Callable[[int], float]) -> float:
    """Seconds of exposed communication.

    A bucket is ready when its share of the bytes of all gradients has been computed, at an even pace; calls run one
    after another, on hardware of their own.

    Args:
        backward: seconds of the backward pass without communication.
        buckets: bytes of each, in the order in which they are ready.
        seconds: of a call, by the bytes of its bucket.
    """
    computed, end = 0, 0.0
    for nbytes in buckets:
        computed += nbytes
        end = max(end, backward * computed / sum(buckets)) + seconds(nbytes)
    return max(0.0, end - backward)


def measure(comm: Communicator, bucket_mb: float, peers: Sequence[str], job: Job) -> list[Seen]:
    """All backends at one bucket size, on this rank, in turn. Collective."""
    trained: list[_Trained] = []
    found = []
    group = open_torch("gloo", job.timeout).group
    ours = (("BF16", ddp.bf16_hook, torch.bfloat16), ("FP32", ddp.fp32_hook, torch.float32))
    for name, hook, wire in ours:
        call = functools.partial(comm.all_reduce, op="avg", wire=wire)
        found.append(Seen(f"tricoll, {name}"))
        trained.append(_Trained(found[-1], group, comm._fabric.device, comm, hook, call, bucket_mb, job))
    for peer in peers:
        try:
            backend = open_torch(peer, job.timeout)
        except Unavailable as reason:
            found += [Seen(f"{peer}, {name}", str(reason)) for name in ("BF16", "FP32")]
            continue
        theirs = (("BF16", bf16_compress_hook, gradients.bf16_hook), ("FP32", allreduce_hook, gradients.fp32))
        for name, their_hook, way in theirs:
            alone = functools.partial(way, group=backend.group)
            found.append(Seen(f"{peer}, {name}"))
            place = (backend.group, backend.device, backend.group, their_hook)
            trained.append(_Trained(found[-1], *place, alone, bucket_mb, job))
    for each in trained:
        each.alone(job.samples)
    for sample in range(job.samples):
        turn = sample % len(trained)
        for each in trained[turn:] + trained[:turn]:
            each.seen.without.append(each.backward(communicate=False))
            each.seen.with_.append(each.backward(communicate=True))
    return found


class _Trained:
    """A model whose gradients one backend averages."""

    def __init__(
        self, seen: Seen, group: Any, device: torch.device, state: Any, hook: Any, call: Any, bucket_mb: float, job: Job
    ) -> None:
        self.seen, self.device, self.call = seen, device, call
        torch.manual_seed(0)
        layers = [torch.nn.Linear(job.width, job.width, bias=False, device=device) for _ in range(job.layers)]
        net = torch.nn.Sequential(*layers)
        self.model = DistributedDataParallel(net, process_group=group, bucket_cap_mb=bucket_mb)
        self.sizes: list[int] = []

        def recorded(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            self.sizes.append(bucket.buffer().numel() * bucket.buffer().element_size())
            return hook(state, bucket)  # type: ignore[no-any-return]

        # DDP compares a hook's annotations with classes, and these are strings.
        recorded.__annotations__ = {}
        self.model.register_comm_hook(state, recorded)
        self.x = torch.randn(job.batch, job.width, device=device)
        for _ in range(3):  # DDP arranges its buckets anew after the first
            self.sizes.clear()
            self.backward(communicate=True)
        seen.buckets = list(self.sizes)

    def backward(self, communicate: bool) -> float:
        """Seconds of a backward pass."""
        with contextlib.nullcontext() if communicate else self.model.no_sync():
            loss = self.model(self.x).square().mean()
            self._wait()
            dist.barrier()
            start = time.perf_counter()
            loss.backward()
            self._wait()
            return time.perf_counter() - start

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def alone(self, samples: int) -> None:
        """Time the calls by themselves, for each size of a bucket."""
        for nbytes in sorted(set(self.seen.buckets)):
            x = torch.ones(nbytes // 4, device=self.device)
            self.call(x)
            times = []
            for _ in range(samples):
                x.fill_(1.0)
                dist.barrier()
                times.append(timed(functools.partial(self.call, x), 1, self.device))
            self.seen.alone[nbytes] = times


def run(ranks: Ranks, peers: Sequence[str], buckets: Sequence[float], job: Job, fabric: str, command: str) -> Report:
    """Measure all bucket sizes."""
    config = {"ranks": ranks.size, "peers": list(peers), "bucket_mb": list(buckets), **vars(job)}
    report = Report("overlap", command, config)
    with progress(ranks.prints) as bar:
        for bucket_mb in bar.track(buckets, description="buckets"):
            for seen in zip(
                *ranks.run(measure, bucket_mb, peers, job, timeout=job.timeout, fabric=fabric), strict=True
            ):
                if seen[0].failure:
                    report.unavailable.append(f"{seen[0].label}: {seen[0].failure}")
                else:
                    report.results.append(_result(bucket_mb, seen))
    report.unavailable = list(dict.fromkeys(report.unavailable))
    report.failed = not report.results
    return report


def _result(bucket_mb: float, ranks: Sequence[Seen]) -> dict[str, Any]:
    slowest = lambda of_ranks: [max(each) for each in zip(*of_ranks, strict=True)]
    with_, without = slowest([seen.with_ for seen in ranks]), slowest([seen.without for seen in ranks])
    first = ranks[0]
    alone = {nbytes: statistics.median(slowest([seen.alone[nbytes] for seen in ranks])) for nbytes in first.alone}
    backward = statistics.median(without)
    exposed = noise.median([a - b for a, b in zip(with_, without, strict=True)])
    return {
        "backend": first.label,
        "ranks": len(ranks),
        "bucket_mb": bucket_mb,  # as DDP takes it, MiB
        "calls": len(first.buckets),
        "time": 1e6 * statistics.median(with_),  # microseconds, as all that follow
        "samples": [1e6 * s for s in with_],
        "backward": 1e6 * backward,
        "communication": 1e6 * sum(alone[nbytes] for nbytes in first.buckets),
        "exposed": 1e6 * exposed.median,
        "exposed_low": 1e6 * exposed.low if exposed.low > -1e9 else None,
        "exposed_high": 1e6 * exposed.high if exposed.high < 1e9 else None,
        "predicted": 1e6 * predict(backward, first.buckets, alone.__getitem__),
    }


def tables(report: Report) -> Iterator[Table | str]:
    """The results, and what they mean."""
    names = ("", "bucket\n(MiB)", "calls", "backward\nalone (ms)", "calls\nalone (ms)", "both\n(ms)",
             "exposed (ms)\n[95 %]", "predicted\n(ms)")  # fmt: skip
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for r in report.results:
        known = r["exposed_low"] is not None
        interval = f" [{r['exposed_low'] / 1e3:.1f}, {r['exposed_high'] / 1e3:.1f}]" if known else ""
        ms = {key: f"{r[key] / 1e3:.1f}" for key in ("backward", "communication", "time", "exposed", "predicted")}
        table.add_row(
            r["backend"], f"{r['bucket_mb']:g}", f"{r['calls']}", ms["backward"], ms["communication"], ms["time"],
            ms["exposed"] + interval, ms["predicted"],
        )  # fmt: skip
    yield table
    yield ""
    yield (
        "Exposed: a backward pass with communication less one without, the slowest rank's. Predicted: from the calls' "
        "times alone, as if they had hardware of their own. Where ranks share cores, so do calls and backward pass."
    )
    yield from (f"Not measured: {text}" for text in report.unavailable)
