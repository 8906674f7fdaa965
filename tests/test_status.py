"""What is recorded of what tests do, and the page that is written of it."""

import functools
import json

import seen
import status
import torch

import tricoll
from tricoll.communicator import Communicator

CALL = ["sim", "put", "all_reduce", "ring", "float32", "bfloat16", "float32"]
RECORD = {
    "calls": {
        "tests/test_a.py": [CALL],
        "tests/test_b.py": [["host", "mapped", "barrier", "one_shot", "uint8", "uint8", "uint8"]],
    },
    "compiled": {"tests/test_c.py": [["ring.all_reduce", "put", 90, "fp32:bf16:fp32"]]},
    "outcomes": {"passed": 7, "skipped": 2},
    "skipped": {"needs a CUDA GPU": 2},
    "failed": [],
}


def work(comm):
    return comm.all_reduce(torch.ones(3), wire="bf16", algo="ring").tolist()


def test_a_call_is_seen(monkeypatch):
    monkeypatch.setattr(Communicator, "_perform", seen._seen)
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
    assert row(page, "all_reduce", "ring") == ["put, 1 types", *["no"] * 4]
    assert row(page, "barrier", "one_shot")[:2] == ["no", "mapped, 1 types"]
    assert row(page, "float32")[0] == "bfloat16" and row(page, "ring.all_reduce") == ["put"]
    never = page.partition("has not run")[2].partition("##")[0]
    assert all(f"- **`{fabric}`**" in never for fabric in ("openshmem", "loopback", "nvshmem"))
    assert "**`sim`**" not in never and "**No kernel ran on a GPU.**" in never and "- 2: needs a CUDA GPU" in never


def test_what_failed_does_not_count(tmp_path):
    page = written(tmp_path, RECORD, {**RECORD, "calls": {}, "failed": ["tests/test_a.py"]})
    assert row(page, "all_reduce", "ring")[0] == "no" and "tests/test_a.py" in page
    assert "14 passed" in page
