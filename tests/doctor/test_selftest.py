"""The self-test finds a wrong bit, a rank that did not run, and what hangs."""

import json
import os
import re
import stat
import time

import pytest
import torch

from tricoll import dispatch, world
from tricoll.doctor import selftest


def flipped(rank, algorithm):
    """:func:`selftest.check` with one bit of one rank's result flipped, for one algorithm."""
    check = selftest.check

    def checked(comm):
        right = comm.all_reduce

        def wrong(x, *args, algo, **options):
            right(x, *args, algo=algo, **options)
            if comm.rank == rank and algo == algorithm:
                x.view(torch.int32)[5] ^= 1

        comm.all_reduce = wrong
        return check(comm)

    return checked


def test_the_self_tests_pass_here(run):
    """sim and host, as a user runs them."""
    result = run("--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0 and report["tested"] and not report["failed"]
    tests = {f["name"]: f for f in report["sections"]["self-test"]}
    assert {"sim test", "host test"} <= tests.keys()
    assert tests["sim test"]["data"]["ranks"] == 8 and tests["host test"]["data"]["ranks"] == 2
    assert tests["sim test"]["data"]["algorithms"] == ["ring", "tree", "two_shot", "one_shot"]
    assert all(f["state"] == "ok" and f["data"]["error"] is None for f in tests.values())


def test_algorithms_are_those_that_every_fabric_has():
    assert set(selftest.ALGORITHMS) == set(dispatch.having("all_reduce")) - {"hierarchical", "multimem"}


@pytest.mark.parametrize(("rank", "algorithm"), [*zip((0, 7, 3, 7), selftest.ALGORITHMS)])
def test_a_wrong_bit_is_found_on_sim(rank, algorithm, monkeypatch):
    monkeypatch.setattr(selftest, "check", flipped(rank, algorithm))
    found = selftest.run("sim")
    assert found.state == "failed" and f"rank {rank}, {algorithm}: 1 of 10007 elements wrong, first [5]" in found.text


def test_a_wrong_bit_is_found_on_host(shared, monkeypatch, run):
    monkeypatch.setitem(selftest.TESTS, "sim", lambda: None)
    monkeypatch.setattr(selftest, "check", flipped(1, "one_shot"))
    result = run()
    assert result.exit_code == 1
    assert re.search(r"x +host test +failed: AssertionError: rank 1, one_shot: 1 of 10007 elements", result.stdout)
    assert "1 failure" in result.stdout.splitlines()[-1]


def test_ranks_that_did_not_run_are_no_success(shared, monkeypatch):
    monkeypatch.setattr(selftest, "check", lambda comm: ["ring"])
    assert selftest.run("host").state == "failed"
    monkeypatch.setattr(selftest, "check", lambda comm: None)
    assert selftest.run("sim").state == "failed"


def test_a_self_test_that_hangs_is_left(monkeypatch):
    monkeypatch.setattr(selftest, "LIMIT", 0.1)
    monkeypatch.setattr(selftest, "START", 0.1)
    monkeypatch.setitem(selftest.TESTS, "sim", lambda: time.sleep(5))
    start = time.monotonic()
    found = selftest.run("sim")
    assert time.monotonic() - start < 3 and found.state == "failed" and "not finished" in found.text


def test_a_setting_that_breaks_init_breaks_the_self_test(monkeypatch, run):
    """The self-test runs in the environment that the user has."""
    monkeypatch.setitem(selftest.TESTS, "host", lambda: None)
    monkeypatch.setenv("TRICOLL_SLOTS", "1")
    result = run()
    assert result.exit_code == 1 and "slots is 1; it must be more than window" in result.stdout


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo rank 0 of 2 has the oracle\\'s bits; echo rank 1 of 2 has the oracle\\'s bits", ""),
        ("echo rank 0 of 2 has the oracle\\'s bits", "ended with code 0"),
        ("echo rank 0 of 2 has the oracle\\'s bits; echo rank 1 of 2 has the oracle\\'s bits; exit 3", "code 3"),
        ("sleep 20", "had not ended"),
    ],
)
def test_oshrun(script, said, monkeypatch, tmp_path):
    """Both ranks must say so, and it must end, well and in time."""
    fake = tmp_path / "oshrun"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(selftest, "LIMIT", 1.0)
    start = time.monotonic()
    found = selftest.run("openshmem")
    assert found.state == ("failed" if said else "ok") and said in found.text
    assert time.monotonic() - start < 10


def test_fabrics_on_gpus(monkeypatch, cuda, shared):
    """Two ranks of nvshmem need two GPUs; loopback has a way to start of its own. By stand-ins."""
    cuda(1)
    assert selftest.run("nvshmem").state == "absent" and "needs 2 GPUs" in selftest.run("nvshmem").text
    asked = []
    monkeypatch.setattr(world, "loopback", lambda fn, n: asked.append((fn, n)) or [fn(None)] * n, raising=False)
    monkeypatch.setattr(selftest, "check", lambda comm: [*selftest.ALGORITHMS])
    assert selftest.run("loopback").state == "ok" and asked == [(selftest.check, 2)]
    monkeypatch.setattr(selftest, "check", lambda comm: [])
    assert selftest.run("loopback").state == "failed"
    monkeypatch.setattr(selftest, "launched", lambda fabric: asked.append(fabric))
    cuda(2)
    assert selftest.run("nvshmem").state == "ok" and asked[-1] == "nvshmem"
