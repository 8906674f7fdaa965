"""What is recorded of what tests do, and the page that is written of it."""

import functools
import json
import types

import seen
import status
import torch

import tricoll
from tricoll.compile import catalogue
from tricoll.executor import Executor

CALL = ["sim", "put", "all_reduce", "ring", "float32", "bfloat16", "float32"]
BARRIER = ["host", "mapped", "barrier", "one_shot", "uint8", "uint8", "uint8"]
STAND_IN = ["loopback" + seen.STAND_IN, *CALL[1:]]
COMPILED = ["ring.all_reduce", "put", 90, "fp32:bf16:fp32"]


def record(calls=(), compiled=(), **outcomes):
    skipped = {"needs a CUDA GPU": outcomes["skipped"]} if "skipped" in outcomes else {}
    return {"calls": calls, "compiled": compiled, "outcomes": outcomes, "skipped": skipped}


RECORD = {
    "tests/test_a.py": record([CALL, STAND_IN], passed=5),
    "tests/test_b.py": record([BARRIER], passed=1, skipped=2),
    "tests/test_c.py": record(compiled=[COMPILED], passed=1),
}


def work(comm):
    return comm.all_reduce(torch.ones(3), wire="bf16", algo="ring").tolist()


def test_a_call_is_seen(monkeypatch):
    monkeypatch.setattr(Executor, "perform", seen._seen)
    before = seen.take()
    run = tricoll.simulate(work, 2, link="put")
    assert run.results == [[2.0] * 3] * 2 and seen.take() == {tuple(CALL)}
    tricoll.simulate(work, 1)  # nothing is sent
    assert not seen.take()
    seen.CALLS.update(before)


def test_a_call_of_another_process_is_seen(pool):
    told = pool(2).run(functools.partial(seen.on_rank, work))
    assert [t.result for t in map(plainly, told)] == [[2.0] * 3] * 2
    assert all(t.calls == {("host", "mapped", *CALL[2:])} for t in map(plainly, told))


def plainly(told):
    """Where this session is recorded, the pool tells of its own, and ours are within."""
    return told if isinstance(told, seen.Told) else seen.Told(told, set())


def test_kernels_that_a_test_looks_at_are_seen(request):
    class Item:
        def __init__(self, **params):
            self.callspec = types.SimpleNamespace(params=params)

    variant, *_ = catalogue((90,), ("put",), ("ring.all_reduce",))
    looked_at = {("ring.all_reduce", "put", 90, "fp32:bf16:fp32")}
    # By whatever name the tests of tests/compiled and tests/kernels call them.
    assert seen.compiled_for(Item(gate=str, compiled=variant)) == seen.compiled_for(Item(variant=variant)) == looked_at
    assert seen.compiled_for(Item(link="put")) == seen.compiled_for(request.node) == set()


def written(tmp_path, *records):
    paths = [tmp_path / f"{number}.json" for number in range(len(records))]
    for path, record in zip(paths, records, strict=True):
        path.write_text(json.dumps(record))
    return status.page(*status.merged(paths))


def row(page, *first):
    (line,) = (line for line in page.splitlines() if line.startswith("| " + " | ".join(f"`{name}`" for name in first)))
    return [cell.strip() for cell in line.strip("|").split("|")][len(first) :]


def test_the_page_says_what_ran_and_what_did_not(tmp_path):
    page = written(tmp_path, RECORD)
    assert row(page, "all_reduce", "ring") == ["put, 1 type", *["no"] * 4]
    assert row(page, "barrier", "one_shot")[:2] == ["no", "mapped, 1 type"]
    assert row(page, "float32")[0] == "bfloat16" and row(page, "ring.all_reduce") == ["put"]
    never = page.partition("has not run")[2].partition("##")[0]
    assert all(f"- **`{fabric}`**" in never for fabric in ("openshmem", "loopback", "nvshmem"))
    assert "**`sim`**" not in never and "**No kernel ran on a GPU.**" in never and "- 2: needs a CUDA GPU" in never


def test_stand_ins_are_no_gpus(tmp_path):
    page = written(tmp_path, RECORD)
    assert row(page, "all_reduce", "ring")[3] == "no" and "its host code on stand-ins" in page

    class Fabric:
        name, device = "nvshmem", torch.device("cpu")

    assert seen.gpu_or_not(Fabric) == seen.STAND_IN
    Fabric.device = torch.device("cuda")
    assert seen.gpu_or_not(Fabric) == ""


def test_what_failed_does_not_count_and_the_last_run_does(tmp_path):
    worse = {"tests/test_a.py": record([CALL], passed=4, failed=1)}
    page = written(tmp_path, RECORD, worse)
    assert row(page, "all_reduce", "ring")[0] == "no" and "tests/test_a.py" in page
    assert "6 passed, 2 skipped, 1 failed" in page
    assert row(written(tmp_path, worse, RECORD), "all_reduce", "ring")[0] == "put, 1 type"
