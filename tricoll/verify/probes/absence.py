"""Time: ranks that die, stop or are late."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import torch
from torch import Tensor

from ..backends import Api
from ..outcome import Verdict
from ..probe import Probe, equal, scene, trouble
from ..session import Session

SETTLED = 0.5  # seconds after which all ranks have returned from a call


def _dead(api: Api, how: signal.Signals) -> float:
    x = torch.ones(1000, device=api.device)
    api.all_reduce(x)  # all are there
    if api.rank == 1:
        time.sleep(SETTLED)  # or its death could be seen in the call that it has done its part of
        os.kill(os.getpid(), how)
    start = time.monotonic()
    try:
        api.all_reduce(x)
    except Exception:
        return time.monotonic() - start
    return -1.0


def dead(how: signal.Signals, session: Session) -> Verdict:
    what = "killed" if how == signal.SIGKILL else "stopped"
    example = (
        f"rank 1 is {what} ({how.name}) before an all_reduce of the others; their timeout is {session.timeout:g} s"
    )
    outcomes = session.ask(partial(_dead, how=how))
    others = [outcome for rank, outcome in enumerate(outcomes) if rank != 1]
    if verdict := trouble(others, example):
        return verdict
    if min(outcome.value for outcome in others) < 0:
        return Verdict("garbage", "an all_reduce without rank 1 returned", example)
    return Verdict("right", f"the others raise an error within {max(outcome.value for outcome in others):.1f} s")


def late(session: Session) -> Verdict:
    example = "all_reduce, for which rank 1 is a second late"
    return scene(session, _late, partial(equal, torch.full((1000,), float(session.ranks)), example), example)


def _late(api: Api) -> Tensor:
    time.sleep(1.0 if api.rank == 1 else 0.0)
    x = torch.ones(1000, device=api.device)
    api.all_reduce(x)
    return x.cpu()


PROBES = (
    Probe("time: a dead rank", "the others raise an error in bounded time", partial(dead, signal.SIGKILL)),
    Probe("time: a stopped rank", "the others raise an error in bounded time", partial(dead, signal.SIGSTOP)),
    Probe("time: a late rank", "is waited for", late),
)
