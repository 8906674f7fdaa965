"""The processes that are asked: they may crash or hang, and are replaced then."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from ..pool import PATIENCE, end_with_parent
from .backends import Unavailable, connect
from .outcome import Outcome, refused

LIMIT_AFTER = 10.0  # seconds over the backend's own timeout before a probe counts as hanging


class Ranks:
    """Processes that have joined a group of the backend once, and do what comes through their pipes."""

    def __init__(self, backend: str, size: int, timeout: float, load: str = "") -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tricoll.pool", "tricoll.world"])
        self.size, self.folder = size, tempfile.TemporaryDirectory()
        self.store = dist.TCPStore("127.0.0.1", 0, None, True, PATIENCE, wait_for_workers=False)
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            arguments = (backend, rank, size, self.store.port, timeout, self._said(rank), load, theirs)
            self.processes.append(context.Process(target=_serve, args=arguments, daemon=True, name=f"rank {rank}"))
            self.processes[-1].start()
            theirs.close()
            self.pipes.append(ours)
        for rank, pipe in enumerate(self.pipes):
            try:
                complaint = pipe.recv_bytes().decode() if pipe.poll(PATIENCE.total_seconds()) else "not within a minute"
            except EOFError:
                complaint = "its process ended"
            if complaint:
                self.close()
                raise Unavailable(f"rank {rank} could not join a group of {size}: {complaint}")

    def ask(self, fn: Callable[..., Any], args: Sequence[Any], limit: float) -> list[Outcome]:
        """``fn(api, *args)`` on every rank. A rank that has no outcome after ``limit`` seconds hangs."""
        work = cloudpickle.dumps((fn, args))
        for pipe in self.pipes:
            with contextlib.suppress(OSError):  # it has ended, as reading will show
                pipe.send_bytes(work)
        deadline = time.monotonic() + limit
        return [self._outcome(rank, deadline, limit) for rank in range(self.size)]

    def _outcome(self, rank: int, deadline: float, limit: float) -> Outcome:
        pipe = self.pipes[rank]
        try:
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                return Outcome("hang", text=f"had not returned after {limit:g} s", seconds=limit)
            outcome: Outcome = cloudpickle.loads(pipe.recv_bytes())
            return outcome
        except (EOFError, OSError):
            self.processes[rank].join(1.0)
            code = self.processes[rank].exitcode
            how = f"was killed by signal {-code}" if code is not None and code < 0 else f"exited with code {code}"
            lines = [line.strip() for line in Path(self._said(rank)).read_text(errors="replace").splitlines()]
            why = next((line for line in lines if "what()" in line), "")
            return Outcome("crash", text=how + (f": {why[:200]}" if why else ""))

    def _said(self, rank: int) -> str:
        return str(Path(self.folder.name) / str(rank))  # standard error: a backend that aborts says there why

    def close(self) -> None:
        """Kill the processes: whatever state they are in, nobody wants it any more."""
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()
        self.folder.cleanup()


def _serve(
    backend: str, rank: int, size: int, port: int, timeout: float, said: str, load: str, pipe: Connection
) -> None:
    """What a rank's process does."""
    end_with_parent()
    torch.set_num_threads(1)
    fd = os.open(said, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(fd, 2)
    try:
        if load:
            importlib.import_module(load)
        store = dist.PrefixStore("verify", dist.TCPStore("127.0.0.1", port, None, False, PATIENCE))
        api = connect(backend, store, rank, size, timeout)
        pipe.send_bytes(b"")
    except Exception as error:
        pipe.send_bytes(_text(error).encode())
        return
    while True:
        try:
            fn, args = cloudpickle.loads(pipe.recv_bytes())
        except EOFError:  # the parent is gone
            return
        start = time.perf_counter()
        try:
            outcome = Outcome("value", fn(api, *args), seconds=time.perf_counter() - start)
        except Exception as error:
            outcome = Outcome("error", text=_text(error), seconds=time.perf_counter() - start)
        pipe.send_bytes(cloudpickle.dumps(outcome))


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


@dataclass
class Session:
    """A backend that is asked.

    Attributes:
        backend: "tricoll" or a name that ``torch.distributed`` knows.
        ranks: how many, unless a probe needs another number.
        timeout: seconds, the backend's own.
        examples: that a property is tried with.
        load: a module that the ranks import first, such as one that registers the backend.
    """

    backend: str
    ranks: int = 4
    timeout: float = 10.0
    examples: int = 25
    load: str = ""
    _ranks: Ranks | None = field(default=None, repr=False)

    def ask(self, fn: Callable[..., Any], *args: Any, ranks: int | None = None) -> list[Outcome]:
        """``fn(api, *args)`` on every rank, with what it returned or how it ended.

        The ranks are those of the last call if they are as many and all well, else new processes.
        """
        n = ranks or self.ranks
        if self._ranks is None or self._ranks.size != n:
            self.close()
            self._ranks = Ranks(self.backend, n, self.timeout, self.load)
        outcomes = self._ranks.ask(fn, args, self.timeout + LIMIT_AFTER)
        # An argument that all ranks refuse at once does no harm; after anything else the group may be out of step.
        if any(outcome.kind != "value" for outcome in outcomes) and not refused(outcomes):
            self.close()
        return outcomes

    def close(self) -> None:
        """End the processes."""
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None
