"""A process group of ``torch.distributed`` on a communicator. How one is asked for: :mod:`tricoll.backend`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .communicator import Communicator
from .errors import CollectiveError
from .sparse import sparse_all_reduce
from .tensors import premul_sum
from .work import ANY, Work

NAME = "tricoll"
Tensors = Sequence[torch.Tensor]


def communicator(group: dist.ProcessGroup | None = None) -> Communicator:
    """The communicator of a group of the tricoll backend, the default group's if None.

    Args:
        group: a group that ``torch.distributed`` made with this backend.

    Raises:
        TypeError: it is of another backend.
    """
    group = group or dist.group.WORLD
    if not isinstance(group, ProcessGroup):
        raise TypeError(
            f"{group} is not a process group of the tricoll backend; tricoll.init(group) makes a communicator"
        )
    return group.communicator


def _routed(method: Callable[..., Any]) -> Callable[..., Any]:
    # Gloo's part in a group that tricoll serves for CUDA tensors only.
    @functools.wraps(method)
    def call(self: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        tensor = next(_tensors(args), None)
        if self.gloo is not None and (tensor is None or tensor.device.type == "cpu"):
            return getattr(self.gloo, method.__name__)(*args, **kwargs)
        return method(self, *args, **kwargs)

    return call


def _tensors(nested: Any) -> Iterator[torch.Tensor]:
    if isinstance(nested, torch.Tensor):
        yield nested
    elif isinstance(nested, (list, tuple)):
        for each in nested:
            yield from _tensors(each)


class ProcessGroup(dist.ProcessGroup):
    """A group of ranks. Its methods are called by ``torch.distributed``, with lists of tensors and options.

    They return a :class:`tricoll.Work` at once, whose result is the list of the tensors that were written. Arguments
    are checked at once, too, where a method is one call of the communicator.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        comm: Communicator | None,
        gloo: dist.ProcessGroup | None = None,
        reason: str = "",
    ) -> None:
        """``gloo``: who serves CPU tensors, if that is not ``comm``; ``reason``: why ``comm`` is None."""
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.gloo = gloo
        self._comm, self._store, self._reason = comm, store, reason
        self._name = self._desc = ""

    @property
    def communicator(self) -> Communicator:
        """What carries out this group's calls."""
        if self._comm is None:
            raise CollectiveError(
                f"tricoll cannot serve CUDA tensors here: {self._reason}. Use init_process_group('tricoll') with CPU "
                "tensors, or another backend for 'cuda'"
            )
        return self._comm

    # What it is.

    def getBackendName(self) -> str:  # torch's name
        return NAME

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc

    def getGroupDesc(self) -> str:
        return self._desc

    def get_group_store(self) -> dist.Store:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        self.communicator.set_timeout(timeout.total_seconds())

    def shutdown(self) -> None:
        if self._comm is not None:
            self._comm.destroy()

    def abort(self) -> None:
        if self._comm is not None:
            self._comm.abort()

    # Reductions.

    @_routed
    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        (x,) = _list(tensors)
        op = _op(opts)
        if x.layout == torch.sparse_coo:
            return self._several(f"all_reduce({x.layout})", lambda: sparse_all_reduce(self.communicator, x, op), [x])
        return self._one("all_reduce", lambda p: p.reduction("all_reduce", x, op, None, None, "auto"), [x], opts)

    @_routed
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        comm, op = self.communicator, _op(opts)
        return self._several(
            f"{len(tensors)} x all_reduce", lambda: [comm.all_reduce(x, op) for x in tensors], list(tensors)
        )

    @_routed
    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        (x,) = _list(tensors)
        root, op = opts.rootRank, _op(opts)
        return self._one("reduce", lambda p: p.reduction("reduce", x, op, None, None, "auto", root), [x], opts)

    @_routed
    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Work:
        (out,), (parts,) = _list(outputs), inputs
        sizes = [part.numel() for part in parts]
        x, op = _joined(parts), _op(opts)
        return self._one(
            "reduce_scatter",
            lambda p: p.reduction("reduce_scatter", x, op, out, None, "auto", sizes=sizes),
            [out],
            opts,
        )

    @_routed
    def reduce_scatter_single(self, out: torch.Tensor, x: torch.Tensor, opts: Any = None) -> Work:
        x, op = x.reshape(-1), _op(opts)
        return self._one(
            "reduce_scatter", lambda p: p.reduction("reduce_scatter", x, op, out, None, "auto"), [out], opts
        )

    _reduce_scatter_base = reduce_scatter_single

    @_routed
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        comm, op = self.communicator, _op(opts)

        def run() -> None:
            for out, x in zip(outputs, inputs, strict=True):
                comm.reduce_scatter(x.reshape(-1), op, out=out)

        return self._several(f"{len(outputs)} x reduce_scatter", run, list(outputs))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Moving data.

    @_routed
    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        x = _list(tensors)[opts.rootTensor]
        return self._one("broadcast", lambda p: p.broadcast(x, opts.rootRank, None, None, "auto"), [x], opts)

    @_routed
    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        (parts,), (x,) = outputs, _list(inputs)
        sizes = [part.numel() for part in parts]
        flat, x = torch.empty(sum(sizes), dtype=x.dtype, device=x.device), x.reshape(-1)
        uneven = None if len(set(sizes)) == 1 else sizes
        return self._one(
            "all_gather",
            lambda p: p.all_gather(x, flat, None, "auto", uneven),
            list(parts),
            opts,
            lambda: _split(flat, parts),
        )

    @_routed
    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        comm = self.communicator

        def run() -> None:
            for k, x in enumerate(inputs):
                _split(comm.all_gather(x.reshape(-1)), [parts[k] for parts in outputs])

        return self._several(f"{len(inputs)} x all_gather", run, [t for parts in outputs for t in parts])

    @_routed
    def all_gather_single(self, out: torch.Tensor, x: torch.Tensor, opts: Any = None) -> Work:
        return self._one("all_gather", lambda p: p.all_gather(x, out, None, "auto"), [out], opts)

    _allgather_base = all_gather_single

    @_routed
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        comm = self.communicator

        def run() -> None:
            for out, x in zip(outputs, inputs, strict=True):
                comm.all_gather(x, out=out)

        return self._several(f"{len(outputs)} x all_gather", run, list(outputs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @_routed
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        (x,), root = _list(inputs), opts.rootRank
        if self.rank() != root:
            return self._one("gather", lambda p: p.gather(x, root, None, None), [], opts)
        (parts,) = outputs
        flat = torch.empty(self.size() * x.numel(), dtype=x.dtype, device=x.device)
        return self._one(
            "gather",
            lambda p: p.gather(x.reshape(-1), root, flat, None),
            list(parts),
            opts,
            lambda: _split(flat, parts),
        )

    @_routed
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        (out,), root = _list(outputs), opts.rootRank
        x = _joined(inputs[0]) if self.rank() == root else None
        return self._one("scatter", lambda p: p.scatter(x, root, out, None), [out], opts)

    @_routed
    def all_to_all_single(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Work:
        def rows(splits: Sequence[int], t: torch.Tensor) -> Sequence[int]:
            return splits or [(t.shape[0] if t.dim() else 1) // self.size()] * self.size()

        even = not output_splits and not input_splits
        sends, receives = (None, None) if even else (rows(input_splits, x), rows(output_splits, out))
        return self._one("all_to_all", lambda p: p.all_to_all(x, out, None, sends, receives), [out], opts)

    alltoall_base = all_to_all_single

    @_routed
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        x, sends, receives = _joined(inputs), [t.numel() for t in inputs], [t.numel() for t in outputs]
        flat = torch.empty(sum(receives), dtype=x.dtype, device=x.device)
        return self._one(
            "all_to_all",
            lambda p: p.all_to_all(x, flat, None, sends, receives),
            list(outputs),
            opts,
            lambda: _split(flat, outputs),
        )

    # Messages, and none.

    @_routed
    def send(self, tensors: Tensors, to: int, tag: int = 0) -> Work:
        (x,) = _list(tensors)
        return self.communicator.send(x, to, tag=tag, async_op=True)

    @_routed
    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Work:
        (x,) = _list(tensors)
        return self.communicator.recv(x, None if source == ANY else source, tag=tag, async_op=True)

    @_routed
    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        return self.recv(tensors, ANY, tag)

    @_routed
    def barrier(self, opts: Any = None) -> Work:
        return self._one("barrier", lambda p: p.barrier(), [], opts)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier; like all calls, it names all ranks that do not come, so ``wait_all_ranks`` changes nothing."""
        seconds = timeout.total_seconds() if timeout else None
        self.communicator.collective("barrier", lambda p: p.barrier(), patience=seconds).wait()

    def _start_coalescing(self, device: torch.device) -> None:
        """Calls are not held back: they are made in their order anyway."""

    def _end_coalescing(self, device: torch.device) -> Work:
        """A handle that is completed when all calls before it are."""
        return self._several("the calls of a block", lambda: None, [])

    # How a call is made.

    def _one(self, collective: str, prepare: Any, written: list[torch.Tensor], opts: Any, after: Any = None) -> Work:
        """One call of the communicator; ``after`` puts its result where the caller wants it."""
        timeout = opts.timeout.total_seconds() if opts is not None else -1.0
        async_op = getattr(opts, "asyncOp", True)  # without it, the caller waits at once: no thread is needed
        return self.communicator.collective(
            collective,
            prepare,
            value=written,
            after=after,
            patience=timeout if timeout > 0 else None,
            async_op=async_op,
        )

    def _several(self, what: str, run: Callable[[], Any], written: list[torch.Tensor]) -> Work:
        """Some calls of the communicator, that no other comes between."""
        return self.communicator.together(what, run, written)


def _list(tensors: Any) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def _op(opts: Any) -> Any:
    """The reduction that options ask for, sum by default."""
    return "sum" if opts is None else reduction(opts.reduceOp)


def reduction(op: Any) -> Any:
    """One of torch's reductions as the communicator takes it."""
    state = op.__getstate__()
    kind, factor = state if isinstance(state, tuple) else (op, 1.0)  # a ReduceOp has a factor, a constant has not
    return premul_sum(float(factor)) if kind.name == "PREMUL_SUM" else kind


def _joined(parts: Tensors) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _split(flat: torch.Tensor, parts: Tensors) -> None:
    for start, part in zip(itertools.accumulate([0, *(part.numel() for part in parts)]), parts):
        part.copy_(flat[start : start + part.numel()].view(part.shape))
