"""Bits: the same on all ranks, in every run, whatever else is in the message."""

from __future__ import annotations

import hashlib
import random
import time
from functools import partial

import torch
from torch import Tensor

from ... import oracle, testing
from .. import calls
from ..backends import Api
from ..outcome import Verdict
from ..probe import FLOATS, Probe, scene, search_inputs
from ..session import Session

SIZES = (1, 7, 100, 1000, 5000)


def same_on_all_ranks(session: Session) -> Verdict:
    judge = lambda outputs, inputs, op: testing.assert_same_on_all_ranks(outputs)
    kinds = ("mixed", "cancelling")
    return search_inputs(session, calls.all_reduce, judge, kinds, dtypes=FLOATS, ops=("sum", "avg", "min"))


def run_to_run(session: Session) -> Verdict:
    repeats = 20
    results = partial(_repeated, repeats=repeats)

    def judge(values: list[list[str]]) -> Verdict:
        bits = {digest for digests in values for digest in digests}
        example = f"all_reduce of 3,000 FP32, {repeats} times, ranks up to 3 ms late"
        if len(bits) == 1:
            return Verdict("yes", example)
        return Verdict("no", f"{len(bits)} different results", example)

    return scene(session, results, judge, "all_reduce, repeated")


def _repeated(api: Api, repeats: int) -> list[str]:
    sleeps = random.Random(api.rank)
    data = testing.make_inputs(api.size, (3000,), torch.float32, "cancelling", 5)[api.rank]
    digests = []
    for _ in range(repeats):
        time.sleep(0.003 * sleeps.random())
        x = data.clone().to(api.device)
        api.all_reduce(x)
        digests.append(hashlib.sha256(x.cpu().numpy().tobytes()).hexdigest())
    return digests


def size_independence(session: Session) -> Verdict:
    def judge(values: list[list[Tensor]]) -> Verdict:
        longest = values[0][-1]
        how = ', with algo="two_shot"' if session.backend == "tricoll" else ""
        for size, x in zip(SIZES, values[0], strict=True):
            if different := int(oracle.differing(x, longest[:size]).sum()):
                example = f"all_reduce of the first {size} of {SIZES[-1]} FP32 numbers, and of all"
                return Verdict("no", f"{different} of {size} elements have other bits", example)
        return Verdict("yes", f"all_reduce of the first {SIZES} numbers of the same data{how}")

    return scene(session, _prefixes, judge, "all_reduce of parts of a tensor")


def _prefixes(api: Api) -> list[Tensor]:
    data = testing.make_inputs(api.size, (SIZES[-1],), torch.float32, "cancelling", 5)[api.rank]
    results = []
    for size in SIZES:
        x = data[:size].clone().to(api.device)
        api.all_reduce(x, reproducible=True)
        results.append(x.cpu())
    return results


PROBES = (
    Probe("bits: same on all ranks", "whatever the data", same_on_all_ranks),
    Probe("bits: same run after run", "whoever is late", run_to_run),
    Probe(
        "bits: independent of the size",
        "an element's result does not depend on the message's length",
        size_independence,
    ),
)
