"""The DDP hooks during the backward pass: when buckets travel, who is late, and how much memory it takes."""

import gc
import json
import re
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import tricoll
from tricoll import ddp


class Slow(torch.autograd.Function):
    """The identity, whose gradient takes its time."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.15)
        return grad


def overlapped(comm, folder):
    dist.init_process_group("gloo")
    first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x):
            return self.second(Slow.apply(self.first(x)))

    model = DistributedDataParallel(Model(), bucket_cap_mb=1e-5)
    model.register_comm_hook(comm, ddp.bf16_hook)
    assert "no backward pass" in str(ddp.timeline(comm))
    for _ in range(3):
        model(torch.ones(2, 8)).sum().backward()
    timeline = ddp.timeline(comm)
    if comm.rank == 0:
        timeline.chrome_trace(folder / "trace.json")
        timeline.plot(folder / "step.png")
    return timeline


def test_buckets_travel_during_the_backward_pass(pool, tmp_path):
    for rank, timeline in enumerate(pool(2).run(overlapped, tmp_path, limit=60)):
        assert timeline.rank == rank and len(timeline.steps) == 3
        for step in timeline.steps[1:]:  # in the first, DDP has one bucket
            assert len(step.buckets) == 4
            assert all(b.ready <= b.start < b.end <= step.end for b in step.buckets)
            # The second layer's buckets were sent while the gradient of the first was on its way.
            assert sum(b.end < step.backward_end for b in step.buckets) >= 2
            assert 0 < step.hidden < 0.3 and 0 <= step.exposed < 0.3
            assert sorted(b.nbytes for b in step.buckets) == [32, 32, 256, 256]
        assert "hidden" in str(timeline)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X" and e["tid"] == 1]
    assert len(spans) == sum(len(step.buckets) for step in timeline.steps)
    assert all(e["dur"] > 0 for e in spans)
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


def absent_in_backward(comm, static):
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 2), static_graph=static)
    model.register_comm_hook(comm, ddp.bf16_hook)
    loss = model(torch.ones(1, 4)).sum()
    if comm.rank == 1:
        return time.sleep(3)
    # The first pass of a static graph averages after its end, where the type of an error does not survive DDP.
    with pytest.raises(RuntimeError if static else tricoll.CollectiveTimeout, match=r"ranks \[1\]"):
        loss.backward()
    return True


@pytest.mark.parametrize("static", [False, True])
def test_a_late_rank_is_an_error_out_of_backward(pool, static):
    assert pool(2).run(absent_in_backward, static, timeout=1, limit=60) == [True, None]


class OneBucket:
    """As much of a bucket as hooks look at."""

    def __init__(self, buffer):
        self.tensor = buffer

    def buffer(self):
        return self.tensor

    def set_buffer(self, buffer):
        self.tensor = buffer

    def index(self):
        return 0


def peak_of(call):
    """By how many bytes a call raises the memory of this process while it goes on."""
    status = lambda name: int(re.search(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
    call()  # what stays from the first time on does not count, nor what goes
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status("VmRSS")
    call()
    return status("VmHWM") - before


def memory(comm):
    dist.init_process_group("gloo")
    buffer, stats = torch.zeros(1 << 25), ddp.GradientStats(comm)
    hooks = {
        "bf16": lambda: ddp.bf16_hook(comm, OneBucket(buffer)).wait(),
        "fp32": lambda: ddp.fp32_hook(comm, OneBucket(buffer)).wait(),
        "stats": lambda: ddp.bf16_hook(stats, OneBucket(buffer)).wait(),
        "torch": lambda: bf16_compress_hook(dist.group.WORLD, OneBucket(buffer)).wait(),
    }
    return {name: peak_of(hook) for name, hook in hooks.items()}


def test_no_temporary_as_large_as_a_bucket(pool):
    """128 MiB of FP32 gradients. PyTorch's BF16 hook makes a copy in BF16, so what is measured is there to be seen."""
    for peaks in pool(2).run(memory, limit=100):
        assert max(peaks[name] for name in ("bf16", "fp32", "stats")) < 8 << 20, peaks
        assert peaks["torch"] > 32 << 20, peaks
