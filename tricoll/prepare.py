"""From what a caller gives to a call that can be made: arguments are checked here, before data move."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch

from . import cost, dispatch
from .calls import Call, Request
from .tally import Tally
from .tensors import (
    DTYPES,
    SMALL_FLOATS,
    Op,
    as_dtype,
    as_op,
    can_convert,
    check_op,
    check_overlap,
    check_writable,
)

SUM = Op("sum")
NARROW = tuple(dtype for dtype in SMALL_FLOATS if dtype.itemsize < 4)
CHOICES = 4096  # that are remembered
MULTIMEM = (torch.float32, torch.float16, torch.bfloat16)


class Prepare:
    """Turns arguments into a :class:`Request`, or raises TypeError or ValueError."""

    def __init__(
        self, rank: int, world_size: int, settings: dispatch.Settings, profile: cost.Profile, device: torch.device
    ) -> None:
        self.rank, self.world_size, self.settings, self.device = rank, world_size, settings, device
        self.profile = profile
        self.chosen: dict[tuple[str, int, bool, bool], str] = {}  # what "auto" has been so far

    # The collectives.

    def reduction(
        self,
        collective: str,
        x: Any,
        op: Any,
        out: Any,
        wire: Any,
        algo: str,
        root: int = 0,
        sizes: Any = None,
        tally: Any = None,
    ) -> Request:
        """all_reduce, reduce, reduce_scatter."""
        self.tensor("x", x)
        op, asked = as_op(op), wire is not None
        check_op(op, x.dtype)
        if tally is not None:
            self.countable(tally, x)
        shape, distance, start = tuple(x.shape), 0, 0
        if collective == "reduce_scatter":
            sizes = self.sizes(sizes, x, total=True)
            rows = sizes or self.equal(x)
            start = sum(rows[: self.rank])
            shape = (rows[self.rank], *shape[1:])
            distance = start * _row(x)
        if out is None:
            out = self.new(x, shape) if collective == "reduce_scatter" else x
        elif collective == "reduce" and self.rank != self.root(root):
            out = x  # not written
        wire = self.types(x, out, shape, wire)
        if out is not x:
            check_overlap(x, out, distance)
        if collective != "reduce" or self.rank == root:
            check_writable(out)
        elements = None if sizes is None else [rows * _row(x) for rows in sizes]
        root = self.root(root) if collective == "reduce" else None  # type: ignore[assignment]
        return self.request(collective, x, out, wire, algo, op, root, sizes, elements, asked=asked, tally=tally)

    def all_gather(self, x: Any, out: Any, wire: Any, algo: str, sizes: Any = None) -> Request:
        self.tensor("x", x)
        sizes = self.sizes(sizes, x, total=False)
        rows = sizes or [x.shape[0] if x.dim() else 1] * self.world_size
        shape = (sum(rows), *x.shape[1:])
        out = self.new(x, shape) if out is None else out
        wire = self.types(x, out, shape, wire)
        check_overlap(x, out, -sum(rows[: self.rank]) * _row(x))
        check_writable(out)
        elements = [r * _row(x) for r in rows]
        request = self.request("all_gather", x, out, wire, algo, sizes=sizes, elements=elements)
        if request.call.plan.algorithm == "two_shot":
            starts, mine = _starts(elements), elements[self.rank]
            request.table = ([0] * len(starts), [mine] * len(starts), starts, elements)
        return request

    def broadcast(self, x: Any, root: int, out: Any, wire: Any, algo: str) -> Request:
        self.tensor("x", x)
        out = x if out is None else out
        wire = self.types(x, out, tuple(x.shape), wire)
        if out is not x:
            check_overlap(x, out, 0)
        check_writable(out)
        return self.request("broadcast", x, out, wire, algo, root=self.root(root))

    def gather(self, x: Any, root: int, out: Any, wire: Any) -> Request:
        self.tensor("x", x)
        n, here = self.world_size, self.rank == self.root(root)
        shape = (n * x.shape[0], *x.shape[1:]) if x.dim() else (n,)
        if not here:
            out = x  # not written
        elif out is None:
            out = self.new(x, shape)
        wire = self.types(x, out, shape if here else tuple(x.shape), wire)
        if here:
            check_overlap(x, out, -self.rank * x.numel())
            check_writable(out)
        request = self.request("gather", x, out, wire, "one_shot", root=root)
        sends = [x.numel() if r == root else -1 for r in range(n)]
        receives = [x.numel() if here else -1] * n
        request.table = ([0] * n, sends, [r * x.numel() for r in range(n)], receives)
        return request

    def scatter(self, x: Any, root: int, out: Any, wire: Any) -> Request:
        here = self.rank == self.root(root)
        if here:
            self.tensor("x", x)
            shape = (self.equal(x)[0], *x.shape[1:])
            out = self.new(x, shape) if out is None else out
        elif out is None:
            raise ValueError(f"rank {self.rank} gets a part of rank {root}'s tensor: give out, a tensor to put it in")
        else:
            self.tensor("out", out)
            x, shape = out, tuple(out.shape)  # not read
        wire = self.types(x, out, shape, wire)
        if here:
            check_overlap(x, out, self.rank * out.numel())
        check_writable(out)
        n, count = self.world_size, out.numel()
        request = self.request("scatter", x, out, wire, "one_shot", root=root, numel=count)
        sends = [count if here else -1] * n
        receives = [count if r == root else -1 for r in range(n)]
        request.table = ([r * count for r in range(n)], sends, [0] * n, receives)
        return request

    def all_to_all(self, x: Any, out: Any, wire: Any, sends: Any, receives: Any) -> Request:
        self.tensor("x", x)
        even = sends is None and receives is None
        if even:
            sends = receives = self.equal(x)
        elif sends is None or receives is None:
            raise ValueError("give both input_splits and output_splits, or neither for equal parts")
        sends, receives = self.rows("input_splits", sends), self.rows("output_splits", receives)
        if not x.dim() or sum(sends) != x.shape[0]:
            raise ValueError(f"input_splits {sends} are {sum(sends)} rows, and x has shape {tuple(x.shape)}")
        shape = (sum(receives), *x.shape[1:])
        out = self.new(x, shape) if out is None else out
        wire = self.types(x, out, shape, wire)
        check_overlap(x, out, 0 if even else None)
        check_writable(out)
        request = self.request("all_to_all", x, out, wire, "one_shot", numel=x.numel() if even else None)
        row = _row(x)
        sends, receives = [s * row for s in sends], [r * row for r in receives]
        request.table = (_starts(sends), sends, _starts(receives), receives)
        request.detail = None if even else {"sends": sends, "receives": receives}
        return request

    def barrier(self) -> Request:
        n, nothing = self.world_size, torch.empty(0, dtype=torch.uint8, device=self.device)
        request = self.request("barrier", nothing, nothing, nothing.dtype, "one_shot")
        request.table = ([0] * n, [0] * n, [0] * n, [0] * n)
        return request

    def pair(self, collective: str, x: Any, peer: int, wire: Any) -> Request:
        """send or recv."""
        self.tensor("x", x)
        if self.root(peer, "the other rank") == self.rank:
            raise ValueError(f"rank {peer} cannot {collective} to or from itself: copy the tensor")
        wire = self.types(x, x, tuple(x.shape), wire)
        if collective == "recv":
            check_writable(x)
        request = self.request(collective, x, x, wire, "one_shot", numel=None)
        n, zeros = self.world_size, [0] * self.world_size
        one = [x.numel() if r == peer else -1 for r in range(n)]
        none = [-1] * n
        request.table = (zeros, one, zeros, none) if collective == "send" else (zeros, none, zeros, one)
        return request

    # Their arguments.

    def choose(self, collective: str, nbytes: int, once: bool, counting: bool = False) -> str:
        """What "auto" means for a call."""
        key = (collective, nbytes, once, counting)
        if key not in self.chosen:
            if len(self.chosen) >= CHOICES:
                self.chosen.clear()
            self.chosen[key] = dispatch.choose(
                collective, nbytes, self.world_size, self.settings, self.profile, once, counting
            )
        return self.chosen[key]

    def request(
        self,
        collective: str,
        x: torch.Tensor,
        out: torch.Tensor,
        wire: torch.dtype,
        algo: str,
        op: Op = SUM,
        root: int | None = None,
        sizes: list[int] | None = None,
        elements: list[int] | None = None,
        numel: int | None = -1,
        asked: bool = True,
        tally: Tally | None = None,
    ) -> Request:
        """``elements``: what each rank has. ``numel``: of x on every rank; None where it differs. ``asked``: whether
        the caller has named the wire dtype."""
        per = 2 if x.dtype.is_complex else 1  # kernels see pairs of reals
        itemsize = wire.itemsize // per
        elements = elements and [per * e for e in elements]
        agreed = x.numel() if numel == -1 else numel
        whole = sum(elements) if elements else per * (x.numel() if agreed is None else agreed)
        if algo == "auto":
            # Where 8- or 16-bit floats travel because nothing else was asked for, nobody has said that rounding every
            # partial sum is wanted.
            once = not asked and wire in NARROW
            algo = self.choose(collective, whole * itemsize, once, counting=tally is not None)
        if tally is not None and algo not in dispatch.COUNTING:
            raise ValueError(f"algo is {algo!r}; with a tally it can be one of {['auto', *dispatch.COUNTING]}")
        if algo == "multimem" and (op.name not in ("sum", "avg") or wire not in MULTIMEM):
            raise TypeError(f"multimem sends {MULTIMEM} and has 'sum' and 'avg': not {wire} and {op.name!r}")
        plan = dispatch.plan(collective, whole, itemsize, self.world_size, self.settings, algo, elements)
        every = None if sizes is None else tuple(sizes)
        call = Call(collective, op, x.dtype, wire, out.dtype, None if sizes else agreed, plan, root, every)
        return Request(call, x, out, tally=tally)

    def countable(self, tally: Any, x: torch.Tensor) -> None:
        if not isinstance(tally, Tally):
            raise TypeError(f"tally is a {type(tally).__name__}: make one with Communicator.tally()")
        if not x.dtype.is_floating_point:
            raise TypeError(f"a tally counts floating point numbers, and x is {x.dtype}")
        if tally.words.shape[0] != self.settings.channels or tally.words.device.type != self.device.type:
            raise ValueError("the tally is another communicator's: make one with this one's tally()")

    def tensor(self, name: str, t: Any) -> None:
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{name} is a {type(t).__name__}, not a tensor")
        if t.layout != torch.strided:
            raise TypeError(f"{name} is {t.layout}: give its dense form")
        if t.dtype not in DTYPES.values():
            raise TypeError(f"{name} is {t.dtype}; supported are {sorted(DTYPES)}")
        if t.device.type != self.device.type or self.device.index not in (None, t.device.index):
            raise ValueError(f"{name} is on {t.device}, and this communicator's ranks are on {self.device}")

    def types(self, x: torch.Tensor, out: Any, shape: tuple[int, ...], wire: Any) -> torch.dtype:
        """The wire dtype, after a look at whether x can be sent so and written to out."""
        self.tensor("out", out)
        if out.numel() != torch.Size(shape).numel():
            raise ValueError(f"out has {out.numel()} elements, and the result has {torch.Size(shape).numel()}: {shape}")
        wire = x.dtype if wire is None else as_dtype(wire)
        if not can_convert(x.dtype, wire) or not can_convert(wire, out.dtype):
            raise TypeError(
                f"cannot send {x.dtype} as {wire} and write {out.dtype}: casts are among float32, float16, bfloat16, "
                "float8_e4m3fn and float8_e5m2"
            )
        return wire

    def root(self, root: Any, what: str = "root") -> int:
        if not isinstance(root, int) or not 0 <= root < self.world_size:
            raise ValueError(f"{what} is {root!r}; ranks are 0 to {self.world_size - 1}")
        return root

    def equal(self, x: torch.Tensor) -> list[int]:
        """The rows of dimension 0 that each rank has if all have as many."""
        n = self.world_size
        if x.dim() == 0 or x.shape[0] % n:
            raise ValueError(f"dimension 0 of {tuple(x.shape)} cannot be cut into {n} equal parts, one a rank")
        return [x.shape[0] // n] * n

    def rows(self, name: str, given: Any) -> list[int]:
        try:
            rows = [operator.index(r) for r in given]
        except TypeError:
            raise TypeError(f"{name} is {given!r}; it must be {self.world_size} whole numbers, one a rank") from None
        if len(rows) != self.world_size or min(rows) < 0:
            raise ValueError(f"{name} is {rows}; it must be {self.world_size} numbers of rows, one a rank")
        return rows

    def sizes(self, given: Any, x: torch.Tensor, total: bool) -> list[int] | None:
        if given is None:
            return None
        rows = self.rows("sizes", given)
        have, expected = (x.shape[0] if x.dim() else -1), sum(rows) if total else rows[self.rank]
        if have != expected:
            raise ValueError(
                f"x of rank {self.rank} has shape {tuple(x.shape)}; with sizes {rows}, it has {expected} rows"
            )
        return rows

    def new(self, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=x.dtype, device=x.device)


def _row(x: torch.Tensor) -> int:
    """Elements in a row of dimension 0."""
    return torch.Size(x.shape[1:]).numel()


def _starts(sizes: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(sizes)][:-1]
