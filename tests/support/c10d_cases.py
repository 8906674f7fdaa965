"""Runs PyTorch's own tests of torch.distributed, those that ship inside it, on ranks of a pool.

They are written to start processes of their own, one set a test; here ranks that are there already run the body of one
after another. The tests ask for the name of the backend to know what it can do: they are told "gloo", whichever is
tested, so that all that Gloo must do is tested.
"""

import importlib
import os
import time
import unittest
from datetime import timedelta

import torch.distributed as dist

MODULE = "torch.testing._internal.distributed.distributed_test"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


def load(world_size, folder):
    """The module, and the class of its tests. PyTorch decides when it defines them which of them make sense."""
    for name in ("barrier", "test_dir", "init_dir"):
        os.makedirs(f"{folder}/{name}", exist_ok=True)
    here = {"BACKEND": "gloo", "WORLD_SIZE": str(world_size), "TEMP_DIR": str(folder), "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(here)
    module = importlib.import_module(MODULE)

    class Case(module.DistributedTest._DistTestBase, module.TestDistBackend):
        @property
        def world_size(self):
            return world_size

    return module, Case


def run(comm, backend, folder, wanted):
    """The tests that ``wanted`` (an iterable of names; None: all) has, on this rank: {name: (outcome, why)}."""
    before = dict(os.environ)
    module, case = load(comm.world_size, folder)
    os.environ["BACKEND"] = "mpi"  # by this variable tests only ask whether they make sense with few ranks
    outcomes, group = {}, None
    try:
        for name in wanted or unittest.TestLoader().getTestCaseNames(case):
            with open(f"{folder}/now-{comm.rank}", "w") as file:
                file.write(name)  # for whoever wants to know where it hangs
            folder_of_one = f"{folder}/{name}"
            load(comm.world_size, folder_of_one)
            os.environ["BACKEND"] = "mpi"
            timeout = timedelta(seconds=module.CUSTOM_PG_TIMEOUT.get(name, 20))
            if dist.is_initialized() and (dist.group.WORLD is not group or name in module.CUSTOM_PG_TIMEOUT):
                dist.destroy_process_group()  # some tests make a default group of their own
            store = dist.FileStore(f"{folder_of_one}/store", comm.world_size)
            if not dist.is_initialized():
                dist.init_process_group(
                    backend, store=store, rank=comm.rank, world_size=comm.world_size, timeout=timeout
                )
                group = dist.group.WORLD
            outcomes[name] = _one(module, case, name, comm.rank, folder_of_one)
            _all_have_ended(store, comm.world_size)
            if name in module.CUSTOM_PG_TIMEOUT and dist.is_initialized():
                dist.destroy_process_group()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(before)
    return outcomes


def _one(module, case, name, rank, folder):
    module.Barrier.barrier_id = 0
    test = case(name)
    test.rank, test.file_name = rank, f"{folder}/store"
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


def _all_have_ended(store, world_size, timeout=30):
    store.add("ended", 1)
    deadline = time.monotonic() + timeout
    while store.add("ended", 0) < world_size and time.monotonic() < deadline:
        time.sleep(0.005)
