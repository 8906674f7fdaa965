"""PyTorch's own tests of torch.distributed, with tricoll as the backend: they pass wherever Gloo passes.

``python tests/test_c10d.py BACKEND [TEST ...]`` prints what becomes of them with a backend, on 4 ranks.
"""

import os
import sys
import tempfile
from pathlib import Path
from unittest import mock

import c10d_cases
import pytest

pytest.importorskip("expecttest", reason="PyTorch's tests need expecttest: pip install 'tricoll[test]'")

RANKS = 4
NOT_HERE = {  # fail with Gloo, too, for want of something that these ranks do not have
    "test_SyncBatchNorm_process_group": "torchvision",
    "test_all_to_all_cuda": "a GPU",
    "test_all_to_all_cuda_complex": "a GPU",
    "test_all_to_all_full_group_cuda": "a GPU",
    "test_all_to_all_group_cuda": "a GPU",
    "test_batch_isend_irecv_mixed_backend_err": "NCCL",
    "test_batch_isend_irecv_op_err": "a GPU",
}
DIFFERENT = {  # pass with Gloo, and not with tricoll: docs/pytorch.md lists them
    "test_get_backend": "the backend's name is tricoll",
    "test_monitored_barrier_failure_order": "torch.distributed keeps monitored_barrier for Gloo",
    "test_monitored_barrier_gloo": "torch.distributed keeps monitored_barrier for Gloo",
    "test_monitored_barrier_gloo_rank_0_timeout": "torch.distributed keeps monitored_barrier for Gloo",
    "test_monitored_barrier_gloo_subgroup": "torch.distributed keeps monitored_barrier for Gloo",
    "test_monitored_barrier_wait_all_ranks": "torch.distributed keeps monitored_barrier for Gloo",
}
BEYOND_GLOO = {  # pass with tricoll, and not with Gloo, which wants equal parts
    "test_all_to_all",
    "test_all_to_all_complex",
    "test_all_to_all_full_group",
    "test_all_to_all_group",
}


def names(folder):
    with mock.patch.dict(os.environ):
        _, case = c10d_cases.load(RANKS, folder)
    return sorted(name for name in dir(case) if name.startswith("test_"))


def outcomes(pool, backend, folder, wanted, limit):
    """{name: (outcome, reasons of the ranks)}: a test has failed if it has on one rank."""
    ranks = pool.run(c10d_cases.run, backend, str(folder), wanted, limit=limit)
    seen = {}
    for name in ranks[0]:
        each = [rank[name] for rank in ranks]
        worst = next((o for o in ("failed", "passed", "skipped") if o in {outcome for outcome, _ in each}), "")
        seen[name] = worst, [why for outcome, why in each if outcome == worst]
    return seen


@pytest.mark.timeout(400)
def test_what_gloo_passes(pool, tmp_path):
    wanted = [name for name in names(tmp_path) if name not in NOT_HERE.keys() | DIFFERENT.keys()]
    try:
        seen = outcomes(pool(RANKS), "tricoll", tmp_path, wanted, 350)
    except Exception as error:
        error.add_note(f"in {[path.read_text() for path in sorted(tmp_path.glob('now-*'))]}")
        raise
    failed = {name: why for name, (outcome, why) in seen.items() if outcome == "failed"}
    assert not failed, failed
    passed = {name for name, (outcome, _) in seen.items() if outcome == "passed"}
    assert len(passed) >= 122 and passed >= BEYOND_GLOO
    needs = {why[0] for outcome, why in seen.values() if outcome == "skipped"}
    assert all("CUDA" in why or "github.com/pytorch" in why or "acklist" in why for why in needs), needs


def test_the_page_lists_what_is_different():
    page = (Path(__file__).parents[1] / "docs" / "pytorch.md").read_text()
    assert all(f"`{name}`" in page or name.startswith("test_monitored_barrier") for name in DIFFERENT)
    assert "`test_monitored_barrier_*`" in page


if __name__ == "__main__":
    from tricoll.pool import Pool

    with tempfile.TemporaryDirectory() as folder:
        started = Pool(RANKS)
        for name, (outcome, why) in outcomes(started, sys.argv[1], folder, sys.argv[2:], 900).items():
            print(f"{outcome:8} {name} {why[0].splitlines()[0] if why and why[0] else ''}")
        started.close()
