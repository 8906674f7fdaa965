"""Calls that run while their caller does something else: the handle of a call, and the queue of a communicator."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .errors import CollectiveError, CollectiveTimeout
from .exits import close_calls

Lane = tuple[str, int] | None  # None, or a direction and a rank
ANY = -1  # as that rank: receiving from whoever sends first

IDLE = 5.0  # seconds after which a thread without work ends
WAY_OUT = 10.0  # seconds in which a call that was told to stop has certainly ended


class Work(dist.Work):
    """A call that was made with ``async_op=True``. It keeps the tensors of the call alive.

    An error of the call is raised by :meth:`wait` and :meth:`result`, as often as they are called.
    ``submitted``, ``started`` and ``ended`` are times of ``time.perf_counter()``, 0.0 while they are in the future.

    Made by the calls of a communicator.
    """

    def __init__(self, queue: Any, what: str, run: Callable[[], Any], value: Any, lane: Lane = None) -> None:
        """``run`` carries the call out; ``value`` is its result. For ``lane`` see :class:`Queue`."""
        super().__init__()
        self.what, self.lane, self.submitted = what, lane, time.perf_counter()
        self.started = self.ended = 0.0
        self._queue, self._run, self._value = queue, run, value
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._promise: torch.futures.Future[Any] | None = None
        self._future: torch.futures.Future[Any] | None = None
        self.blocks = False  # whether wait() must hold its caller up: a barrier is for that
        self.source = -1  # the rank from which a message came, where the caller did not say which

    def __repr__(self) -> str:
        state = "waits for its turn" if not self.started else "runs"
        if self.is_completed():
            state = "failed" if self._error else "completed"
        return f"<tricoll.Work {self.what}: {state}>"

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Return True when the call has finished; its result may be used then, and its tensors written to.

        Args:
            timeout: seconds, or a timedelta. None or 0: as long as it takes, which the communicator's own timeout
                bounds.

        Raises:
            ValueError: ``timeout`` is negative or NaN.
            RuntimeError: a callback of an earlier call waits, which this one is queued behind.
            CollectiveTimeout: it has not finished within ``timeout``; the message says which ranks are late, if that is
                known. The call goes on: wait again, or destroy the communicator.
            CollectiveError: the call failed.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if seconds is not None and not seconds >= 0:
            raise ValueError(f"timeout is {seconds} s; it must be positive, or None or 0 for no limit of its own")
        if not self._done.is_set() and self._queue.inside:
            raise RuntimeError(
                f"a callback of an earlier call waits for {self.what}, which can only start when that callback has "
                "returned: chain callbacks with get_future().then(...) instead"
            )
        start = time.perf_counter()
        done = self._done.wait(seconds or None)
        self._queue.exposed += time.perf_counter() - start
        if not done:
            reason = self._queue.why(self)
            raise CollectiveTimeout(f"{self.what} has not finished within {seconds:g} s. {reason}")
        if self._error is not None:
            try:
                raise self._error
            finally:
                self = None  # type: ignore[assignment]  # as in carry_out
        return True

    def is_completed(self) -> bool:
        """Whether the call has finished, well or badly."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Whether the call has finished well."""
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """What :meth:`wait` would raise; None if the call went well or has not finished yet."""
        return self._error if self._done.is_set() else None

    def outcome(self) -> Any:
        """The result of a call that has been carried out, or its error."""
        try:
            if self._error is not None:
                raise self._error
            return self._value
        finally:
            self = None  # type: ignore[assignment]  # as in carry_out

    def result(self) -> Any:
        """What the call would have returned without ``async_op``, once it has finished."""
        try:
            self.wait()
            return self._value
        finally:
            self = None  # type: ignore[assignment]  # as in carry_out

    def synchronize(self) -> None:
        """The same as :meth:`wait`."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the result. An error arrives there as a RuntimeError with the text of what :meth:`wait` raises.

        Callbacks that were added before the call finished run on the communicator's thread, before its next call
        starts. A collective that they make is carried out at once, so that the order of calls is the same on all ranks.
        """
        with self._lock:
            if self._future is None:
                values = self._value if isinstance(self._value, (list, tuple)) else [self._value]
                devices = {v.device for v in values if isinstance(v, torch.Tensor) and v.is_cuda}
                self._promise = torch.futures.Future(devices=sorted(devices, key=str) or None)
                self._future = self._promise.then(self._outcome)
                if self._done.is_set():
                    self._promise.set_result(None)
            return self._future

    def _outcome(self, _: object) -> Any:
        # A callback that raises is how Python marks a future as failed so that C++ sees it, too.
        if self._error is not None:
            raise self._error
        return self._value

    def _source_rank(self) -> int:
        return self.source

    # What the queue does with it.

    def carry_out(self) -> None:
        """Make the call, in this thread, and wake who waits for it."""
        self.started = time.perf_counter()
        try:
            self._run()
        except BaseException as error:
            self._error = self._queue.judge(self, error)
        self._finish()
        del self  # which the error's traceback keeps, and which keeps the error

    def fail(self, error: BaseException) -> None:
        """End without making the call."""
        self._error = error
        self._finish()

    def _finish(self) -> None:
        self.ended = time.perf_counter()
        del self._run  # and with it what only the call needed
        self._done.set()

    def announce(self) -> None:
        """Run the callbacks of the future, if there is one, once the call has finished."""
        with self._lock:
            promise = self._promise
        if promise is not None and not promise.done():
            promise.set_result(None)


class Turns:
    """What the queues of a communicator have in common: a call may consist of others, which do not take a turn."""

    def __init__(self) -> None:
        self._here = threading.local()
        close_calls(self)

    @property
    def inside(self) -> bool:
        """Whether this thread is carrying out a call or its callbacks: calls made now belong to it."""
        return getattr(self._here, "inside", False)

    @contextlib.contextmanager
    def _carrying_out(self) -> Iterator[None]:
        self._here.inside = True
        try:
            yield
        finally:
            self._here.inside = False


class Queue(Turns):
    """Carries out a communicator's calls in the order in which they were made, on threads that come and go.

    A call with a *lane* (send to one rank, receive from one) is ordered among those of its lane only, so that a rank
    can send while it receives; one without waits for all calls before it, and all calls after it wait for it. A call
    that is waited for at once runs in its caller's thread, unless it has to wait for others.
    """

    work = Work

    def __init__(self, late: Callable[[], list[int]], stop: Callable[[], None], asynchronous: bool) -> None:
        """``late``: the ranks that have not begun this rank's current collective; the others as a fabric's."""
        super().__init__()
        self._late, self._stop, self._asynchronous = late, stop, asynchronous
        self._turn = threading.Condition()
        self._calls: list[Work] = []  # not finished
        self._threads: set[threading.Thread] = set()
        self._idle = 0  # of them wait for work
        self._closed, self._stopped = False, ""
        self.exposed = 0.0  # seconds for which callers were held up
        self.cut_short = False  # whether a collective was given up in the middle

    @property
    def empty(self) -> bool:
        """Whether nothing is pending."""
        return not self._calls

    def submit(self, work: Work) -> Work:
        """Have a call made as soon as it is its turn."""
        if self.inside or not self._asynchronous:
            work.carry_out()
            work.announce()
            return work
        with self._turn:
            self._calls.append(work)
            self._wake()
        return work

    def call(self, work: Work) -> Any:
        """Have a call made, and return its result."""
        start = time.perf_counter()
        if self.inside:  # the call that it is part of is counted
            work.carry_out()
        elif not self._asynchronous:
            work.carry_out()
            self.exposed += time.perf_counter() - start
        else:
            with self._turn:
                self._calls.append(work)
                mine = self._next() is work
                if mine:
                    work.started = time.perf_counter()
                else:
                    self._wake()
            if mine:
                self._carry_out(work)
                self.exposed += time.perf_counter() - start
                with self._turn:
                    self._wake()
        try:
            return work.result()
        finally:
            del work  # as in Work.carry_out

    def settle(self) -> None:
        """A call that was not asynchronous is over when it returns."""

    def why(self, work: Work) -> str:
        """What a call waits for, in words."""
        with self._turn:
            first = next((w for w in self._calls if w is work or ordered(w.lane, work.lane)), work)
        queued = f"It is queued behind {first.what}. " if first is not work else ""
        if first.lane is not None:
            return (
                f"{queued}{'No rank has' if first.lane[1] == ANY else f'Rank {first.lane[1]} has not'} done its part."
            )
        late = self._late()
        if late:
            return f"{queued}Ranks {late} have not begun {'that call' if queued else 'it'}: they are late or stuck."
        return f"{queued}All ranks have begun {'that call' if queued else 'it'}."

    def close(self, patience: float, reason: str) -> bool:
        """Give calls ``patience`` seconds to finish; what is left by then fails, with ``reason``.

        Returns whether none is left: one that has begun is told to stop, and may still be on its way out.
        """
        with self._turn:
            if not self._turn.wait_for(lambda: self.empty, patience):
                self._stopped = reason
                self._stop()
            unbegun = [work for work in self._calls if not work.started]
            self._calls = [work for work in self._calls if work.started]
        for work in unbegun:
            work.fail(CollectiveError(f"{work.what} was not made: {reason}"))
            work.announce()
        with self._turn:
            ended = self._turn.wait_for(lambda: self.empty, WAY_OUT)
            self._closed = True
            self._turn.notify_all()
            threads = self._threads - {threading.current_thread()}
        for thread in threads if ended else ():
            thread.join(WAY_OUT)
        return ended

    def judge(self, work: Work, error: BaseException) -> BaseException:
        """The error for a call that has failed with ``error``: another one if it has been told to stop."""
        if not self._stopped or not isinstance(error, CollectiveError):
            return error
        self.cut_short |= work.lane is None
        stopped = CollectiveError(f"{work.what} was given up: {self._stopped}")
        stopped.__cause__ = error
        return stopped

    # All that follows is called with the lock held, but for _serve and _carry_out.

    def _next(self) -> Work | None:
        # The first call that may start now.
        for i, work in enumerate(self._calls):
            if work.lane is None and i:
                return None
            if not work.started and not any(ordered(before.lane, work.lane) for before in self._calls[:i]):
                return work
            if work.lane is None:
                return None
        return None

    def _wake(self) -> None:
        if self._next() is None:
            return
        if self._idle:
            self._turn.notify_all()
        else:
            thread = threading.Thread(target=self._serve, daemon=True, name="tricoll calls")
            self._threads.add(thread)
            self._idle += 1
            thread.start()

    def _serve(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._closed or self._next() is not None, IDLE)
                self._idle -= 1
                work = self._next()
                if work is None:
                    self._threads.discard(threading.current_thread())
                    return
                work.started = time.perf_counter()
                self._wake()  # another one may start beside it
            self._carry_out(work)
            del work  # and what it keeps alive
            with self._turn:
                self._idle += 1

    def _carry_out(self, work: Work) -> None:
        try:
            with self._carrying_out():
                work.carry_out()
                if work.lane is None:
                    work.announce()
        finally:
            with self._turn:
                self._calls.remove(work)
                self._turn.notify_all()
        if work.lane is not None:
            work.announce()
        del work  # as in Work.carry_out


def ordered(a: Lane, b: Lane) -> bool:
    """Whether calls of two lanes keep the order in which they were made."""
    return a is None or b is None or (a[0] == b[0] and (a[1] == b[1] or ANY in (a[1], b[1])))
