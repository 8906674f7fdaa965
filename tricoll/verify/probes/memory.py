"""Memory: tensors that are unaligned, not contiguous, or laid out in another way on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ... import oracle, testing
from ...testing import Guarded, Layout
from ..backends import Api
from ..outcome import Verdict
from ..probe import Probe, equal, scene, search, values
from ..session import Session


def _placed(api: Api, inputs: Sequence[Tensor], layout: Layout, collective: str) -> tuple[Tensor, str]:
    guarded = Guarded(inputs[api.rank].to(api.device), layout)
    if collective == "all_reduce":
        api.all_reduce(guarded.view)
    else:
        api.broadcast(guarded.view, api.size - 1)
    try:
        guarded.check()
        outside = ""
    except AssertionError as error:
        outside = str(error)
    return guarded.view.cpu().clone(), outside


def _layouts(session: Session, unaligned_only: bool) -> Verdict:
    from hypothesis import strategies as st

    def draw(d: Any) -> dict[str, Any]:
        shape = d(st.sampled_from([(2, 2), (4,), (3, 4), (64, 33)]))
        layout = (
            Layout(d(st.integers(1, 5))) if unaligned_only else Layout(0, d(st.sampled_from((1, 2))), d(st.booleans()))
        )
        dtype = d(st.sampled_from((torch.float32, torch.float16, torch.uint8)))
        inputs = testing.make_inputs(session.ranks, shape, dtype, "small", 3)
        return {
            "inputs": inputs,
            "dtype": dtype,
            "layout": layout,
            "collective": d(st.sampled_from(("all_reduce", "broadcast"))),
        }

    def check(inputs: list[Tensor], dtype: torch.dtype, layout: Layout, collective: str) -> None:
        what = f"{collective} of stride {layout.stride}" + (", transposed" if layout.transposed else "")
        placed = values(session.ask(_placed, inputs, layout, collective), what)
        expected = oracle.reduce(inputs) if collective == "all_reduce" else inputs[-1]
        for rank, (output, outside) in enumerate(placed):
            testing.assert_same_bits(output, expected, f"rank {rank}")
            assert not outside, f"rank {rank}: {outside}"

    return search(session, draw, check)


def one_channels_last(session: Session) -> Verdict:
    inputs = testing.make_inputs(session.ranks, (2, 3, 4, 5), torch.float32, "small", 4)
    example = "all_reduce of shape (2, 3, 4, 5): channels-last on rank 0, contiguous on the others"
    judge = partial(equal, oracle.reduce(inputs), example)
    return scene(session, partial(_channels_last, inputs=inputs), judge, example)


def _channels_last(api: Api, inputs: Sequence[Tensor]) -> Tensor:
    x = inputs[api.rank].to(api.device)
    x = x.to(memory_format=torch.channels_last) if api.rank == 0 else x.clone()
    api.all_reduce(x)
    return x.cpu().contiguous()


def overlapping(session: Session) -> Verdict:
    example = "all_reduce of torch.ones(4)[:1].expand(4): four elements in one place"

    def judge(values: list[list[float]]) -> Verdict:
        wrong = [found for found in values if found != [float(session.ranks), 1.0, 1.0, 1.0]]
        if not wrong:
            return Verdict("right", "reduced as one element")
        return Verdict("wrong", f"no error, and memory next to the tensor is written: {wrong[0]}", example)

    return _errors_are_right(scene(session, _expanded, judge, example))


def _expanded(api: Api) -> list[float]:
    memory = torch.ones(4, device=api.device)
    api.all_reduce(memory[:1].expand(4))
    found: list[float] = memory.tolist()
    return found


def _errors_are_right(verdict: Verdict) -> Verdict:
    return Verdict("right", f"error on every rank: {verdict.text}") if verdict.mark == "refused" else verdict


PROBES = (
    Probe(
        "memory: unaligned tensors",
        "right, and nothing next to them is written",
        partial(_layouts, unaligned_only=True),
    ),
    Probe(
        "memory: non-contiguous tensors", "right, or an error on every rank", partial(_layouts, unaligned_only=False)
    ),
    Probe("memory: channels-last on one rank", "right, or an error on every rank", one_channels_last),
    Probe("memory: overlapping elements", "an error on every rank", overlapping),
)
