"""Runs PyTorch's own tests of torch.distributed, those that ship inside it, on ranks of a pool.

They are written to start processes of their own, one set a test; here ranks that are there already run the body of a
test between ``init_process_group`` and ``destroy_process_group``. The tests ask for the name of the backend to know
what it can do: they are told "gloo", whichever is tested, so that all that Gloo must do is tested.
"""

import contextlib
import importlib
import os
import time
import unittest
from datetime import timedelta
from unittest import mock

import torch.distributed as dist

MODULE = "torch.testing._internal.distributed.distributed_test"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


def load(world_size, folder):
    """The class of tests. PyTorch decides when it defines them which of them make sense."""
    here = {"BACKEND": "gloo", "WORLD_SIZE": str(world_size), "TEMP_DIR": str(folder), "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(here)
    module = importlib.import_module(MODULE)

    class Case(module.DistributedTest._DistTestBase, module.TestDistBackend):
        @property
        def world_size(self):
            return world_size

    return module, Case


def names(world_size, folder):
    """All tests that there are."""
    _, case = load(world_size, folder)
    return unittest.TestLoader().getTestCaseNames(case)


def _all_have_ended(store, world_size, timeout):
    store.add("ended", 1)
    deadline = time.monotonic() + timeout
    while store.add("ended", 0) < world_size and time.monotonic() < deadline:
        time.sleep(0.005)


def run(comm, name, backend, folder, timeout=20.0):
    """One test, on this rank: (what became of it, why)."""
    module, case = load(comm.world_size, folder)
    os.makedirs(f"{folder}/barrier", exist_ok=True)
    os.makedirs(f"{folder}/test_dir", exist_ok=True)
    os.makedirs(f"{folder}/init_dir", exist_ok=True)
    module.Barrier.barrier_id = 0
    test = case(name)
    test.rank, test.file_name = comm.rank, f"{folder}/store"
    environment = mock.patch.dict(os.environ)
    with environment, contextlib.ExitStack() as stack:
        store = dist.FileStore(f"{folder}/store", comm.world_size)
        seconds = module.CUSTOM_PG_TIMEOUT.get(name, timeout)
        dist.init_process_group(
            backend, store=store, rank=comm.rank, world_size=comm.world_size, timeout=timedelta(seconds=seconds)
        )
        stack.callback(lambda: dist.is_initialized() and dist.destroy_process_group())
        stack.callback(_all_have_ended, store, comm.world_size, 2 * seconds)
        try:
            getattr(test, name)()
        except unittest.SkipTest as reason:
            return SKIPPED, str(reason)
        except SystemExit as code:
            reasons = {skip.exit_code: skip.message for skip in module.TEST_SKIPS.values()}
            return SKIPPED, reasons.get(code.code, f"exit code {code.code}")
        except BaseException as error:  # what a test fails with may be anything
            return FAILED, f"{type(error).__name__}: {error}"
    return PASSED, ""
