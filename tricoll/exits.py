"""What is done when the program ends, in this order: calls that are under way end, then libraries are given up."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any

GRACE = 5.0  # seconds that calls under way have

_queues: weakref.WeakSet[Any] = weakref.WeakSet()
_libraries: list[Callable[[], None]] = []


def close_calls(queue: Any) -> None:
    """Close a queue of calls when the program ends, if it is still there."""
    _queues.add(queue)


def after_calls(fn: Callable[[], None]) -> None:
    """Call a function when the program ends, after all queues have been closed."""
    _libraries.append(fn)


def _forget() -> None:
    # A forked child has none of the threads, and the memory is its parent's.
    _queues.clear()
    _libraries.clear()


os.register_at_fork(after_in_child=_forget)


@atexit.register
def _end() -> None:
    with contextlib.ExitStack() as stack:
        for fn in _libraries:
            stack.callback(fn)
        # A thread that is in the middle of a kernel when the interpreter goes away would crash it.
        for queue in list(_queues):
            queue.close(GRACE, "the program has ended")
