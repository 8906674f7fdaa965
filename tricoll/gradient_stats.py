"""What the gradients of a step say about it: their norm, whether they are finite, and how noisy they are.

The noise of gradients is why data parallelism ends. A gradient that is averaged over B examples is the true one, G,
plus noise of covariance Sigma / B. While noise dominates, twice the examples are worth twice the steps; once it does
not, they are worth little. Where that turns is about the *simple noise scale*, tr(Sigma) / |G|^2 (McCandlish et al.
2018, An Empirical Model of Large-Batch Training, equation 2.9).

It takes the squared norms of gradients of two batch sizes (their appendix A.1), and data parallel training has both: a
rank's own gradient, of b examples, and the average, of n b::

    |G|^2      ~  (n b |g_avg|^2 - b |g_rank|^2) / (n b - b)
    tr(Sigma)  ~  (|g_rank|^2 - |g_avg|^2) / (1 / b - 1 / (n b))

Both are unbiased and noisy, so each is smoothed over steps before they are divided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from .communicator import Communicator
from .tally import Tally


@dataclass(frozen=True)
class StepStats:
    """One step's averaged gradients. The same bits on all ranks."""

    norm: float
    """The norm of all of them together: what ``clip_grad_norm_`` would compute. Not finite if one of them is not."""
    local_norm: float
    """The root of the mean over ranks of their own gradients' squared norms."""
    nonfinite: int
    """How many elements of the average, or of all ranks' own gradients, are infinite or NaN (the larger number)."""
    noise_scale: float | None
    """tr(Sigma) / |G|^2 in examples, smoothed over steps. None without a batch size, with one rank, or while the
    estimate of |G|^2 is not positive."""

    @property
    def overflow(self) -> bool:
        """Whether the step should be skipped: a gradient is not finite, or the square of one is not."""
        return self.nonfinite > 0 or not math.isfinite(self.norm)

    @property
    def critical_batch_size(self) -> float | None:
        """Examples in all beyond which more data parallelism costs more than it saves: about the noise scale.

        With as many, training takes about twice the fewest steps and twice the fewest examples that it can take
        (McCandlish et al. 2018, equation 2.11).
        """
        return self.noise_scale


class GradientStats:
    """Counts gradients while the hooks of :mod:`tricoll.ddp` average them, in their kernels: no other pass over memory.

    ::

        stats = tricoll.ddp.GradientStats(batch_size=32)
        model.register_comm_hook(stats, tricoll.ddp.bf16_hook)
        ...
        loss.backward()
        step = stats.step()
        if not step.overflow:
            stats.clip_(model.parameters(), step, max_norm=1.0)
            optimizer.step()

    Args:
        state: who averages, as the hooks' state: None, a process group or a communicator.
        batch_size: examples behind a rank's own gradients, all that are accumulated before they are averaged. None: no
            noise scale.
        smoothing: the weight of the past in the noise scale's moving averages, from 0 (none) to less than 1.
    """

    def __init__(self, state: Any = None, batch_size: float | None = None, smoothing: float = 0.95) -> None:
        if batch_size is not None and not batch_size > 0:
            raise ValueError(f"batch_size is {batch_size}: the examples of a rank, more than 0")
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing is {smoothing}: from 0 to less than 1")
        self.state, self.batch_size, self.smoothing = state, batch_size, smoothing
        self._tally: Tally | None = None
        self._signal = self._noise = 0.0

    def tally(self, comm: Communicator) -> Tally:
        """Where the gradients that ``comm`` averages are counted."""
        if self._tally is None or self._tally.comm is not comm:
            self._tally = comm.tally()
        return self._tally

    def step(self) -> StepStats:
        """What has been averaged since the last time. Collective: one all-reduce of 32 bytes.

        Raises:
            RuntimeError: no gradients have been averaged with this as the hook's state.
        """
        if self._tally is None:
            raise RuntimeError(
                "no gradients have been counted: give this object to the hook, "
                "model.register_comm_hook(stats, tricoll.ddp.bf16_hook), and call backward() before step()"
            )
        total, n = self._tally.take(), self._tally.comm.world_size
        nonfinite = max(total.nonfinite, total.local_nonfinite)
        small, big = total.local_squares / n, total.squares
        if nonfinite == 0 and math.isfinite(small + big):
            self._smooth(small, big, n)
        known = self._signal > 0 and self.batch_size is not None and n > 1
        root = lambda square: math.sqrt(square) if square >= 0 else math.nan
        return StepStats(root(big), root(small), nonfinite, self._noise / self._signal if known else None)

    def clip_(self, parameters: Iterable[torch.nn.Parameter], step: StepStats, max_norm: float) -> None:
        """Scale the gradients of ``parameters`` so that their norm is at most ``max_norm``; it is known already.

        Args:
            parameters: those of the model.
            step: what :meth:`step` has said of their gradients.
            max_norm: of all gradients together.
        """
        if step.norm > max_norm:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(max_norm / (step.norm + 1e-6))

    def _smooth(self, small: float, big: float, n: int) -> None:
        if self.batch_size is None or n == 1:
            return
        b, all_of_them = self.batch_size, self.batch_size * n
        signal = (all_of_them * big - b * small) / (all_of_them - b)
        noise = (small - big) / (1 / b - 1 / all_of_them)
        self._signal += (1 - self.smoothing) * (signal - self._signal)  # both start at 0 alike, so their ratio is right
        self._noise += (1 - self.smoothing) * (noise - self._noise)
