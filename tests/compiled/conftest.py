"""Binaries of kernels for the tests of this folder: compiled side by side, and kept for the next session."""

import os
from concurrent.futures import wait
from pathlib import Path

import pytest

from tricoll import compile

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Tests that want all to be compiled come last: others look at the first binaries in the meantime."""
    places = [place for place, item in enumerate(items) if HERE in item.path.parents]
    ordered = sorted((items[place] for place in places), key=lambda item: "alone" in getattr(item, "fixturenames", ()))
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


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
