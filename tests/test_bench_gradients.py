"""The fair comparison: gradients in, averages out."""

import json
import types

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook
from typer.testing import CliRunner

from tricoll.bench import gradients, noise
from tricoll.bench.cli import app


def test_they_are_the_hooks_of_pytorch(pool):
    def work(comm, way, hook):
        dist.init_process_group("gloo")
        x = torch.randn(1001, generator=torch.Generator().manual_seed(comm.rank))
        theirs = x.clone()
        bucket = types.SimpleNamespace(buffer=lambda: theirs)
        hook(dist.group.WORLD, bucket).wait()
        way(x, group=dist.group.WORLD)
        return torch.equal(x, theirs)

    assert pool(3).run(work, gradients.fp32, allreduce_hook) == [True] * 3
    assert pool(3).run(work, gradients.bf16_hook, bf16_compress_hook) == [True] * 3


def test_memory_traffic_is_counted():
    x = torch.ones(1000)
    with gradients.Traffic() as traffic:
        y = x.to(torch.bfloat16)  # reads 4 bytes an element, writes 2
    assert traffic.bytes == 6000
    with gradients.Traffic() as traffic:
        y.div_(4)  # 2 and 2
    assert traffic.bytes == 4000
    with gradients.Traffic() as traffic:
        x.copy_(y)  # 2 and 4
    assert traffic.bytes == 6000
    with gradients.Traffic() as traffic:
        x.view(10, 100)
    assert traffic.bytes == 0


def test_what_is_measured(pool):
    numel, n = 50_000, 4
    ranks = pool(n).run(gradients.measure, numel, ["gloo", "mpi"], 3, 1, 30.0)
    by_label = {seen.label: seen for seen in ranks[0]}
    assert list(by_label) == [
        "tricoll, BF16 wire", "tricoll, FP32 wire", "gloo, FP32", "gloo, BF16 hook", "mpi, FP32", "mpi, BF16 hook",
    ]  # fmt: skip
    assert "no MPI" in by_label["mpi, FP32"].failure
    ring = 2 * (n - 1) / n * numel
    assert by_label["tricoll, BF16 wire"].sent == pytest.approx(2 * ring, rel=0.01)
    assert by_label["tricoll, FP32 wire"].sent == pytest.approx(4 * ring, rel=0.01)
    assert by_label["gloo, BF16 hook"].sent == 2 * ring
    assert by_label["tricoll, BF16 wire"].traffic == 0
    assert by_label["gloo, FP32"].traffic == 8 * numel
    assert by_label["gloo, BF16 hook"].traffic == 16 * numel
    rms = {label: (seen.error / seen.scale) ** 0.5 for label, seen in by_label.items() if not seen.failure}
    assert rms["tricoll, FP32 wire"] < 1e-7 > rms["gloo, FP32"]
    assert 2e-3 < rms["tricoll, BF16 wire"] < rms["gloo, BF16 hook"] < 4e-3
    assert all(len(seen.seconds) == 3 and min(seen.seconds) > 0 for seen in ranks[0] if not seen.failure)


def test_the_command(tmp_path):
    arguments = ["gradients", "--sizes", "0.01,0.1", "-g", "2", "-n", "6", "-w", "1", "-J", str(tmp_path / "g.json")]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    assert "0.01 MB of FP32 gradients, 2 ranks" in result.stdout
    assert result.stdout.count("tricoll, BF16 wire") == 2
    report = json.loads((tmp_path / "g.json").read_text())
    assert report["kind"] == "gradients"
    assert {r["size"] for r in report["results"]} == {10_000, 100_000}
    if not dist.is_nccl_available():
        assert "Not measured: nccl, FP32: this build of PyTorch has no NCCL" in result.stdout
    wrong = CliRunner().invoke(app, ["gradients", "--sizes", "1,no"])
    assert wrong.exit_code == 2


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mebibytes", "limit"), [(64, 0.6), (16, 1.0), (1, 2.5), (1 / 256, 8.0)])
def test_it_is_worth_having(pool, mebibytes, limit):
    """The time relative to FP32 gradients with Gloo, sample by sample in one run; fails if it is surely above."""
    ranks = pool(4).run(gradients.measure, int(mebibytes * 2**18), ["gloo"], 8, 1, 60.0)
    slowest = {
        label: [max(of_ranks) for of_ranks in zip(*(seen[i].seconds for seen in ranks), strict=True)]
        for i, label in enumerate(seen.label for seen in ranks[0])
    }
    ratio = noise.paired_ratio(slowest["tricoll, BF16 wire"], slowest["gloo, FP32"])
    assert ratio.low <= limit, f"{ratio} of Gloo's time"
