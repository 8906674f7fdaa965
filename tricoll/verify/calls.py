"""One call on a rank, with its share of inputs that the asking process has made; the result is on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .backends import Api


def all_reduce(api: Api, inputs: Sequence[Tensor], op: str = "sum") -> Tensor:
    x = inputs[api.rank].clone().to(api.device)
    api.all_reduce(x, op)
    return x.cpu()


def reduce_scatter(api: Api, inputs: Sequence[Tensor], op: str = "sum") -> Tensor:
    x = inputs[api.rank].to(api.device)
    out = torch.empty((x.shape[0] // api.size, *x.shape[1:]), dtype=x.dtype, device=api.device)
    api.reduce_scatter(out, x, op)
    return out.cpu()


def all_gather(api: Api, inputs: Sequence[Tensor]) -> Tensor:
    x = inputs[api.rank].to(api.device)
    out = torch.empty((x.shape[0] * api.size, *x.shape[1:]), dtype=x.dtype, device=api.device)
    api.all_gather(out, x)
    return out.cpu()


def broadcast(api: Api, inputs: Sequence[Tensor], root: int) -> Tensor:
    x = inputs[api.rank].clone().to(api.device)
    api.broadcast(x, root)
    return x.cpu()
