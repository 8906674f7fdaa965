"""Calls on a device that works off streams of kernels: putting one on a stream is all that its caller waits for.

A call without ``async_op`` goes on the caller's current stream, one with it on a stream of the communicator's own. The
calls of a communicator follow each other whatever their streams, as they do in :class:`tricoll.work.Queue`, of which
:class:`StreamQueue` is the counterpart. Nothing here knows CUDA: see :class:`tricoll.fabric.base.Streams`.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch

from .errors import CollectiveError, CollectiveTimeout
from .fabric.base import Streams, poll
from .work import WAY_OUT, Lane, Turns, Work, ordered

log = logging.getLogger("tricoll")


class Mark:
    """What is known of a call that is on a stream. It does not keep the call's tensors alive."""

    def __init__(self, work: Work) -> None:
        self.what, self.lane, self.submitted = work.what, work.lane, work.submitted
        self.event: Any = None  # behind the call; None in a graph
        self.sequence = 0  # of the collective that was enqueued last
        self.verified = False  # whether the device has made it, and nothing was wrong
        self.failure: BaseException | None = None  # what was found out later


class Enqueued(Work):
    """A call that has been put on a stream. Its tensors may be dropped: their memory is not used anew before the call.

    As ``torch.distributed`` has it for GPUs, :meth:`wait` does not wait: it makes the caller's current stream wait.
    Only a barrier's holds its caller up.
    """

    stream: Any = None
    mark: Mark | None = None  # None: it is part of another call

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Have the caller's current stream wait for the call; what is put on that stream next may use its result.

        Args:
            timeout: seconds, or a timedelta: wait for the device itself, so long. None or 0: return at once.

        Raises:
            CollectiveTimeout: the device has not made it within ``timeout``.
            CollectiveError: the call, or one before it, is known to have failed.
        """
        super().wait()  # raises if it could not be enqueued
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if self.mark is not None and self.mark.event is not None:
            if self.blocks or seconds:  # without a limit, the kernels' own timeouts bound it
                if not self._queue.reached(self.mark, seconds or math.inf):
                    why = self._queue.why(self)
                    raise CollectiveTimeout(f"{self.what} has not finished within {seconds:g} s. {why}")
                self._queue.verified(self.mark)
            self._queue.follow(self.mark)
        if error := self.exception():
            raise error
        return True

    def is_completed(self) -> bool:
        """Whether the device has made the call, well or badly."""
        if not super().is_completed():
            return False
        return self.mark is None or self.exception() is not None or bool(self._queue.done(self.mark))

    def is_success(self) -> bool:
        """Whether the device has made the call, and it went well."""
        return self.is_completed() and self.exception() is None and (
            self.mark is None or bool(self._queue.verified(self.mark))
        )  # fmt: skip

    def exception(self) -> BaseException | None:
        """What :meth:`wait` would raise."""
        return super().exception() or (None if self.mark is None else self.mark.failure)

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the result. It is there at once: whoever takes the result from it has their stream wait."""
        if super().exception() is not None:
            return super().get_future()
        super().wait()  # until it is enqueued
        with self._lock:
            if self._future is None:
                values = self._value if isinstance(self._value, (list, tuple)) else [self._value]
                devices = {v.device for v in values if isinstance(v, torch.Tensor) and v.is_cuda}
                self._future = torch.futures.Future(devices=sorted(devices, key=str) or None)
                with self._queue.streams.on(self.stream):  # behind which those who take the result wait
                    self._future.set_result(self._value)
            return self._future


class Tail(NamedTuple):
    """The last call of a lane: what a later one has to follow."""

    lane: Lane
    stream: Any
    event: Any


class StreamQueue(Turns):
    """Puts a communicator's calls on streams, in the order in which they are made. See :class:`tricoll.work.Queue`."""

    work = Enqueued
    cut_short = False
    exposed = 0.0  # streams wait, not callers

    def __init__(self, streams: Streams, stop: Callable[[], None]) -> None:
        """``stop``: has what is on the device give up."""
        super().__init__()
        self.streams, self.stop = streams, stop
        self.late: Callable[[], list[int]] = list  # the ranks that have not begun this rank's last collective
        self.look: Callable[[], None] = lambda: None  # at what the kernels have reported
        self.sequence: Callable[[], int] = lambda: 0  # of the collective that was enqueued last
        self.pending: list[Mark] = []  # oldest first; those that are verified are taken out by whoever did that
        self._tails: list[Tail] = []
        self.lock = threading.RLock()  # calls of several threads are put on streams one after the other

    @property
    def empty(self) -> bool:
        """False: every call takes its turn on a stream."""
        return False

    def submit(self, work: Any) -> Any:
        """Put a call on a stream of the communicator's own, behind what is on the caller's stream by now."""
        if self.inside:
            self._carry_out(work)
            return work
        with self.lock:
            here = self.streams.current()
            # In a graph it stays on the stream that is being captured: nothing has to be joined at the end.
            stream = here if self.streams.capturing() else self.streams.own(work.lane)
            if stream != here:
                self.streams.wait(stream, self.streams.record(here))
            self._put(work, stream)
        return work

    def call(self, work: Any) -> Any:
        """Put a call on the caller's stream, and return its result, which is there when that stream has come so far."""
        if self.inside:
            self._carry_out(work)
        else:
            with self.lock:
                self._put(work, self.streams.current())
        return work.outcome()

    def _put(self, work: Enqueued, stream: Any) -> None:
        capturing = self.streams.capturing()
        if not capturing:
            for tail in self._tails:
                if tail.stream != stream and ordered(tail.lane, work.lane):
                    self.streams.wait(stream, tail.event)
        with self.streams.on(stream):
            with self._carrying_out():
                self._carry_out(work)
            work.mark = mark = Mark(work)
            mark.sequence = self.sequence()
            if not capturing:
                mark.event = self.streams.record(stream)
                kept = [] if work.lane is None else [tail for tail in self._tails if tail.lane != work.lane]
                self._tails = [*kept, Tail(work.lane, stream, mark.event)]
                self.pending.append(mark)

    def _carry_out(self, work: Enqueued) -> None:
        work.stream = self.streams.current()
        work.carry_out()

    # What a Work asks.

    def follow(self, mark: Mark) -> None:
        """Have the caller's stream wait for a call."""
        if not self.streams.capturing():  # what was enqueued before a graph is no part of it
            self.streams.wait(self.streams.current(), mark.event)

    def done(self, mark: Mark) -> bool:
        """Whether the device has come past a call."""
        return mark.verified or mark.event is None or bool(self.streams.done(mark.event))

    def reached(self, mark: Mark, seconds: float) -> bool:
        """Wait until the device has come past a call, or it has failed, for so long at most."""
        return poll(lambda: self.done(mark) or mark.failure is not None, seconds)

    def verified(self, mark: Mark) -> bool:
        """Whether a call that the device has come past went well, by what its kernels report now."""
        if not mark.verified and mark.failure is None and mark.event is not None:
            self.look()
        return mark.failure is None

    def settle(self) -> None:
        """Wait until the device has made all calls, and raise what went wrong. Does nothing in a graph."""
        if self.inside or self.streams.capturing():
            return
        with self.lock:
            waiting = list(self.pending)
        self._all_done(waiting, math.inf)  # which the kernels' own timeouts bound
        self.look()
        for mark in waiting:
            if mark.failure is not None:
                raise mark.failure

    def why(self, work: Enqueued) -> str:
        """What a call waits for, in words."""
        late = self.late()
        if late:
            return f"Ranks {late} have not begun this rank's last call: they are late or stuck."
        return "All ranks have begun this rank's last call."

    def judge(self, work: Work, error: BaseException) -> BaseException:
        """The error for a call that could not be enqueued."""
        return error

    def close(self, patience: float, reason: str) -> bool:
        """Give calls ``patience`` seconds to finish; those that are left by then are told to give up, and fail.

        Returns whether none is left on the device.
        """
        with self.lock:
            waiting = list(self.pending)
        try:
            if self._all_done(waiting, patience):
                return True
            for mark in waiting:
                if mark.failure is None and not self.done(mark):
                    mark.failure = CollectiveError(f"{mark.what} was given up: {reason}")
            self.stop()
            return self._all_done(waiting, WAY_OUT)
        except RuntimeError as error:  # whatever has gone wrong on the device is for its own call to say
            log.warning("the device cannot be asked whether calls are over: %s", error)
            return False

    def _all_done(self, waiting: list[Mark], seconds: float) -> bool:
        return poll(lambda: all(self.done(mark) for mark in waiting), seconds)
