"""How long calls take: by the clock on a CPU, by CUDA events on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def timed(
    call: Callable[[], object],
    count: int,
    device: torch.device,
    cpu_time: bool = False,
    between: Callable[[], object] | None = None,
) -> float:
    """Seconds a call, of ``count`` calls one after the other on the current stream.

    Args:
        call: what is timed; on a GPU it may return before its work is done.
        count: how often.
        device: where its work is done.
        cpu_time: on a GPU, take the host's time, and do not wait until the work is done.
        between: what to do after each call, such as a barrier; None: nothing.
    """
    events = device.type == "cuda" and not cpu_time
    if events:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
    start = time.perf_counter()
    for _ in range(count):
        call()
        if between is not None:
            between()
    if events:
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / count
    return (time.perf_counter() - start) / count
