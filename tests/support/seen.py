"""What the tests have made communicators do: which collective, by which algorithm, with which types, on which fabric.

``pytest --seen FILE`` writes it as JSON; ``make status`` makes docs/status.md of that. A call counts when it has ended
without an error, and only in test files without a failure. Ranks that are other processes tell the tests' process:
those of a pool with their results, PEs of an OpenSHMEM program in files in a folder that the environment names.
"""

import atexit
import collections
import functools
import json
import os
import pickle
from pathlib import Path
from typing import NamedTuple

import pytest

from tricoll.compile import Variant
from tricoll.executor import Executor
from tricoll.pool import Pool

FOLDER = "TRICOLL_TEST_SEEN"
STAND_IN = " on stand-ins"
CALLS = set()  # of this process, since the last take()
_perform, _outcomes = Executor.perform, Pool.outcomes


class Told(NamedTuple):
    """A rank's result, and its calls."""

    result: object
    calls: set


def name(dtype):
    return str(dtype).removeprefix("torch.")


def gpu_or_not(fabric):
    """Fabrics of GPUs also run without one, on stand-ins, for the sake of their host code."""
    return STAND_IN if fabric.name in ("loopback", "nvshmem") and fabric.device.type != "cuda" else ""


@functools.wraps(_perform)
def _seen(self, request, *args, **kwargs):
    _perform(self, request, *args, **kwargs)
    call = request.call
    if self.fabric.world_size > 1:
        link = "mapped" if self.settings.mapped else "put"
        types = (name(call.dtype), name(call.wire), name(call.out))
        CALLS.add((self.fabric.name + gpu_or_not(self.fabric), link, call.collective, call.plan.algorithm, *types))


def on_rank(fn, comm, *args):
    """On a rank of a pool: run ``fn``, and tell what it did."""
    Executor.perform = _seen
    take()
    return Told(fn(comm, *args), take())


@functools.wraps(_outcomes)
def _told(self, fn, *args, **kwargs):
    results = _outcomes(self, functools.partial(on_rank, fn), *args, **kwargs)
    CALLS.update(*(r.calls for r in results if isinstance(r, Told)))
    return [r.result if isinstance(r, Told) else r for r in results]


def take():
    """The calls since the last time."""
    calls = set(CALLS)
    CALLS.clear()
    return calls


def watch_pe():
    """In a PE, where the tests want to know: leave what it did in a file."""
    if folder := os.environ.get(FOLDER):
        Executor.perform = _seen
        atexit.register(lambda: Path(folder, str(os.getpid())).write_bytes(pickle.dumps(CALLS)))


class Recorder:
    """The plugin. What it has seen is kept by test file: calls, compiled kernels, outcomes, why tests were skipped."""

    def __init__(self, path, folder):
        self.path, self.folder = Path(path), Path(folder)
        self.calls, self.compiled = collections.defaultdict(set), collections.defaultdict(set)
        self.outcomes = collections.defaultdict(collections.Counter)
        self.skipped = collections.defaultdict(collections.Counter)
        Executor.perform, Pool.outcomes = _seen, _told
        os.environ[FOLDER] = str(folder)

    def pytest_runtest_call(self, item):
        self.compiled[file_of(item)] |= compiled_for(item)

    def pytest_runtest_teardown(self, item):
        self.calls[file_of(item)] |= take()
        for path in self.folder.iterdir():
            self.calls[file_of(item)] |= pickle.loads(path.read_bytes())
            path.unlink()

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[file_of(report)][report.outcome] += 1
        if report.skipped and isinstance(report.longrepr, tuple):
            self.skipped[file_of(report)][report.longrepr[2].removeprefix("Skipped: ")] += 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """With ``pytest -n``, tests run in other processes: these tell what was called, and pytest how tests ended."""
        for kind, seen in getattr(node, "workeroutput", {}).get("seen", {}).items():
            for file, what in seen.items():
                getattr(self, kind)[file] |= what

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["seen"] = {"calls": dict(self.calls), "compiled": dict(self.compiled)}
            return
        record = {
            file: {
                "calls": sorted(self.calls[file]),
                "compiled": sorted(self.compiled[file]),
                "outcomes": self.outcomes[file],
                "skipped": self.skipped[file],
            }
            for file in sorted(self.outcomes)
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(record, indent=1))


def compiled_for(item):
    """The machine code that a test looks at: parameters that are a :class:`tricoll.compile.Variant`."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return {(v.kernel, v.link, v.arch, v.dtypes) for v in params.values() if isinstance(v, Variant)}


def file_of(test):
    return test.nodeid.partition("::")[0]
