"""Ask a collectives backend what it does: ``tricoll verify --backend gloo``.

Each probe (:mod:`tricoll.probes`) runs in processes of its own, with a time limit, so that a crash or a hang of what is
tested is a result. Any backend of ``torch.distributed`` can be asked.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch
import torch.distributed as dist
from rich.table import Table
from rich.text import Text
from torch import Tensor

from . import world
from .pool import PATIENCE, _end_with_parent

if TYPE_CHECKING:
    from .probes import Probe

GOOD = ("right", "yes", "refused", "no")  # the rest is a defect: wrong, garbage, crash, hang
AT_ONCE = 1.0  # seconds
LIMIT_AFTER = 10.0  # seconds over the backend's own timeout before a probe counts as hanging


class Unavailable(Exception):
    """The backend cannot be asked here; the text says why."""


@dataclass(frozen=True)
class Verdict:
    """What came of a probe.

    Attributes:
        mark: "right" or "wrong"; "yes" or "no" to a property that not every library promises; "refused": an error on
            every rank, before anything was written; "garbage": values where there should have been an error; "crash":
            a process ended; "hang": it had not returned when the time was up.
        text: what was seen.
        example: the smallest call that shows it, for what is not right.
    """

    mark: str
    text: str = ""
    example: str = ""


@dataclass(frozen=True)
class Outcome:
    """What one rank did: ``kind`` is "value", "error", "crash" or "hang"; ``text`` is the error's."""

    kind: str
    value: Any = None
    text: str = ""
    seconds: float = 0.0


# What probes call.


class Api:
    """The collectives of a backend, on one rank. Tensors lie on ``device``; without ``out``, they work in place."""

    rank: int
    size: int
    device: torch.device

    def all_reduce(self, x: Tensor, op: str = "sum", reproducible: bool = False) -> None:
        """``reproducible``: with whatever the backend offers to make bits independent of the size."""
        raise NotImplementedError

    def reduce_scatter(self, out: Tensor, x: Tensor, op: str = "sum") -> None:
        raise NotImplementedError

    def all_gather(self, out: Tensor, x: Tensor) -> None:
        raise NotImplementedError

    def broadcast(self, x: Tensor, root: int = 0) -> None:
        raise NotImplementedError


class Distributed(Api):
    """A backend of ``torch.distributed``."""

    def __init__(self, name: str, store: dist.Store, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size, self.device = rank, size, torch.device("cpu")
        if name == "nccl":
            self.device = torch.device("cuda", rank)
            torch.cuda.set_device(self.device)
        within = timedelta(seconds=timeout)
        dist.init_process_group(name, timeout=within, world_size=size, rank=rank, store=store)

    def all_reduce(self, x: Tensor, op: str = "sum", reproducible: bool = False) -> None:
        dist.all_reduce(x, _op(op))
        self._finish()

    def reduce_scatter(self, out: Tensor, x: Tensor, op: str = "sum") -> None:
        new = getattr(dist, "reduce_scatter_single", None)  # its name since PyTorch 2.13
        (new or dist.reduce_scatter_tensor)(out, x, _op(op))
        self._finish()

    def all_gather(self, out: Tensor, x: Tensor) -> None:
        new = getattr(dist, "all_gather_single", None)
        (new or dist.all_gather_into_tensor)(out, x)
        self._finish()

    def broadcast(self, x: Tensor, root: int = 0) -> None:
        dist.broadcast(x, root)
        self._finish()

    def _finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


class Tricoll(Api):
    """A tricoll communicator, without ``torch.distributed``."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size, self.device = rank, size, torch.device("cpu")
        self.comm = world.connect(store, rank, size, timeout=timeout)

    def all_reduce(self, x: Tensor, op: str = "sum", reproducible: bool = False) -> None:
        self.comm.all_reduce(x, op, algo="two_shot" if reproducible else "auto")

    def reduce_scatter(self, out: Tensor, x: Tensor, op: str = "sum") -> None:
        self.comm.reduce_scatter(x, op, out=out)

    def all_gather(self, out: Tensor, x: Tensor) -> None:
        self.comm.all_gather(x, out=out)

    def broadcast(self, x: Tensor, root: int = 0) -> None:
        self.comm.broadcast(x, root)


def _op(op: str) -> Any:
    return getattr(dist.ReduceOp, {"prod": "PRODUCT"}.get(op, op.upper()))


def connect(backend: str, store: dist.Store, rank: int, size: int, timeout: float) -> Api:
    """The backend, on this rank. tricoll is asked as a communicator, not as a backend of PyTorch."""
    return (
        Tricoll(store, rank, size, timeout)
        if backend == "tricoll"
        else Distributed(backend, store, rank, size, timeout)
    )


def check_available(backend: str, ranks: int) -> None:
    """Raise Unavailable, with the reason, if this backend cannot be asked on this machine."""
    known = dict.fromkeys(["tricoll", *dist.Backend.backend_list])  # where tricoll is already, once it is imported
    if backend not in known or backend == "undefined":
        raise Unavailable(
            f"there is no backend {backend!r}; there are {', '.join(b for b in known if b != 'undefined')}"
        )
    if backend == "nccl" and (not dist.is_nccl_available() or torch.cuda.device_count() < ranks):
        raise Unavailable(
            f"NCCL needs a CUDA build of PyTorch and a GPU a rank: {torch.cuda.device_count()} GPUs, {ranks} ranks"
        )
    if backend == "mpi":
        raise Unavailable(
            "verify starts and ends its ranks itself, and an MPI's are started and ended by mpirun. Its results are "
            "checked, and its times measured, by: mpirun -np 4 python -m tricoll.bench.all_reduce --backends mpi"
        )
    if backend == "ucc" and not dist.is_ucc_available():
        raise Unavailable("this build of PyTorch has no UCC")


# How they are run.


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
    threading.Thread(target=_end_with_parent, daemon=True).start()
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


def run(
    session: Session, only: str = "", tell: Callable[[str], None] = lambda name: None
) -> list[tuple[Probe, Verdict]]:
    """All probes whose name contains ``only``, one after another, each in new processes; ``tell`` is told which."""
    found = []
    for probe in chosen(only):
        tell(probe.name)
        try:
            found.append((probe, probe.run(session)))
        finally:
            session.close()
    return found


def chosen(only: str) -> list[Probe]:
    """The probes whose name contains this."""
    from .probes import PROBES

    return [probe for probe in PROBES if only.lower() in probe.name.lower()]


# What is shown.

STYLES = {"right": "green", "yes": "green", "refused": "yellow", "no": "yellow"}


def table(found: Sequence[tuple[Probe, Verdict]]) -> Table:
    """A row a probe: what was found and, where that is not right, the smallest call that shows it."""
    shown = Table(box=None, padding=(0, 2, 0, 0))
    shown.add_column("", no_wrap=True)
    shown.add_column("found", no_wrap=True)
    shown.add_column("what was seen; the smallest example")
    for probe, verdict in found:
        style = STYLES.get(verdict.mark, "bold red")
        text = Text(verdict.text)
        if verdict.example and verdict.mark not in ("right", "yes"):
            text.append(f"\n{verdict.example}", "dim")
        shown.add_row(probe.name, Text(verdict.mark, style), text)
    return shown


LEGEND = (
    "right, wrong: as it must be, or not. yes, no: a property that not every library promises. refused: an error on "
    "every rank. garbage: ranks that disagree got values instead of an error. crash, hang: of the process."
)


def markdown(found: Sequence[tuple[Probe, Verdict]]) -> str:
    """The same as a table of Markdown."""
    clean = lambda text: text.replace("|", "\\|").replace("\n", " ")
    rows = ["| | found | what was seen | smallest example |", "|---|---|---|---|"]
    for probe, v in found:
        example = clean(v.example) if v.mark not in ("right", "yes") else ""
        rows.append(f"| {probe.name} | {v.mark} | {clean(v.text)} | {example} |")
    return "\n".join(rows) + "\n"


def as_json(session: Session, found: Sequence[tuple[Probe, Verdict]]) -> str:
    """The same for programs."""
    rows = [{"probe": probe.name, "question": probe.question, **asdict(verdict)} for probe, verdict in found]
    about = {"backend": session.backend, "ranks": session.ranks, "timeout": session.timeout, "torch": torch.__version__}
    return json.dumps({**about, "rows": rows}, indent=1) + "\n"


def defects(found: Sequence[tuple[Probe, Verdict]]) -> int:
    """How many probes found what no library should do."""
    return sum(verdict.mark not in GOOD for _, verdict in found)


def same(outcomes: Sequence[Outcome]) -> str:
    """The kind that all ranks' outcomes have; the worst, if they differ: "hang", "crash", "mixed" (values, errors)."""
    kinds = {outcome.kind for outcome in outcomes}
    for kind in ("hang", "crash"):
        if kind in kinds:
            return kind
    return kinds.pop() if len(kinds) == 1 else "mixed"


def refused(outcomes: Sequence[Outcome]) -> bool:
    """Whether all ranks raised an error at once: a backend that does not take such an argument, no failed call."""
    return all(outcome.kind == "error" and outcome.seconds < AT_ONCE for outcome in outcomes)


def first(outcomes: Sequence[Outcome], kind: str) -> str:
    """What the first rank with such an outcome said, and which it was."""
    rank, outcome = next((rank, outcome) for rank, outcome in enumerate(outcomes) if outcome.kind == kind)
    return outcome.text if kind == "error" else f"rank {rank} {outcome.text}"
