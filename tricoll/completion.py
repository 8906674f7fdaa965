"""How it becomes known that a call has gone well: at once where a launch returns when its kernel has finished.

Where launches return at once (GPUs), :class:`tricoll.watch.Watch` takes the place of :class:`Immediate`.
"""

from __future__ import annotations

from typing import Protocol

import torch

from .control import Control, Failure
from .errors import CollectiveError
from .kernels import link

Pair = tuple[str, int] | None  # "send" or "recv" and the other rank; None: all ranks take part


def failures(status: list[list[int]]) -> list[Failure]:
    """What the channels of a status block say that have given up."""
    return [Failure(c, *words[:7]) for c, words in enumerate(status) if words[0] != link.OK]


class Completion(Protocol):
    """One rank's way of hearing from its kernels."""

    def status(self, pair: Pair) -> torch.Tensor:
        """The status block for a call that is about to be launched."""

    def launched(self, what: str, fingerprint: int, status: torch.Tensor, pair: Pair) -> CollectiveError | None:
        """The kernel of a call has been launched. Returns the call's error, if it is known already."""

    def used(self, tensors: list[torch.Tensor]) -> None:
        """A call has been carried out with these tensors."""

    def check(self) -> None:
        """Raise the error of an earlier call that has come to light since."""

    def close(self) -> None:
        """Nothing will be launched any more."""


class Immediate:
    """A launch returns when the kernel has finished: its status block is read, and an error raised, at once."""

    def __init__(self, control: Control, status: torch.Tensor) -> None:
        self._control, self._status = control, status

    def status(self, pair: Pair) -> torch.Tensor:
        # A send and a receive may run beside each other.
        return self._status if pair is None else torch.zeros_like(self._status)

    def launched(self, what: str, fingerprint: int, status: torch.Tensor, pair: Pair) -> CollectiveError | None:
        found = failures(status.tolist())
        return self._control.explain(what, found, pair=pair is not None) if found else None

    def used(self, tensors: list[torch.Tensor]) -> None:
        """And is over."""

    def check(self) -> None:
        """Errors have been raised by the calls."""

    def close(self) -> None:
        """Nothing is open."""
