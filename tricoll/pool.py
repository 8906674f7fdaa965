"""Local ranks from a script, a notebook or a test: processes of this machine that run a function each."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from .errors import CollectiveError, PeerFailure

PATIENCE = timedelta(seconds=60)  # of the store
STOP_AFTER = 5.0  # seconds in which ranks may end by themselves, once one of them has failed


class RankError(RuntimeError):
    """A rank raised an exception that could not be sent as it is. Holds its traceback as text."""


class Pool:
    """Ranks that stay alive and run one function after another, each in a world of its own.

    >>> with Pool(2) as pool:
    ...     pool.run(lambda comm: comm.rank)
    [0, 1]
    """

    def __init__(self, nprocs: int) -> None:
        if nprocs < 1:
            raise ValueError(f"nprocs is {nprocs}; it must be at least 1")
        self.nprocs = nprocs
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tricoll.pool", "tricoll.world"])
        # The parent keeps the store, so that no rank's death takes it away from the others.
        self._store = dist.TCPStore("127.0.0.1", 0, None, True, PATIENCE, wait_for_workers=False)
        self._rounds = 0
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(nprocs):
            ours, theirs = context.Pipe()
            arguments = (rank, nprocs, self._store.port, theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True, name=f"tricoll rank {rank}")
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        """The process id of each rank."""
        return [p.pid or 0 for p in self._processes]

    @property
    def alive(self) -> bool:
        """Whether all ranks can run something."""
        return bool(self._processes) and all(p.is_alive() for p in self._processes)

    def run(self, fn: Callable[..., Any], *args: Any, limit: float | None = None, **options: Any) -> list[Any]:
        """``fn(comm, *args)`` on every rank; the results in rank order. ``options`` go to :func:`tricoll.init`.

        Raises what a rank raised: the first exception that is not the consequence of another rank's. A rank that has
        not finished after ``limit`` seconds is killed.
        """
        outcomes = self.outcomes(fn, *args, limit=limit, **options)
        errors = [(r, e) for r, e in enumerate(outcomes) if isinstance(e, BaseException)]
        if errors:
            rank, error = min(errors, key=lambda e: isinstance(e[1], CollectiveError))
            if hasattr(error, "add_note"):
                error.add_note(f"on rank {rank} of {self.nprocs}")
            raise error
        return outcomes

    def outcomes(self, fn: Callable[..., Any], *args: Any, limit: float | None = None, **options: Any) -> list[Any]:
        """Like :meth:`run`, but an exception takes the place of its rank's result."""
        self._clear_store()
        self._rounds += 1
        work = cloudpickle.dumps((fn, args, options, self._rounds))
        results: dict[int, Any] = {}
        deadline = None if limit is None else time.monotonic() + limit
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send_bytes(work)
            except OSError:
                results[rank] = PeerFailure(f"rank {rank} has {self._end(rank)}")
        while len(results) < self.nprocs:
            waiting: dict[Any, int] = {self._pipes[r]: r for r in range(self.nprocs) if r not in results}
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready: list[Any] = wait(list(waiting), left)
            for pipe in ready:
                rank = waiting[pipe]
                try:
                    results[rank] = cloudpickle.loads(pipe.recv_bytes())
                except (EOFError, OSError):
                    results[rank] = PeerFailure(f"rank {rank} has {self._end(rank)}")
            if not ready:
                for rank in waiting.values():
                    self._processes[rank].kill()
                    results[rank] = RankError(f"rank {rank} was killed: it had not finished after {limit:g} s")
        return [results[r] for r in range(self.nprocs)]

    def _clear_store(self) -> None:
        # torch.distributed finds its peers by fixed keys, and would find those of the last run.
        if hasattr(self._store, "list_keys"):  # PyTorch before 2.10 has no such call: one init_process_group a pool
            for key in self._store.list_keys():
                self._store.delete_key(key)

    def _end(self, rank: int) -> str:
        self._processes[rank].join(STOP_AFTER)
        code = self._processes[rank].exitcode
        if code is not None and code < 0:
            return f"been killed by signal {-code}"
        hint = 'what it printed says why. A script that starts ranks does so under: if __name__ == "__main__"'
        return f"exited with code {code}: {hint}"

    def close(self) -> None:
        """End all ranks."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send_bytes(b"")
        deadline = time.monotonic() + STOP_AFTER
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self._pipes:
            pipe.close()
        self._pipes, self._processes = [], []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def launch(
    fn: Callable[..., Any], nprocs: int, *args: Any, fabric: str = "host", timeout: float = 30.0, **options: Any
) -> list[Any]:
    """Start ``nprocs`` local ranks and run ``fn(comm, *args)`` on each.

    Works from a script (under ``if __name__ == "__main__":``, because ranks import it) and from a notebook; ``fn`` may
    be a lambda or a closure. Each rank has RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, so that
    ``torch.distributed.init_process_group`` works in ``fn``, and computes with one thread.

    Args:
        fn: what each rank runs, with its communicator as the first argument.
        nprocs: the number of ranks. More than there are cores works.
        *args: what ``fn`` is given besides.
        fabric: as in :func:`tricoll.init`.
        timeout: seconds that a rank waits for others, as in :func:`tricoll.init`.
        **options: those of :func:`tricoll.init`.

    Returns:
        What ``fn`` returned on each rank, in rank order.

    Raises:
        Exception: what a rank raised.
        RankError: a rank raised what cannot be pickled.
        PeerFailure: a rank's process was killed.
    """
    with Pool(nprocs) as pool:
        return pool.run(fn, *args, fabric=fabric, timeout=timeout, **options)


def _serve(rank: int, nprocs: int, port: int, pipe: Connection) -> None:
    """What a rank's process does: run what comes through the pipe until it is told to stop."""
    end_with_parent()
    multiprocessing.current_process().daemon = False  # daemons may have no children, such as a DataLoader's workers
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(nprocs),
        LOCAL_WORLD_SIZE=str(nprocs),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",  # the store is the parent's; no rank may open one on its port
    )
    store = dist.TCPStore("127.0.0.1", port, None, False, PATIENCE)
    while True:
        try:
            work = pipe.recv_bytes()
        except EOFError:  # the parent is gone
            return
        if not work:
            return
        pipe.send_bytes(_dumps(_attempt(work, store, rank, nprocs)))


def end_with_parent() -> None:
    """From now on, this process ends when the one that started it has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)  # whatever this rank is waiting for, nobody wants it any more

    threading.Thread(target=watch, daemon=True).start()


def _attempt(work: bytes, store: dist.Store, rank: int, nprocs: int) -> Any:
    from .world import connect

    try:
        fn, args, options, attempt = cloudpickle.loads(work)
        with connect(dist.PrefixStore(f"launch/{attempt}", store), rank, nprocs, **options) as communicator:
            return fn(communicator, *args)
    except BaseException as error:
        error.__cause__, error.__context__ = None, None
        if hasattr(error, "add_note"):
            error.add_note("".join(traceback.format_exception(error)).rstrip())
        return error.with_traceback(None)
    finally:
        _leave_torch_distributed()


def _leave_torch_distributed() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    # An init_process_group that failed has used up a name all the same, and DTensor remembers the names of groups by
    # their ranks alone: in the next world, which has the same ranks, it would look for a group of this one.
    dist.distributed_c10d._world.group_count = 0


def _dumps(outcome: Any) -> bytes:
    try:
        return cloudpickle.dumps(outcome)
    except Exception as error:
        return cloudpickle.dumps(RankError(f"the outcome cannot be sent ({error}): {outcome!r}"))
