"""How one rank makes a call whose arguments have been checked: it says so, launches, and hears what became of it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from .arguments import ALL, Arguments, Tables
from .calls import PAIRWISE, Call, Request
from .completion import Completion, Immediate
from .control import Control
from .dispatch import Settings
from .enqueue import StreamQueue
from .errors import CollectiveError, CollectiveMismatch
from .fabric.base import Fabric, settle
from .kernels.numerics import Reduction, accumulator, finish_, scale_
from .prepare import Prepare
from .tally import Tally
from .tensors import COMPLEX, plain
from .watch import Watch
from .work import Queue
from .workspace import Workspace


class Executor:
    """What a communicator's calls have in common on one rank: memory, the queue in which they wait for their turn, and
    the conversation with the other ranks."""

    def __init__(
        self, fabric: Fabric, settings: Settings, timeout: float, check: bool, agreed: Mapping[str, Any]
    ) -> None:
        """Collective. ``agreed``: what must be the same on all ranks."""
        self.fabric, self.settings, self.timeout = fabric, settings, timeout
        self.unusable = ""  # why no more calls can be made
        self.calls, self.seconds = 0, 0.0
        self._process = os.getpid()
        self.workspace = Workspace(fabric, settings, agreed)
        self.control = Control(fabric, timeout, check)
        self.streams = getattr(fabric, "streams", None)  # of a fabric whose launches return at once
        self.queue: Queue | StreamQueue
        self._completion: Completion
        if self.streams is None:
            self.queue = Queue(self.control.late, fabric.stop, fabric.asynchronous)
            self._completion = Immediate(self.control, self.workspace.status)
            table = Tables(lambda values: values)
        else:
            settle(self.streams)  # counters and blocks are there for whatever stream comes first
            drain = weakref.WeakMethod(self._drain)  # an executor that is gone has no memory to write to
            self.queue = StreamQueue(self.streams, lambda: (method := drain()) and method())
            self._completion = Watch(self.control, self.streams, self.queue, self.workspace.status)
            table = Tables(self.streams.upload, ALL)
        self._arguments: Arguments | None = None
        if self.workspace.heap is not None:
            self._arguments = Arguments(fabric.rank, fabric.world_size, settings, self.workspace, table)
        self._lock = threading.Lock()  # of what calls that run beside each other share

    @property
    def destroyed(self) -> bool:
        """Whether :meth:`close` has been called."""
        return self.unusable.startswith("destroyed")

    @property
    def _forked(self) -> bool:
        return os.getpid() != self._process

    def check_usable(self) -> None:
        """Raise CollectiveError if no more calls can be made."""
        if self._forked:  # it would write to the other ranks' memory in its parent's name
            raise CollectiveError(
                f"rank {self.fabric.rank} is process {self._process}; this process was forked from it, and cannot use "
                "its communicator"
            )
        if self.unusable:
            raise CollectiveError(
                f"rank {self.fabric.rank}: this communicator cannot be used ({self.unusable}); make a new one"
            )
        self._completion.check()

    def perform(self, request: Request, tag: int = 0, patience: float | None = None) -> None:
        """Make a call. ``tag``: of a message. ``patience``: seconds that take the place of the timeout."""
        self.check_usable()  # a call before this one may have failed
        start = time.perf_counter()
        x, result, call = request.x, request.result, request.call
        with self._unusable_after_failure(call):
            source = plain(x)
            target = source if result is x else plain(result)
            if call.collective not in PAIRWISE:
                self.control.timeout = patience or self.timeout
                self.control.enter(str(call), request.detail)
            if self.fabric.world_size > 1:
                self._launch(request, source, target, tag, patience)
            else:
                _alone(call, source, target, request.tally)
        if target.data_ptr() != result.data_ptr() and self._writes(call):
            result.detach().copy_(target.view(result.shape))
        self._completion.used([x, result])
        with self._lock:
            self.calls += 1
            self.seconds += time.perf_counter() - start

    def _writes(self, call: Call) -> bool:
        rooted = call.collective in ("reduce", "gather")
        return call.collective != "send" and (not rooted or call.root == self.fabric.rank)

    def first_sender(self, what: str) -> int:
        """The rank of the first message that waits here. Waits for one: for the call that ``what`` says in words."""
        with self._unusable_after_failure(None):
            if not self.fabric.pause(lambda: bool(self.workspace.senders()), self.timeout):
                raise self.control.nobody(what)
        return self.workspace.senders()[0]  # what is there stays there until it is received

    def refuse(self, reason: str, prepare: Prepare) -> None:
        """Let the others know that this rank takes no part in a call, instead of letting them wait."""
        with self._unusable_after_failure(None), contextlib.suppress(CollectiveMismatch):
            self.control.enter(reason, refused=True)
            if not self.control.check and self.fabric.world_size > 1:
                nothing = torch.empty(0, dtype=torch.uint8, device=self.fabric.device)
                empty = prepare.reduction("all_reduce", nothing, "sum", None, None, "ring")
                self._launch(replace(empty, call=replace(empty.call, collective=reason)), nothing, nothing)

    def close(self, patience: float) -> None:
        """Give memory back. Calls that are pending have ``patience`` seconds to finish. May be called twice."""
        if self.destroyed:
            return
        if self.queue.inside:
            raise RuntimeError(
                "a callback of one of the communicator's calls destroys it, which waits for that call to end: "
                "destroy it after the call's wait()"
            )
        if self._forked:  # the memory, the threads and the place among the ranks are the parent's
            self.unusable = "destroyed"
            return
        ended = self.queue.close(patience, "the communicator was destroyed")
        self.unusable = "destroyed"
        self._completion.close()
        self.control.close()
        if self.queue.cut_short:
            self.fabric.sequence -= 1  # the others shall not wait for this rank's part in that call
        if ended:  # else a thread is still using the memory, which is better kept than taken from it
            self.workspace.heap = self._arguments = None
            self.fabric.close()

    @contextlib.contextmanager
    def _unusable_after_failure(self, call: Call | None) -> Iterator[None]:
        sequence = self.control.sequence
        try:
            yield
        except CollectiveError as error:
            # After a mismatch all ranks have emptied their links together; two of them cannot.
            spoilt = isinstance(error.__cause__, CollectiveError) or (call and call.collective in PAIRWISE)
            if spoilt or not isinstance(error, CollectiveMismatch):
                self.unusable = f"call {self.control.sequence} failed: {error}"
            raise
        except BaseException as error:
            if self.streams is not None and self.streams.capturing():
                raise  # nothing was launched, on any rank: it can be made once before the capture, as the error says
            # Ctrl-C or no memory, say: the others are in this call, and must not meet the next.
            self.unusable = f"{call} was cut short by {type(error).__name__}"
            self.queue.cut_short |= self.control.sequence > sequence
            raise

    def _launch(
        self, request: Request, x: torch.Tensor, out: torch.Tensor, tag: int = 0, patience: float | None = None
    ) -> None:
        assert self._arguments is not None
        call, collective = request.call, request.call.collective
        pair = (collective, request.peer) if collective in PAIRWISE else None
        status = self._completion.status(pair)
        kernel, arguments = self._arguments.of(request, x, out, status, patience or self.timeout, tag)
        self.fabric.launch(kernel, self.settings.channels, arguments)
        error = self._completion.launched(str(call), arguments["fingerprint"], status, pair)
        if isinstance(error, CollectiveMismatch) and pair is None:
            try:
                self._start_afresh()
            except CollectiveError as trouble:  # ranks that only sent have gone on, and do not know
                error.__cause__ = trouble
        if error is not None:
            try:
                raise error
            finally:
                del error  # whose traceback keeps this frame, and with it the communicator

    def _drain(self) -> None:
        """Have the kernels that are on the device give up, as if another rank had told them to."""
        self.fabric.stop()
        if self.streams is not None:  # of the first epoch: whatever call they are in
            self.streams.write(self.workspace.abort_words(), (1 << 16) | (self.fabric.rank + 1))

    def _start_afresh(self) -> None:
        """Empty all links, after a call in which all ranks gave up: the next call finds them as at the start."""
        self.fabric.quiet()
        self.control.meet()  # all ranks have stopped sending
        self.workspace.clear()
        self.control.meet()  # all ranks have emptied theirs


def _alone(call: Call, x: torch.Tensor, out: torch.Tensor, tally: Tally | None) -> None:
    """A world of one: nothing to send, but the same rounding as elsewhere."""
    if tally is not None:
        tally.include(x, None)
    if call.exact or call.dtype in COMPLEX or not call.dtype.is_floating_point:
        out.copy_(x)
        return
    total = x.to(accumulator(x.dtype), copy=True)
    if not call.moves:
        red = Reduction(1, call.op.scale, None)
        scale_(total, red, call.op.name)
        finish_(total, red, call.op.name)
    total = total if call.collective == "reduce_scatter" else total.to(call.wire)
    if tally is not None:
        tally.include(None, total)
    out.copy_(total)
