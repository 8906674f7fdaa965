"""Binaries of kernels for the tests of this folder: compiled side by side, and kept for the next session."""

import os
import signal
import subprocess
import sys
from concurrent.futures import wait
from pathlib import Path

import pytest

from tricoll import compile

HERE = Path(__file__).parent
AHEAD = pytest.StashKey[subprocess.Popen]()


def pytest_collection_modifyitems(items):
    """These tests come after all others; in the end, those that want all to be compiled."""
    late = lambda item: (HERE in item.path.parents) + ("alone" in getattr(item, "fixturenames", ()))
    items.sort(key=late)


def pytest_collection_finish(session):
    """Let one process compile while tests elsewhere wait for each other. It yields to them: it is nice."""
    here = [item for item in session.items if HERE in item.path.parents and "builds" in item.fixturenames]
    first = not hasattr(session.config, "workerinput")  # of pytest -n
    if first and here and len(here) < len(session.items) and not session.config.option.collectonly:
        import binaries

        env = os.environ | {"TRITON_CACHE_DIR": binaries.cache_for(binaries.KERNEL_SOURCES)}
        command = ["nice", "-n", "19", sys.executable, binaries.__file__]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        session.config.stash[AHEAD] = subprocess.Popen(command, env=env, start_new_session=True, **quiet)
        session.config.add_cleanup(lambda: stop_ahead(session.config))


def stop_ahead(config):
    """End that process and its compiler, whose place is taken by all cores; what it compiled stays in the cache."""
    if (process := config.stash.get(AHEAD, None)) and process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module", autouse=True)
def cache():
    """What was compiled is there in the next session, if the kernels are still the same."""
    import binaries  # which skips the module that asks, where it cannot be compiled

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", binaries.cache_for(binaries.KERNEL_SOURCES))
        yield


@pytest.fixture(scope="package")  # which are some gigabytes
def builds(request):
    """The binaries that tests ask for: compiled side by side, while tests look at the first."""
    import binaries

    stop_ahead(request.config)
    calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    wanted = {call.params["compiled"]: None for call in calls if "compiled" in call.params}
    with compile.processes(os.cpu_count()) as pool:
        with pytest.MonkeyPatch.context() as patch:  # which the processes start with
            patch.setenv("TRITON_CACHE_DIR", binaries.cache_for(binaries.KERNEL_SOURCES))
            futures = {variant: pool.submit(compile.build, variant) for variant in wanted}
        yield futures
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def alone(builds):
    """Nothing is being compiled while this test changes how that is done."""
    wait(builds.values())


@pytest.fixture
def compiled(request, builds):
    """The binary of a variant."""
    return builds[request.param].result()
