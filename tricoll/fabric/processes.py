"""Which of the other ranks' processes on this machine have ended."""

from __future__ import annotations

import os
import select
import threading


class Processes:
    """Looks at processes of this machine."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._rank_of: dict[int, int] = {}  # of a process's file descriptor
        self._gone: set[int] = set()
        self._lock = threading.Lock()

    def watch(self, rank: int, pid: int) -> None:
        """Look at a rank's process, too. OSError if there is none."""
        if hasattr(os, "pidfd_open"):
            fd = os.pidfd_open(pid)
            self._poll.register(fd, select.POLLIN)
            self._rank_of[fd] = rank

    def gone(self) -> set[int]:
        """The ranks whose processes have ended."""
        with self._lock:
            for fd, _ in self._poll.poll(0):
                self._poll.unregister(fd)
                os.close(fd)
                self._gone.add(self._rank_of.pop(fd))
            return set(self._gone)

    def close(self) -> None:
        """Look no more."""
        with self._lock:
            for fd in self._rank_of:
                self._poll.unregister(fd)
                os.close(fd)
            self._rank_of.clear()
