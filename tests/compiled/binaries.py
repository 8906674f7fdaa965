"""Which binaries the tests look at. None of them runs here."""

import hashlib
import importlib
from pathlib import Path

import pytest
import torch
import triton

from tricoll import bitcode, compile
from tricoll.compile import catalogue

pytest.importorskip("llvmlite", reason="llvmlite is not installed: pip install 'tricoll[cu13]'")
try:
    bitcode.find(80)
except FileNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)

TRIPLE = torch.bfloat16, torch.bfloat16, torch.bfloat16
FP16_ON_FP32 = torch.float16, torch.float32, torch.float16
MAIN = catalogue()
OTHER_DTYPES = [
    *catalogue((90,), ("mapped",), dtypes=(TRIPLE,)),
    *catalogue((90,), ("mapped",), ("ring.all_reduce",), dtypes=(TRIPLE, FP16_ON_FP32), ops=("sum",)),
]
COUNTING = [
    *catalogue(links=("mapped",), tally=True),
    *catalogue((90,), ("put",), ("ring.all_reduce",), tally=True),
]


def variants(*chosen):
    """Run a test with the binary of each of these variants, as ``compiled``."""
    return pytest.mark.parametrize("compiled", chosen, ids=str, indirect=True)


CACHE = Path(triton.knobs.cache.dir) / "tricoll"


def cache_for(sources):
    """A folder of Triton's cache for one state of the kernels: Triton's own keys do not see into primitives."""
    text = b"".join(path.read_bytes() for path in sorted(sources.glob("*.py")))
    return str(CACHE / hashlib.sha256(text).hexdigest()[:16])


KERNEL_SOURCES = Path(importlib.import_module("tricoll.kernels").__file__).parent

if __name__ == "__main__":  # ahead of the tests: what they look at is in the cache then
    for variant in dict.fromkeys([*MAIN, *OTHER_DTYPES, *COUNTING]):
        compile.build(variant)
