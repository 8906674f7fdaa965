"""Mismatch: ranks that make different calls. Nothing but an error on every rank is right."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..backends import Api
from ..outcome import Verdict, first, same
from ..probe import Probe
from ..session import Session


def mismatch(fn: Callable[[Api], Any], example: str, session: Session) -> Verdict:
    outcomes = session.ask(fn)
    kind = same(outcomes)
    if kind == "error":
        slowest = max(outcome.seconds for outcome in outcomes)
        return Verdict("right", f"error on every rank after {slowest:.1f} s: {outcomes[0].text[:160]}")
    if kind in ("hang", "crash"):
        return Verdict(kind, first(outcomes, kind), example)
    ranks = [rank for rank, outcome in enumerate(outcomes) if outcome.kind == "value"]
    return Verdict("garbage", f"ranks {ranks} returned and raised nothing", example)


def _other_length(api: Api) -> None:
    api.all_reduce(torch.ones(1000 + (api.rank == 1), device=api.device))


def _none_here(api: Api) -> None:
    api.all_reduce(torch.ones(0 if api.rank == 1 else 1000, device=api.device))


def _other_length_scatter(api: Api) -> None:
    part = 1000 + (api.rank == 1)
    api.reduce_scatter(torch.empty(part, device=api.device), torch.ones(part * api.size, device=api.device))


def _other_length_gather(api: Api) -> None:
    part = 1000 + (api.rank == 1)
    api.all_gather(torch.empty(part * api.size, device=api.device), torch.ones(part, device=api.device))


def _other_length_broadcast(api: Api) -> None:
    api.broadcast(torch.ones(1000 + (api.rank == 1), device=api.device))


def _other_dtype(api: Api) -> None:
    x = torch.ones(400, dtype=torch.int32) if api.rank == 1 else torch.ones(400)
    api.all_reduce(x.to(api.device))


def _other_op(api: Api) -> None:
    api.all_reduce(torch.ones(400, device=api.device), "max" if api.rank == 1 else "sum")


def _other_root(api: Api) -> None:
    api.broadcast(torch.full((400,), float(api.rank), device=api.device), 1 if api.rank == 1 else 0)


def _other_collective(api: Api) -> None:
    x = torch.ones(400, device=api.device)
    api.broadcast(x) if api.rank == 1 else api.all_reduce(x)


def _mismatch(name: str, fn: Callable[[Api], None], example: str) -> Probe:
    return Probe(f"mismatch: {name}", "an error on every rank", partial(mismatch, fn, example))


PROBES = (
    _mismatch("length", _other_length, "all_reduce of 1,001 elements on rank 1, of 1,000 on the others"),
    _mismatch("nothing on one rank", _none_here, "all_reduce of no element on rank 1, of 1,000 on the others"),
    _mismatch(
        "reduce_scatter length", _other_length_scatter, "reduce_scatter to 1,001 elements on rank 1, 1,000 elsewhere"
    ),
    _mismatch("all_gather length", _other_length_gather, "all_gather of 1,001 elements on rank 1, 1,000 elsewhere"),
    _mismatch("broadcast length", _other_length_broadcast, "broadcast of 1,001 elements on rank 1, 1,000 elsewhere"),
    _mismatch("dtype", _other_dtype, "all_reduce of int32 on rank 1, of float32 on the others"),
    _mismatch("op", _other_op, "all_reduce with max on rank 1, with sum on the others"),
    _mismatch("root", _other_root, "broadcast from rank 1 on rank 1, from rank 0 on the others"),
    _mismatch("collective", _other_collective, "broadcast on rank 1, all_reduce on the others"),
)
