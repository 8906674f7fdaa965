"""The ranks that commands measure: those that are started here, torchrun's and mpirun's, and whether they have GPUs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tricoll import ranks
from tricoll.cli import app
from tricoll.fabric import nvshmem

TRICOLL = str(Path(sys.executable).with_name("tricoll"))


def torchrun(port, *command, **environment):
    """Two ranks of ``tricoll``, on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    return subprocess.run(
        [*launcher, "--no-python", TRICOLL, *command],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("names", ranks.MPI)
def test_mpirun_says_who_is_who(monkeypatch, names):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    assert ranks.launched() == 0
    for name, value in zip(names, ("2", "5"), strict=True):
        monkeypatch.setenv(name, value)
    assert ranks.launched() == 5
    assert (os.environ["RANK"], os.environ["MASTER_ADDR"]) == ("2", "127.0.0.1")
    result = CliRunner().invoke(app, ["bench", "all_reduce", "-g", "4"])
    assert result.exit_code == 2
    assert "5 ranks have been started already" in result.output


def asked(comm, name, reasons, gpus):
    """What a launched rank is told of a fabric, if these are the ranks' reasons to have no NVSHMEM."""
    unavailable, count = nvshmem.unavailable, torch.cuda.device_count
    nvshmem.unavailable, torch.cuda.device_count = lambda: reasons[comm.rank], lambda: gpus
    try:
        started = ranks.Launched()
        assert started.share(comm.rank) == 0 and started.prints == started.first_here == (comm.rank == 0)
        return started.fabric(name)
    except ValueError as error:
        return str(error)
    finally:
        nvshmem.unavailable, torch.cuda.device_count = unavailable, count


@pytest.mark.parametrize(
    ("name", "reasons", "gpus", "fabric"),
    [
        ("auto", (None, None), 2, "nvshmem"),
        ("auto", ("no driver", "no driver"), 2, "host"),
        ("auto", (None, None), 1, "host"),
        ("host", (None, None), 2, "host"),
        ("nvshmem", (None, None), 2, "nvshmem"),
        ("openshmem", ("no driver", "no driver"), 0, "openshmem"),
    ],
)
def test_launched_ranks_take_gpus_if_all_have_one(pool, name, reasons, gpus, fabric):
    assert pool(2).run(asked, name, reasons, gpus) == [fabric] * 2


@pytest.mark.parametrize(
    ("reasons", "gpus", "said"),
    [
        ((None, "no driver"), 2, "rank 1: no driver"),
        ((None, None), 1, "rank 0: there are 2 ranks on this host, and 1 GPUs: start 1"),
    ],
)
def test_all_launched_ranks_say_which_one_has_no_gpu(pool, reasons, gpus, said):
    for text in pool(2).run(asked, "nvshmem", reasons, gpus):
        assert said in text and "tricoll doctor" in text and "--fabric host" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", [["bench", "all_reduce"], ["bench", "gradients"], ["bench", "overlap"], ["tune"]])
def test_without_a_gpu_a_command_says_what_it_takes(command):
    result = CliRunner().invoke(app, [*command, "--fabric", "nvshmem"], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert 'pip install "tricoll[cu13]"' in result.output and "--fabric host" in result.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_bench_under_torchrun():
    """One of the ranks that somebody else has started prints; without GPUs they are those of the host."""
    flags = ["-b", "64", "-e", "64", "-n", "2", "-w", "1", "--backends", "tricoll,gloo"]
    done = torchrun(29631, "bench", "all_gather", *flags)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [row.split()[-1] for row in rows] == ["tricoll", "gloo"]
    assert "nGpus 2" in done.stdout and done.stdout.count("[host]") == 2
    done = torchrun(29632, "bench", "all_gather", "--fabric", "nvshmem")
    assert done.returncode != 0 and "rank 0: PyTorch" in done.stderr and not done.stdout


def test_tune_under_torchrun(tmp_path):
    """The ranks measure, and one of them fits, prints and stores; all get its word when it cannot."""
    pytest.importorskip("scipy")
    small = ["tune", "--fabric", "host", "--calls", "1", "--passes", "1", "--max-bytes"]
    done = torchrun(29633, *small, "16K", TRICOLL_PROFILE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("profile: ") == 1 and f"profile: {tmp_path / 'host-2x2-mapped.json'}" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["host-2x2-mapped.json", "host-2x2-mapped.samples.jsonl"]
    done = torchrun(29634, *small, "1K", "--fresh", TRICOLL_PROFILE_DIR=str(tmp_path))
    assert done.returncode != 0 and done.stderr.count("too few to fit") >= 1 and "Traceback (most" not in done.stdout
