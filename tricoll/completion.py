"""How it becomes known that a call has gone well: at once where a launch returns when its kernel has finished.

Where launches return at once (GPUs), :class:`tricoll.watch.Watch` takes the place of :class:`Immediate`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from .control import Control, Failure
from .errors import CollectiveError, CollectiveMismatch
from .kernels import link

Pair = tuple[str, int] | None  # "send" or "recv" and the other rank; None: all ranks take part


def failures(status: list[list[int]]) -> list[Failure]:
    """What the channels of a status block say that have given up."""
    return [Failure(c, *words[:7]) for c, words in enumerate(status) if words[0] != link.OK]


class Completion(Protocol):
    """One rank's way of hearing from its kernels."""

    def status(self, pair: Pair) -> torch.Tensor:
        """The status block for a call that is about to be launched."""

    def launched(self, what: str, fingerprint: int, status: torch.Tensor, pair: Pair) -> None:
        """The kernel of a call has been launched. Raises the call's error, if it is known already."""

    def used(self, tensors: list[torch.Tensor]) -> None:
        """A call has been carried out with these tensors."""

    def check(self) -> None:
        """Raise the error of an earlier call that has come to light since."""

    def close(self) -> None:
        """Nothing will be launched any more."""


class Immediate:
    """A launch returns when the kernel has finished: its status block is read, and an error raised, at once."""

    def __init__(self, control: Control, status: torch.Tensor, start_afresh: Callable[[], None]) -> None:
        """``start_afresh``: what all ranks do together after a mismatch, so that the next call works."""
        self._control, self._status, self._start_afresh = control, status, start_afresh

    def status(self, pair: Pair) -> torch.Tensor:
        # A send and a receive may run beside each other.
        return self._status if pair is None else torch.zeros_like(self._status)

    def launched(self, what: str, fingerprint: int, status: torch.Tensor, pair: Pair) -> None:
        found = failures(status.tolist())
        if not found:
            return
        error = self._control.explain(what, found, pair=pair is not None)
        if isinstance(error, CollectiveMismatch) and pair is None:
            try:
                self._start_afresh()
            except CollectiveError as trouble:  # ranks that only sent have gone on, and do not know
                raise error from trouble
        raise error

    def used(self, tensors: list[torch.Tensor]) -> None:
        """And is over."""

    def check(self) -> None:
        """Errors have been raised by the calls."""

    def close(self) -> None:
        """Nothing is open."""
