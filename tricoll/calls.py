"""One call of a collective: what all ranks must agree on, and what this rank brings to it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import dispatch
from .tally import Tally
from .tensors import Op

REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
PAIRWISE = ("send", "recv")
Table = tuple[list[int], list[int], list[int], list[int]]  # see kernels/exchange.py


@dataclass(frozen=True)
class Call:
    """What all ranks must agree on. Its text is compared, its fingerprint travels with every message."""

    collective: str
    op: Op
    dtype: torch.dtype
    wire: torch.dtype
    out: torch.dtype
    numel: int | None  # of a rank's x; None where it differs from rank to rank
    plan: dispatch.Plan
    root: int | None = None
    sizes: tuple[int, ...] | None = None  # along dimension 0, a rank each

    def __str__(self) -> str:
        return self._text

    @functools.cached_property
    def _text(self) -> str:
        name = lambda dtype: str(dtype).removeprefix("torch.")
        # What only one rank has, or each for itself, is not compared: the root's output, and a scatter's outputs.
        words = [f"{name(self.wire if self.collective == 'scatter' else self.dtype)}[{self._count}]"]
        if not self.moves:
            words.append(f"op={self.op}")
        if self.collective != "scatter":
            words.append(f"wire={name(self.wire)}")
        if self.collective not in ("reduce", "gather", "scatter"):
            words.append(f"out={name(self.out)}")
        if self.root is not None:
            words.append(f"root={self.root}")
        if self.sizes is not None:
            words.append(f"sizes={list(self.sizes)}")
        return f"{self.collective}({', '.join(words)}, algo={self.plan.algorithm})"

    @property
    def _count(self) -> str:
        return "" if self.numel is None else str(self.numel)

    @property
    def moves(self) -> bool:
        """Whether nothing is reduced."""
        return self.collective not in REDUCTIONS

    @property
    def exact(self) -> bool:
        """Whether elements keep their bits, so that their type does not matter."""
        return self.moves and self.dtype == self.wire == self.out

    @functools.cached_property
    def fingerprint(self) -> int:
        """24 bits. The same at both ends of a message, where the plan may differ from rank to rank."""
        text = str(self).replace("recv(", "send(", 1)
        plan = self.plan if self.numel is not None or self.sizes is not None else self.plan.algorithm
        digest = hashlib.blake2b(f"{text} {plan}".encode(), digest_size=3).digest()
        return int.from_bytes(digest, "little")


@dataclass
class Request:
    """A call, and what this rank brings to it."""

    call: Call
    x: torch.Tensor
    result: torch.Tensor
    table: Table | None = None  # what goes where, in elements; None: the plan says it
    tally: Tally | None = None  # where the kernel counts
    detail: Any = None  # what other ranks compare with theirs: rows to and from each rank

    @property
    def peer(self) -> int:
        """The other rank of a send or recv."""
        assert self.table is not None
        return max(row.index(max(row)) for row in self.table[1::2] if max(row) >= 0)


def match(details: Sequence[Any]) -> str:
    """Where what a rank sends is not what the other expects, in words; "" if all fits."""
    if any(detail is None for detail in details):
        return ""
    wrong = [
        f"rank {s} sends {details[s]['sends'][r]} elements to rank {r}, which expects {details[r]['receives'][s]}"
        for s in range(len(details))
        for r in range(len(details))
        if details[s]["sends"][r] != details[r]["receives"][s]
    ]
    return "; ".join(wrong)
