"""Values: NaN, zeros with signs, subnormal numbers, the ends of the range."""

from __future__ import annotations

import torch
from torch import Tensor

from ..backends import Api
from ..outcome import Verdict
from ..probe import EIGHT, Probe, constants, scene
from ..session import Session


def nan(session: Session) -> Verdict:
    example = "one rank has NaN, the others 1, 2, ...: sum, min and max of FP32, FP16 and BF16, the NaN on each rank"

    def judge(values: list[dict[str, Tensor]]) -> Verdict:
        for rank, found in enumerate(values):
            for what, x in found.items():
                if not bool(x.isnan().all()):
                    at = int((~x.isnan()).nonzero()[0])
                    smallest = f"{what}, NaN on rank {at % session.ranks}"
                    return Verdict("wrong", f"{what}: {x[at].item():g} on rank {rank}, not NaN", smallest)
        return Verdict("right", example)

    return scene(session, _nans, judge, example)


def _nans(api: Api) -> dict[str, Tensor]:
    results = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for op in ("sum", "min", "max"):
            x = torch.full((17 * api.size,), float(api.rank + 1), dtype=dtype, device=api.device)
            x[api.rank :: api.size] = float("nan")
            api.all_reduce(x, op)
            results[f"{op} of {dtype}".replace("torch.", "")] = x.cpu()
    return results


def negative_zero(session: Session) -> Verdict:
    cases = [(-0.0, dtype, "sum", -0.0) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
    return constants(session, cases, session.ranks)


def subnormals(session: Session) -> Verdict:
    n = session.ranks
    smallest = ((torch.float32, 2.0**-149), (torch.float16, 2.0**-24), (torch.bfloat16, 2.0**-133))
    return constants(session, [(value, dtype, "sum", n * value) for dtype, value in smallest], n)


def averages(session: Session) -> Verdict:
    cases = [(60000.0, torch.float16, "avg", 60000.0), (2.0**-24, torch.float16, "avg", 2.0**-24),
             (2.0**-149, torch.float32, "avg", 2.0**-149), (2.0**-133, torch.bfloat16, "avg", 2.0**-133)]  # fmt: skip
    return constants(session, cases, EIGHT)


PROBES = (
    Probe("values: NaN", "sum, min and max are NaN, whichever rank has it", nan),
    Probe("values: -0.0", "the sum of negative zeros is one", negative_zero),
    Probe("values: subnormal numbers", "are not taken for zero", subnormals),
    Probe("values: averages at the ends of the range", "neither overflow nor vanish", averages),
)
