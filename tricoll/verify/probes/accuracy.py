"""Accuracy: how far off sums are, and whether what is small is lost."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import testing
from .. import calls
from ..backends import Api
from ..outcome import Verdict
from ..probe import EIGHT, FLOATS, Probe, scene, search_inputs
from ..session import Session

MEASURED = {"FP32": torch.float32, "BF16": torch.bfloat16, "FP16": torch.float16}


def within_the_bound(session: Session) -> Verdict:
    judge = lambda outputs, inputs, op: testing.check_all_reduce(outputs, inputs, op, algorithm=None)
    kinds = ("random", "cancelling", "ties")
    return search_inputs(session, calls.all_reduce, judge, kinds, dtypes=FLOATS, ops=("sum", "avg"))


def measured(session: Session) -> Verdict:
    n = session.ranks

    def judge(values: list[dict[str, float]]) -> Verdict:
        errors = values[0]
        text = ", ".join(f"{name} {error:.2g}" for name, error in errors.items())
        # 2 n roundings of up to half an eps, of sums of n numbers that are sqrt(n) times the exact sum.
        right = all(error < n**1.5 * torch.finfo(MEASURED[name]).eps for name, error in errors.items())
        text = f"relative RMS error of sums of normal numbers, {n} ranks: {text}"
        return Verdict("right" if right else "wrong", text, example)

    example = "all_reduce of normal numbers"
    return scene(session, _errors, judge, example)


def _errors(api: Api) -> dict[str, float]:
    errors = {}
    for name, dtype in MEASURED.items():
        generator = torch.Generator().manual_seed(3)
        inputs = [torch.randn(1 << 15, generator=generator).to(dtype) for _ in range(api.size)]
        exact = torch.stack(inputs).sum(0, dtype=torch.float64)
        x = inputs[api.rank].clone().to(api.device)
        api.all_reduce(x)
        errors[name] = float(((x.cpu().double() - exact).square().mean() / exact.square().mean()).sqrt())
    return errors


def wide_sums(session: Session) -> Verdict:
    example = "all_reduce of BF16: 256 on rank 0 and 1 on 7 others; 263 is 264 in BF16"

    def judge(values: list[Tensor]) -> Verdict:
        got = sorted({v for x in values for v in x.tolist()})
        return Verdict("yes", example) if got == [264.0] else Verdict("no", f"{got}, not 264", example)

    return scene(session, _large_and_small, judge, example, EIGHT)


def _large_and_small(api: Api) -> Tensor:
    x = torch.full((4096,), 256.0 if api.rank == 0 else 1.0, dtype=torch.bfloat16, device=api.device)
    api.all_reduce(x)
    return x.cpu()


PROBES = (
    Probe("accuracy: within the bound", "what any order of additions may give", within_the_bound),
    Probe("accuracy: measured", "how far off sums are", measured),
    Probe("accuracy: BF16 is added in FP32", "small numbers are not lost next to a large one", wide_sums),
)
