"""The communicator: what users call. It checks arguments, plans, launches the kernel and turns trouble into errors."""

from __future__ import annotations

import contextlib
import hashlib
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from . import dispatch, topology, workspace
from .control import Control, Failure
from .errors import CollectiveError, CollectiveMismatch
from .fabric.base import Fabric, Heap
from .kernels import direct, link, ring, tree
from .kernels.jit import TRITON
from .tensors import DTYPES, as_dtype, as_op, can_convert, check_overlap, plain

KERNELS = {
    ("ring", "all_reduce"): ring.all_reduce,
    ("ring", "reduce_scatter"): ring.reduce_scatter,
    ("ring", "all_gather"): ring.all_gather,
    ("one_shot", "all_reduce"): direct.one_shot_all_reduce,
    ("two_shot", "all_reduce"): direct.two_shot_all_reduce,
    ("two_shot", "reduce_scatter"): direct.reduce_scatter,
    ("two_shot", "all_gather"): direct.all_gather,
    ("tree", "all_reduce"): tree.all_reduce,
}


@dataclass(frozen=True)
class Call:
    """What all ranks must agree on. Its text is compared, its fingerprint travels with every message."""

    collective: str
    op: str
    dtype: torch.dtype
    wire: torch.dtype
    out: torch.dtype
    numel: int
    plan: dispatch.Plan

    def __str__(self) -> str:
        types = ", ".join(f"{k}={str(v).removeprefix('torch.')}" for k, v in (("wire", self.wire), ("out", self.out)))
        size = f"{str(self.dtype).removeprefix('torch.')}[{self.numel}]"
        return f"{self.collective}({size}, op={self.op}, {types}, algo={self.plan.algorithm})"

    @property
    def fingerprint(self) -> int:
        """24 bits."""
        digest = hashlib.blake2b(f"{self} {self.plan}".encode(), digest_size=3).digest()
        return int.from_bytes(digest, "little")


class Communicator:
    """A group of ranks that make the same calls in the same order. Made by :func:`tricoll.init`."""

    def __init__(self, fabric: Fabric, settings: dispatch.Settings, timeout: float, check: bool) -> None:
        self._fabric, self._settings, self._timeout, self._check = fabric, settings, timeout, check
        self._calls, self._seconds = 0, 0.0
        self._unusable = ""
        self._heap: Heap | None = None
        self._parts = workspace.parts(fabric.world_size, settings)
        if fabric.world_size > 1:
            self._heap = fabric.allocate(sum(part.words for part in self._parts.values()) * 8)
        self._counters = torch.zeros(len(self._parts) * 2 * settings.channels, dtype=torch.int64, device=fabric.device)
        self._status = torch.zeros(settings.channels, link.STATUS_WORDS, dtype=torch.int64, device=fabric.device)
        nodes = topology.double_binary_tree(fabric.rank, fabric.world_size)
        places = [[node.parent, node.side, node.first, node.second] for node in nodes]
        self._nodes = torch.tensor(places, dtype=torch.int64, device=fabric.device)
        self._control = Control(fabric, timeout, check)

    @property
    def rank(self) -> int:
        """This process's place in the group, from 0."""
        return self._fabric.rank

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self._fabric.world_size

    @property
    def fabric(self) -> str:
        """The fabric's name: "host", "sim", ..."""
        return self._fabric.name

    def __repr__(self) -> str:
        state = f", unusable: {self._unusable}" if self._unusable else ""
        return f"<tricoll.Communicator rank {self.rank} of {self.world_size} on {self.fabric}{state}>"

    # Collectives.

    def all_reduce(
        self,
        x: torch.Tensor,
        op: Any = "sum",
        *,
        out: torch.Tensor | None = None,
        wire: torch.dtype | str | None = None,
        algo: str = "auto",
        async_op: bool = False,
    ) -> torch.Tensor:
        """Reduce ``x`` over all ranks, on all ranks.

        Args:
            x: a tensor of any shape and stride; all ranks' have the same dtype and number of elements.
            op: "sum" or "avg" (the FP32 sum divided by the world size, before it is rounded), or a torch ReduceOp.
            out: where the result goes, a tensor with as many elements; its dtype may differ. None: in place, in ``x``.
            wire: the dtype that travels, by default that of ``x``. "bf16" halves the bytes of FP32 gradients.
            algo: "auto", "ring", "tree", "two_shot" or "one_shot". Ring and tree round what they send on; the shots
                add in rank order and round once: an element's bits depend on the ranks' values only.
            async_op: not available yet.

        Returns:
            ``out``, or ``x`` if that is None. All ranks hold the same bits.

        Raises:
            TypeError, ValueError: on this rank, before data move; the others get a CollectiveMismatch.
            CollectiveError: see :mod:`tricoll.errors`.
        """
        return self._run("all_reduce", x, op, out, wire, algo, async_op)

    def reduce_scatter(
        self,
        x: torch.Tensor,
        op: Any = "sum",
        *,
        out: torch.Tensor | None = None,
        wire: torch.dtype | str | None = None,
        algo: str = "auto",
        async_op: bool = False,
    ) -> torch.Tensor:
        """Reduce ``x`` over all ranks; rank r gets part r of the result, cut along dimension 0.

        The size of dimension 0 must be a multiple of the world size. ``out`` has 1/n of it, and is a new tensor of the
        dtype of ``x`` if None. The last addition is rounded to the output's dtype only, not to the wire's. Otherwise
        see :meth:`all_reduce`.
        """
        return self._run("reduce_scatter", x, op, out, wire, algo, async_op)

    def all_gather(
        self,
        x: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        wire: torch.dtype | str | None = None,
        algo: str = "auto",
        async_op: bool = False,
    ) -> torch.Tensor:
        """Join all ranks' ``x`` along dimension 0, in rank order, on all ranks.

        ``out`` has n times the elements of ``x``, and is a new tensor of the dtype of ``x`` if None. With a narrower
        wire, the own part is rounded like the others'. Otherwise see :meth:`all_reduce`.
        """
        return self._run("all_gather", x, "sum", out, wire, algo, async_op)

    def stats(self) -> dict[str, Any]:
        """What this rank has done so far.

        ``calls``; ``puts``, messages with data; ``payload_bytes``, the bytes in them, in the wire dtype; ``signals``,
        flags without data; ``seconds`` spent in collectives.
        """
        counted = self._fabric.counters
        return {
            "calls": self._calls,
            "puts": counted.puts,
            "payload_bytes": counted.payload_bytes,
            "signals": counted.signals,
            "seconds": self._seconds,
        }

    def destroy(self) -> None:
        """Give memory back. Every rank should call it; a second call does nothing."""
        if not self._unusable.startswith("destroyed"):
            self._unusable = "destroyed"
            self._heap = None
            self._fabric.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.destroy()

    # How a call is carried out.

    def _run(self, collective: str, x: Any, op: Any, out: Any, wire: Any, algo: str, async_op: bool) -> torch.Tensor:
        if self._unusable:
            raise CollectiveError(
                f"rank {self.rank}: this communicator cannot be used ({self._unusable}); make a new one"
            )
        start = time.perf_counter()
        try:
            call, x, out = self._prepare(collective, x, op, out, wire, algo, async_op)
        except (TypeError, ValueError) as error:
            self._refuse(f"{collective}: refused, {error}")
            raise
        result = x if out is None else out
        source = plain(x)
        target = source if result is x else plain(result)
        with self._unusable_after_failure():
            self._control.enter(str(call))
            if self.world_size > 1:
                self._launch(call, source, target)
            else:  # nothing to send, but the same rounding as elsewhere
                target.copy_(source if collective == "reduce_scatter" else source.to(call.wire))
        if target.data_ptr() != result.data_ptr():
            result.detach().copy_(target.view(result.shape))
        self._calls += 1
        self._seconds += time.perf_counter() - start
        return result

    def _refuse(self, reason: str) -> None:
        """Let the others know that this rank takes no part in a call, instead of letting them wait."""
        with self._unusable_after_failure(), contextlib.suppress(CollectiveMismatch):
            self._control.enter(reason, refused=True)
            if not self._check and self.world_size > 1:
                nothing = torch.empty(0, dtype=torch.uint8, device=self._fabric.device)
                plan = dispatch.plan("all_reduce", 0, 1, self.world_size, self._settings, "ring")
                self._launch(
                    Call(reason, "sum", nothing.dtype, nothing.dtype, nothing.dtype, 0, plan), nothing, nothing
                )

    @contextlib.contextmanager
    def _unusable_after_failure(self) -> Iterator[None]:
        try:
            yield
        except CollectiveMismatch:
            raise
        except CollectiveError as error:
            self._unusable = f"call {self._control.sequence} failed: {error}"
            raise

    def _prepare(
        self, collective: str, x: Any, op: Any, out: Any, wire: Any, algo: str, async_op: bool
    ) -> tuple[Call, torch.Tensor, torch.Tensor | None]:
        if async_op:
            raise ValueError("async_op=True is not available yet: every collective returns when it has finished")
        self._check_tensor("x", x)
        op = as_op(op)
        asked = wire is not None
        wire = as_dtype(wire) if asked else x.dtype
        n = self.world_size
        shape = tuple(x.shape)
        if collective == "reduce_scatter":
            if x.dim() == 0 or shape[0] % n:
                raise ValueError(f"dimension 0 of {shape} cannot be cut into {n} equal parts, one a rank")
            shape = (shape[0] // n, *shape[1:])
        elif collective == "all_gather":
            shape = (n * shape[0], *shape[1:]) if shape else (n,)
        if out is None and collective != "all_reduce":
            out = torch.empty(shape, dtype=x.dtype, device=x.device)
        if out is not None:
            self._check_tensor("out", out)
            if out.numel() != torch.Size(shape).numel():
                raise ValueError(
                    f"out has {out.numel()} elements, and the result has {torch.Size(shape).numel()}: {shape}"
                )
        result = x if out is None else out
        if op == "avg" and not x.dtype.is_floating_point:
            raise TypeError(f"the average of {x.dtype} is not an integer: convert to a float, or use op='sum'")
        if not can_convert(x.dtype, wire) or not can_convert(wire, result.dtype):
            raise TypeError(
                f"cannot send {x.dtype} as {wire} and write {result.dtype}: casts are among float32/16, bfloat16"
            )
        check_overlap(collective, x, out, self.rank)
        numel = result.numel() if collective == "all_gather" else x.numel()
        if algo == "auto":
            algo = dispatch.choose(collective, wire.itemsize, asked)
        plan = dispatch.plan(collective, numel, wire.itemsize, n, self._settings, algo)
        return Call(collective, op, x.dtype, wire, result.dtype, x.numel(), plan), x, out

    def _check_tensor(self, name: str, t: Any) -> None:
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{name} is a {type(t).__name__}, not a tensor")
        if t.layout != torch.strided:
            raise TypeError(f"{name} is {t.layout}: give its dense form")
        if t.dtype not in TRITON:
            raise TypeError(f"{name} is {t.dtype}; supported are {sorted(DTYPES)}")
        if t.device.type != self._fabric.device.type:
            raise ValueError(f"{name} is on {t.device}, and the {self.fabric} fabric is on {self._fabric.device}")

    def _launch(self, call: Call, x: torch.Tensor, out: torch.Tensor) -> None:
        assert self._heap is not None
        settings, plan, n = self._settings, call.plan, self.world_size
        part = self._parts[dispatch.family(plan.algorithm)]
        arguments = {
            "x": x,
            "out": out,
            "heap": self._heap.words[part.start : part.start + part.words],
            "bases": self._heap.bases,
            "counters": self._counters[part.counter : part.counter + 2 * settings.channels],
            "status": self._status,
            "nodes": self._nodes,
            "numel": n * plan.chunk if call.collective in ("reduce_scatter", "all_gather") else call.numel,
            "chunk": plan.chunk,
            "piece": plan.piece,
            "pieces": plan.pieces,
            "me": self.rank,
            "world": n,
            "channels": settings.channels,
            "fingerprint": call.fingerprint,
            "timeout": int(self._timeout * 1e9),
            "WIRE": TRITON[call.wire],
            "OP": call.op,
            "MAPPED": settings.mapped,
            "SLOTS": settings.slots,
            "SLOT": dispatch.slot_bytes(plan.algorithm, n, settings) // call.wire.itemsize,
            "WINDOW": settings.window,
            "ALIGNED": plan.chunk % 16 == 0,
            "BLOCK": settings.block,
        }
        self._fabric.launch(
            KERNELS.get((plan.algorithm, call.collective), ring.all_reduce), settings.channels, arguments
        )
        status = self._status.tolist()
        failures = [Failure(c, *words[:7]) for c, words in enumerate(status) if words[0] != link.OK]
        if failures:
            error = self._control.explain(str(call), failures)
            if isinstance(error, CollectiveMismatch):
                self._start_afresh()
            raise error

    def _start_afresh(self) -> None:
        """Empty all links, after a call in which all ranks gave up: the next call finds them as at the start."""
        assert self._heap is not None
        self._fabric.quiet()
        self._control.meet()  # all ranks have stopped sending
        for part in self._parts.values():
            self._heap.words[part.start : part.start + part.flags].zero_()
        self._counters.zero_()
        self._status.zero_()
        self._control.meet()  # all ranks have emptied theirs
