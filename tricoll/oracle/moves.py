"""Collectives that move: every element goes through the wire dtype to the output dtype, a rank's own part too."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .cuts import of_root, rows
from .dtypes import chosen
from .steps import cast
from .views import plain


def all_gather(
    inputs: Sequence[Tensor], wire: torch.dtype | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """What every rank holds after an all-gather along dimension 0, in which the inputs may differ in size.

    Args:
        inputs: what each rank gives, in rank order.
        wire: the dtype that travels; None: that of the inputs.
        out_dtype: of the result; None: that of the inputs.
    """
    wire, out = chosen(inputs[0].dtype, wire, out_dtype)
    return torch.cat([torch.atleast_1d(_move(x, wire, out)) for x in inputs])


def gather(inputs: Sequence[Tensor], wire: torch.dtype | None = None, out_dtype: torch.dtype | None = None) -> Tensor:
    """What the root holds after a gather along dimension 0: the same as after an all-gather, whoever the root is.

    Args:
        inputs: what each rank gives, in rank order.
        wire: the dtype that travels; None: that of the inputs.
        out_dtype: of the result; None: that of the inputs.
    """
    return all_gather(inputs, wire, out_dtype)


def broadcast(
    inputs: Sequence[Tensor | None],
    wire: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    root: int = 0,
) -> Tensor:
    """What every rank holds after a broadcast, the root too. Only ``inputs[root]`` is looked at.

    Args:
        wire: the dtype that travels; None: that of the inputs.
        out_dtype: of the result; None: that of the inputs.
    """
    x = of_root(inputs, root)
    return _move(x, *chosen(x.dtype, wire, out_dtype))


def scatter(
    inputs: Sequence[Tensor | None],
    wire: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    root: int = 0,
) -> list[Tensor]:
    """What each rank holds after the root's tensor was cut along dimension 0 into n equal parts, in rank order.

    Only ``inputs[root]`` is looked at.

    Args:
        wire: the dtype that travels; None: that of the inputs.
        out_dtype: of the result; None: that of the inputs.
    """
    x = of_root(inputs, root)
    moved = _move(x, *chosen(x.dtype, wire, out_dtype))
    return [part.clone() for part in moved.split(rows(x, len(inputs)))]


def all_to_all(
    inputs: Sequence[Tensor],
    wire: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    splits: Sequence[Sequence[int]] | None = None,
) -> list[Tensor]:
    """What each rank holds after an all-to-all along dimension 0, in rank order.

    Args:
        inputs: what each rank gives, in rank order.
        wire: the dtype that travels; None: that of the inputs.
        out_dtype: of the result; None: that of the inputs.
        splits: ``splits[r][s]`` rows of rank r's tensor go to rank s; None: n equal parts.
    """
    wire, out = chosen(inputs[0].dtype, wire, out_dtype)
    n = len(inputs)
    parts = [_move(x, wire, out).split(rows(x, n, splits[r] if splits else None)) for r, x in enumerate(inputs)]
    return [torch.cat([parts[source][rank] for source in range(n)]) for rank in range(n)]


def _move(x: Tensor, wire: torch.dtype, out: torch.dtype) -> Tensor:
    return cast(cast(plain(x).clone(), wire), out)
