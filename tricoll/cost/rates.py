"""How fast is that: algbw and busbw as nccl-tests defines them."""

from __future__ import annotations

import math
from collections.abc import Callable

# How much of the data crosses a rank's link, as a share of the size: what nccl-tests multiplies algbw with.
BUSBW_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "send_recv": lambda n: 1.0,
}
COLLECTIVES = tuple(BUSBW_FACTORS)
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")  # the collectives that add, so that the order matters


def algbw(nbytes: float, seconds: float) -> float:
    """Bytes a second: the size by the time. Infinite for a time of 0, and 0 if there was nothing to move.

    Args:
        nbytes: size as nccl-tests counts it: the tensor, or the whole buffer.
        seconds: what it took.
    """
    if not nbytes:
        return 0.0
    return nbytes / seconds if seconds else math.inf


def busbw(collective: str, nbytes: float, seconds: float, world_size: int) -> float:
    """algbw times nccl-tests' factor, a convention for every algorithm: comparable with a link's rate.

    0 for one rank alone where others' data would be needed: nothing crosses a link.

    Args:
        collective: its name, one of ``COLLECTIVES``.
        nbytes: size as nccl-tests counts it: the tensor, or the whole buffer.
        seconds: what it took.
        world_size: ranks.
    """
    factor = BUSBW_FACTORS[check_collective(collective)](world_size)
    return factor * algbw(nbytes, seconds) if factor else 0.0


def check_collective(collective: str) -> str:
    """The name itself. Raises ValueError, listing those that there are, if it is not one."""
    if collective not in BUSBW_FACTORS:
        raise ValueError(f"{collective!r} is not one of {', '.join(COLLECTIVES)}")
    return collective
