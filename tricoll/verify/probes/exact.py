"""Exact: what has one right answer whatever the order, and what is only moved."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ... import oracle, testing
from .. import calls
from ..backends import Api
from ..outcome import Verdict
from ..probe import Probe, assert_equal, constants, scene, search_inputs
from ..session import Session

OPS = ("sum", "min", "max")
SHAPES = ((0,), (1, 0, 2), (0, 8), (1,), (3,))


def all_reduce(session: Session) -> Verdict:
    judge = lambda outputs, inputs, op: assert_equal(outputs, oracle.reduce(inputs, op))
    return search_inputs(session, calls.all_reduce, judge, ("small",), ops=OPS)


def reduce_scatter(session: Session) -> Verdict:
    return search_inputs(session, calls.reduce_scatter, testing.check_reduce_scatter, ("small",), ops=OPS, parts=True)


def all_gather(session: Session) -> Verdict:
    return search_inputs(session, calls.all_gather, testing.check_all_gather, ("bits",))


def broadcast(session: Session) -> Verdict:
    return search_inputs(session, calls.broadcast, testing.check_broadcast, ("bits",), roots=True)


def integers(session: Session) -> Verdict:
    n = session.ranks
    cases: list[tuple[float, torch.dtype, str, float]] = [
        (2**60 // n + 1, torch.int64, "sum", 2**60 // n * n + n),
        (1, torch.bool, "sum", 1),
        (3, torch.uint8, "prod", 3**n % 256),
    ]
    return constants(session, cases, n)


def empty(session: Session) -> Verdict:
    for shape in SHAPES:
        example = f"all_reduce, all_gather, broadcast of shape {shape}, then all_reduce of 1 element"
        inputs = testing.make_inputs(session.ranks, shape, torch.float32, "small", 1)
        expected = [oracle.reduce(inputs), oracle.all_gather(inputs), inputs[session.ranks - 1]]

        def judge(values: list[list[Tensor]], expected: Any = expected, example: str = example) -> Verdict:
            for rank, results in enumerate(values):
                for got, right in zip(results, [*expected, torch.full((1,), float(session.ranks))], strict=True):
                    if not oracle.same_bits(got, right):
                        return Verdict(
                            "wrong", f"rank {rank}: {tuple(got.shape)}, {got.flatten()[:4].tolist()}", example
                        )
            return Verdict("right")

        verdict = scene(session, partial(_small, inputs=inputs), judge, example)
        if verdict.mark != "right":
            return verdict
    return Verdict("right", f"shapes {', '.join(map(str, SHAPES))} on {session.ranks} ranks")


def _small(api: Api, inputs: Sequence[Tensor]) -> list[Tensor]:
    one = torch.ones(1, device=api.device)
    results = [calls.all_reduce(api, inputs), calls.all_gather(api, inputs), calls.broadcast(api, inputs, api.size - 1)]
    api.all_reduce(one)
    return [*results, one.cpu()]


PROBES = (
    Probe("exact: all_reduce", "sums that are exact in any order are exact", all_reduce),
    Probe("exact: reduce_scatter", "the same, a part a rank", reduce_scatter),
    Probe("exact: all_gather", "any bit pattern arrives as it was", all_gather),
    Probe("exact: broadcast", "any bit pattern arrives as it was, from any root", broadcast),
    Probe("exact: integers and bool", "integers wrap and take no detour by floats, bool sums are or", integers),
    Probe("exact: empty and small tensors", "no element, or fewer than ranks", empty),
)
