"""Where tensors lie: at odd addresses, with gaps, and in memory around which nothing may be written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

GUARD = 64  # bytes on each side of a guarded tensor, and what stands in them
CANARY = 0xA5


class Layout(NamedTuple):
    """Where a tensor lies in a buffer of its own. Drawn by :func:`layouts`."""

    offset: int = 0  # elements behind an address that is a multiple of 64 bytes
    stride: int = 1  # of neighbours, in elements
    transposed: bool = False  # whether the first dimension varies fastest

    def strides(self, shape: Sequence[int]) -> list[int]:
        """Of a tensor of this shape, in elements.

        Args:
            shape: of the tensor.
        """
        order = range(len(shape)) if self.transposed else reversed(range(len(shape)))
        strides, step = [0] * len(shape), self.stride
        for d in order:
            strides[d], step = step, step * max(shape[d], 1)
        return strides


class Guarded:
    """A tensor that is a view into a larger buffer, and a way to see that nothing around it was written.

    >>> guarded = Guarded(torch.zeros(5), Layout(offset=1, stride=2))
    >>> guarded.view.fill_(1.0).stride()
    (2,)
    >>> guarded.check()

    Args:
        values: what ``view`` gets: its shape, dtype and elements.
        layout: where it lies.
    """

    def __init__(self, values: Tensor, layout: Layout = Layout()) -> None:  # noqa: B008
        """``view`` gets the shape, the dtype and the elements of ``values``."""
        strides, guard = layout.strides(values.shape), GUARD // values.element_size()
        extent = sum((size - 1) * stride for size, stride in zip(values.shape, strides, strict=True)) + 1
        total = guard + layout.offset + (extent if values.numel() else 0) + guard
        self.memory = torch.full((total, values.element_size()), CANARY, dtype=torch.uint8, device=values.device)
        place = (values.shape, strides, guard + layout.offset)
        self.outside = torch.ones(total, dtype=torch.bool, device=values.device)
        self.outside.as_strided(*place).fill_(False)
        self.view = self.memory.view(-1).view(values.dtype).as_strided(*place)
        self.view.copy_(values)

    def check(self) -> None:
        """Raise AssertionError if memory outside the view has changed."""
        changed = ((self.memory != CANARY).any(1) & self.outside).nonzero().view(-1)
        if len(changed):
            start = self.view.storage_offset()
            raise AssertionError(
                f"{len(changed)} elements outside the tensor were written; the first is {int(changed[0]) - start} "
                f"elements from its start (shape {tuple(self.view.shape)}, strides {self.view.stride()})"
            )
