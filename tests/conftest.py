"""What the tests share: pools of ranks, hypothesis profiles, skips with reasons, a look at /dev/shm, and a tally."""

import collections
import functools
import os
import tempfile
import time
from pathlib import Path

import hypothesis
import pytest
import torch

import tricoll
from tricoll.pool import Pool

# ci draws the same examples in every run. For a long search with new ones:
#   HYPOTHESIS_PROFILE=thorough pytest --timeout 0 tests/kernels
common = {"deadline": None, "print_blob": True, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("ci", max_examples=100, derandomize=True, database=None, **common)
hypothesis.settings.register_profile("quick", max_examples=25, derandomize=True, database=None, **common)
hypothesis.settings.register_profile("thorough", max_examples=2000, **common)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Whatever has been measured on this machine: the same choices in every run.
os.environ.setdefault("TRICOLL_PROFILE", "host")

OTHERS = ("sem.mp-", "vader_segment")
TALLY = collections.Counter()

# Tests of one process that measure no time: `make test` runs these two at a time, and the others, which start ranks or
# compilers of their own, one at a time.
ONE_CORE = ("cases", "kernels", "oracle", "testing", "fabric/test_sim.py", "test_cost.py", "test_schedule.py")
ONE_CORE = tuple(Path(__file__).parent / name for name in ONE_CORE)


def pytest_addoption(parser):
    parser.addoption("--seen", metavar="FILE", help="write what was tested on which fabric (make status)")


def pytest_configure(config):
    if path := config.getoption("--seen"):
        from seen import Recorder

        folder = tempfile.TemporaryDirectory()
        config.add_cleanup(folder.cleanup)
        config.pluginmanager.register(Recorder(path, folder.name), "seen")


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):  # a process of pytest -n
        session.config.workeroutput["tally"] = dict(TALLY)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    TALLY.update(getattr(node, "workeroutput", {}).get("tally", {}))


def pytest_collection_modifyitems(items):
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for item in items:
        if any(item.path.is_relative_to(path) for path in ONE_CORE) and "builds" not in item.fixturenames:
            item.add_marker(pytest.mark.one_core)
        if item.get_closest_marker("multigpu") and gpus < 2:
            item.add_marker(pytest.mark.skip(reason=f"needs two CUDA GPUs; this machine has {gpus}"))
        elif item.get_closest_marker("gpu") and not gpus:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU: torch.cuda.is_available() is False"))


def pytest_terminal_summary(terminalreporter):
    if TALLY:
        terminalreporter.section("simulator")
        terminalreporter.write_line(", ".join(f"{what}: {count:,}" for what, count in sorted(TALLY.items())))


@pytest.fixture(scope="session", autouse=True)
def no_new_name_in_shm():
    """Fails the session if it leaves something in /dev/shm."""
    folder = Path("/dev/shm")
    # Without those of Python's multiprocessing and of Open MPI, which come and go with other programs.
    names = lambda: {p.name for p in folder.glob("*") if not p.name.startswith(OTHERS)}
    before = names()
    yield
    deadline = time.monotonic() + 5
    while (left := names() - before) and time.monotonic() < deadline:  # another program may come and go
        time.sleep(0.1)
    assert not left, f"the tests left {sorted(left)} in {folder}"


@pytest.fixture(scope="session")
def pool(no_new_name_in_shm):
    """``pool(n)`` is a pool of n ranks, shared by all tests; a new one if a test has killed one of its ranks."""
    pools: dict[int, Pool] = {}

    def get(nprocs: int) -> Pool:
        if nprocs in pools and not pools[nprocs].alive:
            pools.pop(nprocs).close()
        if nprocs not in pools:
            pools[nprocs] = Pool(nprocs)
        return pools[nprocs]

    yield get
    for each in pools.values():
        each.close()


@pytest.fixture(scope="session")
def tally():
    """A Counter of what was simulated; shown at the end."""
    return TALLY


@pytest.fixture(scope="session")
def simulate():
    """:func:`tricoll.simulate`, counted."""

    @functools.wraps(tricoll.simulate)
    def counted(*args, **kwargs):
        TALLY["schedules"] += 1
        return tricoll.simulate(*args, **kwargs)

    return counted
