"""Every kernel compiles with the Triton that is installed, for both kinds of link: in the run with the oldest, too.

The whole gate is in tests/compiled/test_gates.py, which runs with the newest only.
"""

import hashlib
import importlib
import os
from pathlib import Path

import pytest
import triton

from tricoll import bitcode, compile, gates

VARIANTS = [*compile.catalogue((90,), ("mapped", "put")), *compile.catalogue((80,), ("mapped",))]

pytest.importorskip("llvmlite", reason="llvmlite is not installed: pip install 'tricoll[cu13]'")
try:
    bitcode.find(90)
except FileNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)

pytestmark = pytest.mark.timeout(600)  # the first test waits for compilers that run side by side


@pytest.fixture(scope="module")
def builds(request):
    """The binaries that the tests ask for, in the part of Triton's cache that the tests of tests/compiled use."""
    calls = [item.callspec for item in request.session.items if item.path == request.path]
    sources = sorted(Path(importlib.import_module("tricoll.kernels").__file__).parent.glob("*.py"))
    text = b"".join(path.read_bytes() for path in sources)
    cache = Path(triton.knobs.cache.dir) / "tricoll" / hashlib.sha256(text).hexdigest()[:16]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(cache))
        with compile.processes(os.cpu_count()) as pool:
            yield {call.params["variant"]: pool.submit(compile.build, call.params["variant"]) for call in calls}
            pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_compiles_and_passes_every_gate(variant, builds):
    assert gates.problems(builds[variant].result()) == []
