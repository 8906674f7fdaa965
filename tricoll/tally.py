"""What a communicator has counted on request, of gradients on their way: squares and values that are not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from .kernels.tally import OWN, RESULTS, WORDS


class Ranks(Protocol):
    """What a tally needs of its communicator."""

    @property
    def world_size(self) -> int: ...

    def together(self, what: str, run: Callable[[], Any]) -> Any:
        """Several calls as one, in its turn."""

    def all_reduce(self, x: torch.Tensor) -> Any:
        """The sum over ranks, in place."""


class Totals(NamedTuple):
    """Of all ranks together, the same bits on each."""

    local_squares: float  # the sum over ranks of the squared norm of what each brought
    local_nonfinite: int  # elements of that which are infinite or NaN
    squares: float  # the squared norm of the results
    nonfinite: int  # elements of the results which are infinite or NaN


class Tally:
    """Counts values that pass through reductions, inside their kernels. Made by :meth:`Communicator.tally`.

    It can be given to any number of calls of all_reduce and reduce_scatter, ``comm.all_reduce(x, tally=tally)``, until
    :meth:`take` is called. What a rank brings is counted before it is rounded to the wire dtype or scaled, a result as
    it is sent on. Squares are added in FP32 (FP64 for FP64) within a piece of a message, and in FP64 beyond.
    """

    def __init__(self, comm: Ranks, channels: int, device: torch.device) -> None:
        self.comm = comm
        self.words = torch.zeros(channels, WORDS, dtype=torch.float64, device=device)

    def include(self, local: torch.Tensor | None, result: torch.Tensor | None) -> None:
        """Count values that went another way, in a pass of its own. A result is to be counted by one rank only.

        Args:
            local: what this rank brought, or None.
            result: of the reduction, or None.
        """
        for at, values in ((OWN, local), (RESULTS, result)):
            if values is not None:
                wide = values.detach().double()
                self.words[0, at] += wide.square().sum()
                self.words[0, at + 1] += (~wide.isfinite()).sum()

    def take(self) -> Totals:
        """The totals since the last time, of all ranks. Collective: one all-reduce of 32 bytes, in its turn."""
        sums = torch.zeros(WORDS, dtype=torch.float64, device=self.words.device)

        def run() -> None:
            sums.copy_(self.words.sum(0))
            self.words.zero_()
            self.comm.all_reduce(sums)

        self.comm.together("the totals of a tally", run).wait()
        local, local_odd, squares, odd = sums.tolist()
        return Totals(local, int(local_odd), squares, int(odd))
