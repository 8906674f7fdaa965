"""Exposed communication: the prediction by hand, and that what is measured is measured."""

import json
import math

import torch.distributed as dist
from typer.testing import CliRunner

from tricoll.bench import overlap
from tricoll.bench.cli import app


def test_prediction_by_hand():
    seconds = lambda nbytes: 1.0 + nbytes / 10  # a call costs 1 s, and 1 s for 10 bytes
    # One bucket is ready at the end: nothing is hidden.
    assert overlap.predict(10.0, [40], seconds) == 5.0
    # Ready at 5 and 10; each takes 3 s: the first is hidden.
    assert overlap.predict(10.0, [20, 20], seconds) == 3.0
    # Ready at 2.5, 5, 7.5 and 10; each takes 2 s.
    assert overlap.predict(10.0, [10] * 4, seconds) == 2.0
    # Ready every 0.25 s, each takes 1.1 s and waits for the one before: 0.25 + 40 x 1.1 - 10.
    assert math.isclose(overlap.predict(10.0, [1] * 40, seconds), 34.25)


def test_what_is_measured(pool):
    job = overlap.Job(layers=3, width=256, batch=4, samples=2, timeout=30.0)
    ranks = pool(2).run(overlap.measure, 0.3, ["gloo", "mpi"], job)
    found = {seen.label: seen for seen in ranks[0]}
    assert list(found) == [f"{name}, {dtype}" for name in ("tricoll", "gloo", "mpi") for dtype in ("BF16", "FP32")]
    assert "no MPI" in found["mpi, FP32"].failure
    for label in ("tricoll, BF16", "tricoll, FP32", "gloo, BF16", "gloo, FP32"):
        seen = found[label]
        assert sum(seen.buckets) == 3 * 256 * 256 * 4  # all gradients, once
        assert len(seen.buckets) > 1
        assert set(seen.alone) == set(seen.buckets)
        assert len(seen.with_) == len(seen.without) == 2


def test_the_command(tmp_path):
    flags = "--buckets 0.1,1 --layers 2 --width 128 --batch 2 -g 2 -n 2 --backends gloo,nccl"
    result = CliRunner().invoke(
        app, ["overlap", *flags.split(), "-J", str(tmp_path / "o.json")], env={"COLUMNS": "120"}
    )
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "o.json").read_text())
    rows = [(r["backend"], r["bucket_mb"]) for r in report["results"]]
    labels = [f"{name}, {dtype}" for name in ("tricoll", "gloo") for dtype in ("BF16", "FP32")]
    assert rows == [(label, mb) for mb in (0.1, 1.0) for label in labels]
    assert result.stdout.count("tricoll, BF16") == 2
    if not dist.is_nccl_available():
        assert "Not measured: nccl, BF16: this build of PyTorch has no NCCL" in result.stdout
    page = CliRunner().invoke(app, ["report", str(tmp_path / "o.json"), "-o", str(tmp_path / "o.html")])
    assert page.exit_code == 0, page.output
    compared = CliRunner().invoke(app, ["compare", str(tmp_path / "o.json"), str(tmp_path / "o.json")])
    assert "gloo, FP32 2 1.0" in compared.stdout
