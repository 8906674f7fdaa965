"""Which kernel makes a call, and what it is given."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from . import dispatch, topology
from .calls import PAIRWISE, Request
from .kernels import direct, exchange, flagged, hierarchical, multimem, ring, rooted, tree
from .kernels.jit import TRITON
from .tensors import BOOLEAN, COMPLEX, INTEGERS, patterns, reals
from .workspace import Workspace

KERNELS = {
    ("ring", "all_reduce"): ring.all_reduce,
    ("ring", "reduce_scatter"): ring.reduce_scatter,
    ("ring", "all_gather"): ring.all_gather,
    ("ring", "broadcast"): rooted.broadcast,
    ("ring", "reduce"): rooted.reduce,
    ("tree", "all_reduce"): tree.all_reduce,
    ("tree", "broadcast"): rooted.broadcast,
    ("tree", "reduce"): rooted.reduce,
    ("two_shot", "all_reduce"): direct.two_shot,
    ("two_shot", "reduce"): direct.two_shot,
    ("two_shot", "reduce_scatter"): direct.reduce_scatter,
    ("two_shot", "all_gather"): exchange.exchange,
    ("hierarchical", "all_reduce"): hierarchical.all_reduce,
    ("hierarchical", "reduce_scatter"): hierarchical.reduce_scatter,
    ("hierarchical", "all_gather"): hierarchical.all_gather,
    ("multimem", "all_reduce"): multimem.all_reduce,
    ("one_shot", "all_reduce"): direct.one_shot,
    ("one_shot", "reduce"): direct.one_shot,
    ("one_shot", "broadcast"): rooted.broadcast,
    ("one_shot", "gather"): exchange.exchange,
    ("one_shot", "scatter"): exchange.exchange,
    ("one_shot", "all_to_all"): exchange.exchange,
    ("one_shot", "barrier"): exchange.exchange,
    ("one_shot", "send"): exchange.exchange,
    ("one_shot", "recv"): exchange.exchange,
}
FLAGGED = {("one_shot", "all_reduce"): flagged.all_reduce}  # see dispatch.flagged
TABLES = 512  # small tables that are kept
ALL = 1 << 62  # where a kernel that is yet to run, or a graph, may look one up


def block(family: str, settings: dispatch.Settings) -> int:
    """Elements, or words with flags in them, a pass of the bulk loop."""
    return max(16, settings.block // 4) if family == "flagged" else settings.block


class Tables:
    """Integers that kernels look up, in the device's memory: made once, then kept."""

    def __init__(self, upload: Callable[[torch.Tensor], torch.Tensor], limit: int = TABLES) -> None:
        """``upload`` copies a tensor from the CPU to the device."""
        self._upload, self._limit = upload, limit
        self._made: dict[tuple[int, ...], torch.Tensor] = {}
        self._lock = threading.Lock()  # calls may run beside each other

    def __call__(self, values: tuple[int, ...]) -> torch.Tensor:
        with self._lock:
            if values not in self._made:
                made = self._upload(torch.tensor(values, dtype=torch.int64))
                if len(self._made) >= self._limit:
                    self._made.pop(next(iter(self._made)))
                self._made[values] = made
            return self._made[values]


class Arguments:
    """What this rank's kernels are given."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        settings: dispatch.Settings,
        workspace: Workspace,
        table: Callable[[tuple[int, ...]], torch.Tensor],
    ) -> None:
        self.rank, self.world_size, self.settings, self.table = rank, world_size, settings, table
        assert workspace.heap is not None
        heap, parts, counters = workspace.heap, workspace.parts, workspace.counters
        self._bases = heap.bases
        cut = lambda words, part: words[part.start : part.start + part.words]
        self._heaps = {name: cut(heap.words, part) for name, part in parts.items()}
        self._counters = {name: counters[part.counter : part.counter + part.counters] for name, part in parts.items()}
        self._multicast = (
            cut(heap.multicast, parts["multimem"]) if heap.multicast is not None and "multimem" in parts else None
        )

    def of(
        self, request: Request, x: torch.Tensor, out: torch.Tensor, status: torch.Tensor, timeout: float, tag: int = 0
    ) -> tuple[Any, dict[str, Any]]:
        """The kernel of a call, and its arguments by name; a fabric passes on those that the kernel has.

        ``x`` and ``out`` are the call's tensors as ranges of memory; ``timeout``: seconds a wait.
        """
        call, settings, n = request.call, self.settings, self.world_size
        plan, collective = call.plan, call.collective
        wire = COMPLEX.get(call.wire, torch.uint8 if call.wire == torch.bool else call.wire)
        per = 2 if call.dtype in COMPLEX else 1
        if call.exact:
            x, out, wire = patterns(x), patterns(out), INTEGERS[wire.itemsize]
        else:
            x, out = reals(x), reals(out)
        family = dispatch.family(plan.algorithm, collective, wire.itemsize, settings)
        refused = collective not in dispatch.ALGORITHMS[plan.algorithm]  # it is the reason, see Executor.refuse
        kernel = KERNELS[plan.algorithm, "all_reduce" if refused else collective]
        slot = dispatch.slot_bytes(family, n, settings) // wire.itemsize
        if family == "flagged":
            kernel, slot = FLAGGED[plan.algorithm, collective], dispatch.slot_bytes(family, n, settings) // 8
        arguments: dict[str, Any] = {
            "x": x,
            "out": out,
            "heap": self._heaps[family],
            "bases": self._bases,
            "counters": self._counters[family],
            "status": status,
            "edges": self.table(plan.edges),
            "tally": None if request.tally is None else request.tally.words,
            "piece": plan.piece,
            "pieces": plan.pieces,
            "me": self.rank,
            "world": n,
            "node_size": settings.node_size,
            "channels": settings.channels,
            "fingerprint": (call.fingerprint + tag % (1 << 24)) % (1 << 24),
            "timeout": int(timeout * 1e9),
            "scale": call.op.scale,
            "WIRE": TRITON[wire],
            "OP": BOOLEAN[call.op.name] if call.dtype == torch.bool else call.op.name,
            "MAPPED": settings.mapped,
            "SLOTS": settings.slots,
            "SLOT": slot,
            "WINDOW": settings.window,
            "ALIGNED": plan.aligned,
            "BLOCK": block(family, settings),
            "collective": collective not in PAIRWISE,  # for the fabric: whether all ranks launch it
        }
        if kernel is exchange.exchange:
            assert request.table is not None
            rows = [[v if v < 0 else v * per for v in row] for row in request.table]
            arguments["table"] = self.table(tuple(v for row in rows for v in row))
            arguments["piece"] = slot
            most = -(-max(max(rows[1]), max(rows[3]), 0) // settings.channels)
            arguments["pieces"] = max(1, -(-(most + 15) // slot))
            arguments["ALIGNED"] = all(start % 16 == 0 for start in (*rows[0], *rows[2]))
            arguments["counted"] = int(collective not in PAIRWISE)
        elif kernel is multimem.all_reduce:
            assert self._multicast is not None
            arguments["multicast"] = self._multicast
        elif kernel is tree.all_reduce:
            arguments["nodes"] = self.table(topology.double_tree_table(self.rank, n))
        elif kernel in (rooted.broadcast, rooted.reduce):
            arguments["nodes"] = self.table(topology.rooted(collective, plan.algorithm, self.rank, n, call.root or 0))
        else:
            arguments["root"], arguments["roots"] = (0, n) if call.root is None else (call.root, 1)
            arguments["ROOTED"] = call.root is not None
        return kernel, arguments
