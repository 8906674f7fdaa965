"""Ring and tree on one kind of link, by the textbook: what "how long" and "which is better" start from.

``python -m tricoll.cost`` prints the ring's times for the gradients of 8 billion parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .rates import busbw

if TYPE_CHECKING:
    from rich.table import Table


def ring_seconds(n: int, nbytes: float, alpha: float, beta: float) -> float:
    """All-reduce by a ring: 2(n-1) steps, each of ``nbytes / n``. Patarasuk and Yuan, 2009.

    Args:
        n: ranks.
        nbytes: of the tensor.
        alpha: seconds a message.
        beta: bytes a second.
    """
    return 2 * (n - 1) * (alpha + nbytes / n / beta)


def tree_seconds(n: int, nbytes: float, alpha: float, beta: float) -> float:
    """All-reduce by a tree that is not pipelined: up and down log2(n) levels with the whole message at each.

    Args:
        n: ranks.
        nbytes: of the tensor.
        alpha: seconds a message.
        beta: bytes a second.
    """
    return 2 * math.log2(n) * (alpha + nbytes / beta)


def balanced_bytes(n: int, alpha: float, beta: float) -> float:
    """The size at which a ring's latency and bandwidth terms are equal: alpha = M / (n beta).

    Args:
        n: ranks.
        alpha: seconds a message.
        beta: bytes a second.
    """
    return n * alpha * beta


def tree_below(n: int, alpha: float, beta: float) -> float:
    """The size below which :func:`tree_seconds` is less than :func:`ring_seconds`; 0 if it never is.

    From log2(n) (alpha + M/beta) = (n-1) (alpha + M/(n beta)).

    Args:
        n: ranks.
        alpha: seconds a message.
        beta: bytes a second.
    """
    saved, paid = n - 1 - math.log2(n), math.log2(n) - (n - 1) / n
    return alpha * beta * saved / paid if paid > 0 and saved > 0 else 0.0


def tables() -> Iterator[Table]:
    """How long a ring all-reduces the BF16 gradients of 8 billion parameters, and 1 MB: 5 us a message."""
    from rich.table import Table

    alpha = 5e-6
    for title, beta in (("NVLink-class 450 GB/s", 450e9), ("400 Gb/s NIC (50 GB/s)", 50e9)):
        table = Table(title=f"16 GB, {title}", title_justify="left")
        for name in ("n", "time (ms)", "latency part (ms)"):
            table.add_column(name, justify="right")
        for n in (8, 64, 512, 4096):
            seconds, latency = ring_seconds(n, 16e9, alpha, beta), ring_seconds(n, 0, alpha, beta)
            table.add_row(str(n), f"{seconds * 1e3:.1f}", f"{latency * 1e3:.1f}")
        yield table
    table = Table(title="1 MB, 50 GB/s", title_justify="left")
    for name in ("n", "time (ms)", "bus bw (GB/s)"):
        table.add_column(name, justify="right")
    for n in (8, 512, 4096):
        seconds = ring_seconds(n, 1e6, alpha, 50e9)
        table.add_row(str(n), f"{seconds * 1e3:.2f}", f"{busbw('all_reduce', 1e6, seconds, n) / 1e9:.1f}")
    yield table
