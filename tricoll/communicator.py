"""The communicator: what users call. It checks arguments, and has each call made when it is its turn."""

from __future__ import annotations

import hashlib
import itertools
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from . import cost, dispatch
from .calls import PAIRWISE, Request
from .errors import CollectiveError
from .executor import Executor
from .fabric.base import Fabric
from .prepare import Prepare
from .tally import Tally
from .work import ANY, Lane, Work

PATIENCE = 30.0  # seconds that destroy() gives calls to finish, if the timeout does not give them less

_numbers = itertools.count(1)
_named: weakref.WeakValueDictionary[str, Communicator] = weakref.WeakValueDictionary()


class Communicator:
    """A group of ranks that make the same calls in the same order. Made by :func:`tricoll.init`."""

    def __init__(
        self, fabric: Fabric, settings: dispatch.Settings, timeout: float, check: bool, profile: cost.Profile
    ) -> None:
        settings = replace(settings, multicast=settings.mapped and fabric.multicast)
        profile = replace(profile, multicast=profile.multicast and not fabric.emulated)
        constants = hashlib.sha256(profile.to_json().encode()).hexdigest()[:12]
        agreed = {**asdict(settings), "check": check, "profile": f"{profile.name} {constants}"}
        self._fabric, self._settings, self._profile = fabric, settings, profile
        self._prepare = Prepare(fabric.rank, fabric.world_size, settings, profile, fabric.device)
        self._executor = Executor(fabric, settings, timeout, check, agreed)
        self._queue = self._executor.queue
        self.name = str(next(_numbers))  # in this process, for what cannot hold an object
        _named[self.name] = self

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

    @property
    def device(self) -> torch.device:
        """Where tensors must be: the CPU, or this rank's GPU."""
        return self._fabric.device

    @property
    def destroyed(self) -> bool:
        """Whether :meth:`destroy` has been called."""
        return self._executor.destroyed

    def __repr__(self) -> str:
        unusable = self._executor.unusable
        state = f", unusable: {unusable}" if unusable else ""
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
        tally: Tally | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce ``x`` over all ranks, on all ranks.

        Args:
            x: a tensor of any shape and stride; all ranks' have the same dtype and number of elements.
            op: "sum", "avg" (the FP32 sum divided by the world size, before it is rounded), "min", "max", "prod",
                :func:`tricoll.premul_sum`, for integers and bool also "and", "or", "xor"; or a torch ReduceOp. Complex
                numbers have sum and avg. The sum of bools is "or".
            out: where the result goes, a tensor with as many elements; its dtype may differ. None: in place, in ``x``.
            wire: the dtype that travels, by default that of ``x``. "bf16" halves the bytes of FP32 gradients; any of
                float32, float16, bfloat16, float8_e4m3fn and float8_e5m2 can be cast to any other.
            algo: "ring", "tree", "two_shot", "one_shot", "hierarchical", "multimem", or "auto", the fastest by the cost
                model (see :meth:`explain`). The shots add in rank order and round once: an element's bits depend on the
                ranks' values only; the others round what they send on. "auto" takes one of the shots for 8- and 16-bit
                tensors, if no wire is given, and always with ``tricoll.init(reproducible=True)``.
            tally: see :meth:`tally`; for floating point, and with "ring", "tree", "two_shot" and "hierarchical".
            async_op: return a :class:`tricoll.Work` at once, and make the call on a thread of the communicator. Until
                its ``wait()`` has returned, ``x`` and ``out`` belong to the call. Calls are made in the order in which
                they were given, so later ones, of whatever kind, wait for it. In :func:`tricoll.simulate` it is made at
                once, since the simulator's scheduler decides who runs.

        Returns:
            ``out``, or ``x`` if that is None. All ranks hold the same bits.

        Raises:
            TypeError, ValueError: on this rank, before data move; the others get a CollectiveMismatch.
            CollectiveError: see :mod:`tricoll.errors`.
        """
        return self._run(
            "all_reduce", async_op, lambda p: p.reduction("all_reduce", x, op, out, wire, algo, tally=tally)
        )

    def reduce_scatter(
        self,
        x: torch.Tensor,
        op: Any = "sum",
        *,
        out: torch.Tensor | None = None,
        sizes: Sequence[int] | None = None,
        wire: torch.dtype | str | None = None,
        algo: str = "auto",
        tally: Tally | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce ``x`` over all ranks; rank r gets part r of the result, cut along dimension 0.

        Args:
            out: has the elements of that part; a new tensor of the dtype of ``x`` if None.
            sizes: the rows of dimension 0 for each rank, the same list on all ranks. None: equal parts; then the size
                of dimension 0 must be a multiple of the world size.
            algo: "auto", "ring" or "two_shot".

        The last addition is rounded to the output's dtype only, not to the wire's. Otherwise see :meth:`all_reduce`.
        """
        return self._run(
            "reduce_scatter",
            async_op,
            lambda p: p.reduction("reduce_scatter", x, op, out, wire, algo, sizes=sizes, tally=tally),
        )

    def reduce(
        self,
        x: torch.Tensor,
        root: int = 0,
        op: Any = "sum",
        *,
        out: torch.Tensor | None = None,
        wire: torch.dtype | str | None = None,
        algo: str = "auto",
        async_op: bool = False,
    ) -> Any:
        """Reduce ``x`` over all ranks, on rank ``root``.

        The root's ``out``, or ``x`` if that is None, is written; the other ranks' are not. Returns it (elsewhere
        ``x``). ``algo``: "auto", "ring" (a chain), "tree", "two_shot" or "one_shot". See :meth:`all_reduce`.
        """
        return self._run("reduce", async_op, lambda p: p.reduction("reduce", x, op, out, wire, algo, root))

    def all_gather(
        self,
        x: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        sizes: Sequence[int] | None = None,
        wire: torch.dtype | str | None = None,
        algo: str = "auto",
        async_op: bool = False,
    ) -> Any:
        """Join all ranks' ``x`` along dimension 0, in rank order, on all ranks.

        Args:
            out: has the elements of all together; a new tensor of the dtype of ``x`` if None.
            sizes: the rows of each rank's ``x``, the same list on all ranks. None: all have as many.
            wire: with a narrower one, the own part is rounded like the others'.
            algo: "auto", "ring" or "two_shot".

        Otherwise see :meth:`all_reduce`.
        """
        return self._run("all_gather", async_op, lambda p: p.all_gather(x, out, wire, algo, sizes))

    def broadcast(
        self,
        x: torch.Tensor,
        root: int = 0,
        *,
        out: torch.Tensor | None = None,
        wire: torch.dtype | str | None = None,
        algo: str = "auto",
        async_op: bool = False,
    ) -> Any:
        """Give all ranks the ``x`` of rank ``root``, in place or in ``out``.

        All ranks have an ``x`` of one dtype and number of elements. With a narrower wire, the root's is rounded like
        the others'. ``algo``: "auto", "ring" (a chain), "tree" or "one_shot". Otherwise see :meth:`all_reduce`.
        """
        return self._run("broadcast", async_op, lambda p: p.broadcast(x, root, out, wire, algo))

    def gather(
        self,
        x: torch.Tensor,
        root: int = 0,
        *,
        out: torch.Tensor | None = None,
        wire: torch.dtype | str | None = None,
        async_op: bool = False,
    ) -> Any:
        """Join all ranks' ``x`` along dimension 0 on rank ``root``, in ``out`` or a new tensor. None elsewhere.

        ``out`` is looked at on the root only. Otherwise see :meth:`all_reduce`.
        """
        return self._run("gather", async_op, lambda p: p.gather(x, root, out, wire), keep=self.rank == root)

    def scatter(
        self,
        x: torch.Tensor | None,
        root: int = 0,
        *,
        out: torch.Tensor | None = None,
        wire: torch.dtype | str | None = None,
        async_op: bool = False,
    ) -> Any:
        """Cut the ``x`` of rank ``root`` along dimension 0 into equal parts; rank r gets part r.

        Other ranks give ``out`` to receive it in (their ``x`` is not looked at); for the root it is optional.

        Otherwise see :meth:`all_reduce`.

        Returns:
            ``out``, or on the root, without one, a new tensor.
        """
        return self._run("scatter", async_op, lambda p: p.scatter(x, root, out, wire))

    def all_to_all(
        self,
        x: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        input_splits: Sequence[int] | None = None,
        output_splits: Sequence[int] | None = None,
        wire: torch.dtype | str | None = None,
        async_op: bool = False,
    ) -> Any:
        """Send part p of ``x``, cut along dimension 0, to rank p, and join what comes from all ranks, in their order.

        Args:
            x: parts for all ranks, in rank order.
            out: a new tensor if None. With equal parts it may be ``x``.
            input_splits: rows for each rank; None: equal parts.
            output_splits: rows from each rank; None: equal parts.

        Otherwise see :meth:`all_reduce`.
        """
        return self._run("all_to_all", async_op, lambda p: p.all_to_all(x, out, wire, input_splits, output_splits))

    def send(
        self,
        x: torch.Tensor,
        to: int,
        *,
        wire: torch.dtype | str | None = None,
        tag: int = 0,
        async_op: bool = False,
    ) -> Any:
        """Send ``x`` to a rank that calls :meth:`recv` with a tensor of the same dtype and number of elements.

        Returns when the data have left; what does not fit into the link's slots waits for the receiver. Two ranks'
        messages arrive in the order in which they were sent, also among collectives.

        With ``async_op``, sending to a rank and receiving from it go on beside each other, and beside those of other
        ranks: only messages of one direction between two ranks keep their order. A collective waits for the messages
        that were sent or asked for before it.

        Args:
            x: what is sent.
            to: the rank.
            tag: a number that the receiver must give, too. It does not look for a message with that tag: another one
                is a CollectiveMismatch.

        Otherwise see :meth:`all_reduce`.
        """
        return self._run("send", async_op, lambda p: p.pair("send", x, to, wire), lane=("send", to), tag=tag)

    def recv(
        self,
        x: torch.Tensor,
        source: int | None,
        *,
        wire: torch.dtype | str | None = None,
        tag: int = 0,
        async_op: bool = False,
    ) -> Any:
        """Receive into ``x`` what rank ``source`` sends with :meth:`send`. Returns ``x``.

        ``source``: None takes what comes first, from whatever rank; ``source`` of the Work says which it was.

        ``tag`` is that of :meth:`send`, and ``wire`` the one that the sender gave. Otherwise see :meth:`all_reduce`.
        """
        if source is not None:
            lane = ("recv", source)
            return self._run("recv", async_op, lambda p: p.pair("recv", x, source, wire), lane=lane, tag=tag)
        self._executor.check_usable()
        if self._executor.streams is not None:
            raise ValueError("a receive from any rank would have to wait for the GPU: name the source")
        some = self._prepare.pair("recv", x, (self.rank + 1) % self.world_size, wire)  # looks at the arguments
        what = str(some.call).replace("recv(", "recv from any rank(", 1)

        def run() -> None:
            self._executor.check_usable()
            work.source = self._executor.first_sender(what)
            self._executor.perform(self._prepare.pair("recv", x, work.source, wire), tag)

        work = self._work(what, run, x, ("recv", ANY))
        return self._made(work, async_op)

    def barrier(self, *, async_op: bool = False) -> Any:
        """Return when all ranks have called it; with ``async_op``, a Work that has finished then.

        On GPUs this waits for all calls before it, and raises the error of one that has failed.
        """
        work = self._run("barrier", async_op, lambda p: p.barrier(), keep=False)
        if not async_op:
            self._queue.settle()
        return work

    def explain(self, collective: str, nbytes: int) -> cost.Explanation:
        """Which algorithm ``algo="auto"`` takes, and what each would cost by the model.

        ``nbytes`` are on the wire: of the tensor, or of the whole buffer for reduce_scatter and all_gather. The answer
        has ``winner``, ``candidates`` and ``reason``; print it with :func:`tricoll.explain.show`.

        Args:
            collective: its name, such as "all_reduce".
        """
        return dispatch.explain(collective, nbytes, self.world_size, self._settings, self._profile)

    def stats(self) -> dict[str, Any]:
        """What this rank has done so far.

        ``calls``; ``puts``, messages with data; ``payload_bytes``, the bytes in them, in the wire dtype; ``signals``,
        flags without data; ``seconds`` spent in collectives, and of these ``exposed_seconds``, for which callers were
        held up (in synchronous calls, or waiting for asynchronous ones), and ``hidden_seconds``, the others. On GPUs
        calls are enqueued: seconds are those of the host, and streams wait, not callers.
        """
        counted, seconds = self._fabric.counters, self._executor.seconds
        exposed = min(self._queue.exposed, seconds)
        return {
            "calls": self._executor.calls,
            "puts": counted.puts,
            "payload_bytes": counted.payload_bytes,
            "signals": counted.signals,
            "seconds": seconds,
            "exposed_seconds": exposed,
            "hidden_seconds": seconds - exposed,
        }

    def tally(self) -> Tally:
        """Something to give to all_reduce and reduce_scatter, to have squared norms and values that are not finite
        counted inside the kernel, without another pass over memory. See :class:`tricoll.tally.Tally`."""
        self._executor.check_usable()
        return Tally(self, self._settings.channels, self._fabric.device)

    def destroy(self) -> None:
        """Give memory back. Every rank should call it; a second call does nothing.

        Calls that are pending have the communicator's timeout to finish, 30 seconds at most; then they fail.
        """
        self._executor.close(self._patience)

    @property
    def _patience(self) -> float:
        return min(self._executor.timeout, PATIENCE)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._executor.close(self._patience if error is None else 0.0)

    # For what is built on it.

    def request(self, prepare: Callable[[Prepare], Request]) -> Request:
        """What a call would be, without making it: ``prepare`` as in :mod:`tricoll.calls`, and its errors."""
        return prepare(self._prepare)

    def collective(
        self,
        collective: str,
        prepare: Callable[[Prepare], Request],
        *,
        value: Any = None,
        after: Callable[[], Any] | None = None,
        patience: float | None = None,
        async_op: bool = True,
    ) -> Work:
        """One collective: ``prepare`` as in :mod:`tricoll.calls`. Without ``async_op``, the Work has finished.

        Args:
            value: the result of the Work.
            after: called when the collective has finished, before the Work has.
            patience: seconds that take the place of the timeout, for this call.
        """
        request = self._checked(collective, prepare)

        def run() -> None:
            self._executor.perform(request, patience=patience)
            if after is not None:
                after()

        work = self._work(str(request.call), run, value, blocks=collective == "barrier")
        self._made(work, async_op)
        return work

    def together(self, what: str, run: Callable[[], Any], value: Any = None) -> Work:
        """Have ``run`` make calls of this communicator that no other comes between, asynchronously."""
        self._executor.check_usable()
        return self._queue.submit(self._work(what, run, value))

    def set_timeout(self, seconds: float) -> None:
        """Change how long calls wait for other ranks, from the next one on."""
        if not seconds > 0:
            raise ValueError(f"timeout is {seconds}; it must be more than 0 seconds")
        self._executor.timeout = seconds

    def abort(self) -> None:
        """Like :meth:`destroy`, without patience: what is pending fails."""
        self._executor.close(0.0)

    # How a call is carried out.

    def _run(
        self,
        collective: str,
        async_op: bool,
        prepare: Callable[[Prepare], Request],
        *,
        keep: bool = True,
        lane: Lane = None,
        tag: int = 0,
    ) -> Any:
        """Check the arguments, and make the call when it is its turn. ``keep``: whether it has a result here."""
        request = self._checked(collective, prepare)
        result = request.result if keep else None
        run = lambda: self._executor.perform(request, tag)
        return self._made(self._work(str(request.call), run, result, lane, collective == "barrier"), async_op)

    def _checked(self, collective: str, prepare: Callable[[Prepare], Request]) -> Request:
        self._executor.check_usable()
        try:
            return prepare(self._prepare)
        except (TypeError, ValueError) as error:
            if collective not in PAIRWISE:
                self._refuse(f"{collective}: refused, {error}")
            raise

    def _work(self, what: str, run: Callable[[], Any], result: Any, lane: Lane = None, blocks: bool = False) -> Work:
        """A call that is yet to be made. Calls of this communicator that ``run`` makes are part of it."""
        work = self._queue.work(self._queue, f"rank {self.rank}, {what}", run, result, lane)
        work.blocks = blocks
        return work

    def _made(self, work: Work, async_op: bool) -> Any:
        """Have a call made when it is its turn: its handle, or its result."""
        try:
            return self._queue.submit(work) if async_op else self._queue.call(work)
        finally:
            del work  # as in Work.carry_out

    def _refuse(self, reason: str) -> None:
        """Let the others know that this rank takes no part in a call, instead of letting them wait."""
        executor = self._executor
        if executor.streams is not None and executor.streams.capturing():
            return
        tell = lambda: executor.refuse(reason, self._prepare)
        if self._queue.empty or self._queue.inside:
            tell()
        else:  # when it is the call's turn, which the caller need not wait for to hear of its mistake
            self._made(self._work(reason, tell, None), async_op=True)


def named(name: str) -> Communicator:
    """The communicator of this process with that name."""
    if name not in _named:
        raise CollectiveError(f"the communicator {name!r} is gone: keep a reference to it while it is used")
    return _named[name]
