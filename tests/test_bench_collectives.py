"""The benchmark on real ranks: it measures what it says, and finds what is wrong."""

import contextlib
import dataclasses
import json
import re
import types

import pytest
import torch
from typer.testing import CliRunner

from tricoll.bench import backends, cli, collective, run
from tricoll.bench.cli import app
from tricoll.bench.measure import Case
from tricoll.bench.run import Plan

QUICK = Case("", 0, torch.float32, "", -1, iters=2, samples=2, warmup=1)


class Shared:
    """A pool of the tests as the ranks of a run."""

    prints = True

    def __init__(self, pool):
        self.pool, self.size = pool, pool.nprocs

    def run(self, fn, *args, **options):
        return self.pool.run(fn, *args, **options)


def bench(pool, name, sizes=(4096,), dtypes=(torch.float32,), ops=("sum",), roots=(0,), **more):
    """Run a benchmark; its report and the lines that it printed."""
    of = collective.named(name)
    options = {key: more.pop(key) for key in ("average", "plain", "options") if key in more}
    case = dataclasses.replace(QUICK, collective=name, **more)
    plan = Plan(
        case, sizes, dtypes, ops if of.reduces else ["none"], roots if of.rooted else [-1], step="4(factor)", **options
    )
    lines = []
    report = run.run(plan, Shared(pool), lines.append, "a test")
    return report, lines


@pytest.mark.parametrize("name", collective.NAMES)
def test_every_collective_and_gloo_are_right(pool, name):
    """Odd number of ranks, sizes that do not divide, fewer elements than ranks; root 2."""
    report, lines = bench(pool(3), name, (8, 40, 4100), roots=(2,), backends=(("tricoll", "auto"), ("gloo", "")))
    assert report.wrong == 0
    assert not report.failed
    assert not report.unavailable
    assert [r["backend"] for r in report.results] == ["tricoll", "gloo"] * 3
    rows = [line for line in lines if not line.startswith("#")]
    assert len(rows) == 6
    assert all(row.split()[8] == row.split()[12] == "0" for row in rows)
    assert lines[-1] == "#"


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float8_e5m2, torch.float64, torch.int8, torch.uint8]
)
def test_every_op(pool, dtype):
    report, _ = bench(pool(3), "all_reduce", (999,), (dtype,), collective.OPS)
    assert report.wrong == 0
    expected = [op for op in collective.OPS if dtype.is_floating_point or op not in ("avg", "mulsum")]
    assert [r["redop"] for r in report.results] == expected


def test_every_algorithm_with_a_narrow_wire(pool):
    algorithms = ("auto", "ring", "tree", "two_shot", "one_shot", "hierarchical")
    backends = tuple(("tricoll", algo) for algo in algorithms)
    report, lines = bench(pool(4), "all_reduce", (70_000,), backends=backends, wire=torch.bfloat16)
    assert report.wrong == 0
    assert {r["backend"] for r in report.results} == {
        "tricoll/bfloat16",
        *(f"tricoll:{a}/bfloat16" for a in algorithms[1:5]),
    }
    assert re.search(
        "# tricoll:hierarchical/bfloat16: not measured; ValueError: .*needs several nodes", "\n".join(lines)
    )
    assert not report.failed
    starred = [line for line in lines if line.endswith("*")]
    assert len(starred) == 1
    assert starred[0].endswith(f"tricoll:{report.results[0]['choice']}/bfloat16*")


def test_accuracy_tells_what_the_check_cannot(pool):
    """A ring with BF16 on the wire passes the check; accuracy shows its rounding, as docs/numerics.md has it."""
    backends = (("tricoll", "ring"), ("tricoll", "two_shot"))
    ring, two_shot = bench(pool(4), "all_reduce", (1 << 20,), backends=backends, wire=torch.bfloat16)[0].results
    assert ring["out_of_place"]["nwrong"] == two_shot["out_of_place"]["nwrong"] == 0
    assert ring["rms"] == pytest.approx(2.61e-3, rel=0.03)
    assert two_shot["rms"] == pytest.approx(2.37e-3, rel=0.03)
    assert ring["max_ulps"] > 2**15  # of an FP32 result: BF16 keeps 16 bits less


def test_bytes_that_are_sent_are_counted(pool):
    report, _ = bench(pool(4), "all_reduce", (1 << 16,), backends=(("tricoll", "ring"),))
    assert report.results[0]["sent"] == 2 * 3 * (1 << 16) // 4


def corrupting(backend):
    """A rank that changes one element of what it got."""
    backend_call = backend.call

    def call(of, x, out, op, root):
        inner = backend_call(of, x, out, op, root)

        def wrong():
            inner()
            if backend.comm.rank == 1:
                out[7] = float("nan")

        return wrong

    backend.call = call
    return backend


def test_one_wrong_element_is_counted(pool):
    report, lines = bench(pool(2), "all_reduce", (4096,), wrap=lambda backend: corrupting(backend))
    assert report.wrong == 2  # out of place and in place
    assert "# Out of bounds values : 2 FAILED" in lines
    assert next(line for line in lines if not line.startswith("#")).split()[8] == "1"


def test_a_slow_rank_shows(pool):
    def slow(backend):
        import time

        of_backend = backend.call

        def call(of, x, out, op, root):
            inner = of_backend(of, x, out, op, root)
            return lambda: (inner(), time.sleep(0.05 if backend.comm.rank == 1 else 0))

        backend.call = call
        return backend

    report, _ = bench(pool(2), "all_reduce", (4096,), wrap=slow, iters=3, samples=3)
    timing = report.results[0]["out_of_place"]
    assert timing["max"] > 50_000 > timing["min"]


def test_a_call_that_a_library_lacks_is_said(pool):
    report, lines = bench(pool(2), "all_reduce", ops=("mulsum",), backends=(("tricoll", "auto"), ("gloo", "")))
    assert [r["backend"] for r in report.results] == ["tricoll"]
    assert any(line.startswith("# gloo: not measured; ") for line in lines)
    assert not report.failed


def test_what_one_rank_cannot_measure_none_does(pool):
    def broken(backend):
        if backend.comm.rank == 1:
            backend.choice = lambda *call: 1 / 0
        return backend

    report, lines = bench(pool(2), "all_reduce", wrap=broken, timeout=3.0)
    (said,) = [line for line in lines if line.startswith("# tricoll: not measured; ")]
    assert re.search("CollectiveTimeout|ZeroDivisionError", said)  # whichever rank is asked first
    assert report.failed


@pytest.mark.skipif(torch.distributed.is_nccl_available(), reason="this PyTorch has NCCL")
def test_what_is_not_there_is_said_once(pool):
    report, lines = bench(pool(2), "all_reduce", (64, 128), backends=(("nccl", ""), ("tricoll", "auto")))
    assert [line for line in lines if "nccl" in line] == [
        "# nccl: not measured; this build of PyTorch has no NCCL (a CUDA build has)"
    ]
    assert len(report.results) == 2


def test_samples_are_compared_in_pairs(pool):
    backends = (("tricoll", "auto"), ("gloo", ""))
    report, lines = bench(pool(2), "all_reduce", backends=backends, iters=12, samples=6)
    (found,) = report.comparisons
    assert found["backend"] == "tricoll"
    assert found["to"] == "gloo"
    assert found["low"] <= found["ratio"] <= found["high"]
    assert any(re.match(r"# +4096 +float +sum +-1 +[\d.]+ +\[[\d.]+, [\d.]+\] +gloo", line) for line in lines)


# The command line.


@pytest.fixture
def invoke():
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "120"})


def test_the_command(invoke, tmp_path):
    flags = "-b 64 -e 1K -f 4 -i 0 -g 2 -n 2 -w 1 -m 2 -c 1 -o max -d half -r 0 -a 3 -z 1 -G 0 -C 0 -T 30"
    result = invoke("all_reduce", *flags.split(), "-J", tmp_path / "r.json", "--csv", tmp_path / "r.csv")
    assert result.exit_code == 0, result.output
    rows = [line for line in result.stdout.splitlines() if not line.startswith("#")]
    assert [row.split()[:5] for row in rows] == [[str(s), str(s // 2), "half", "max", "-1"] for s in (64, 256, 1024)]
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["config"]["ranks"] == 2
    assert report["config"]["blocking_collectives"] is True
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 4


def test_help_teaches(invoke):
    text = invoke("-h").output
    assert "  tricoll bench all_reduce -b 1K -e 16M -f 4 -g 4\n" in text
    assert text.index("all_reduce") < text.index("gradients")
    assert "torchrun --nproc-per-node 4 -m tricoll.bench.scatter -e 1M --plain\n" in invoke("scatter", "--help").output


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["all_reduce", "-X"], "No such option: -X"),
        (["all_reduce", "--nothing", 1], "No such option: --nothing"),
        (["all_reduce", "-b", "1Q"], "'1Q' is not a size"),
        (["all_reduce", "-b", "2M", "-e", "1M"], "larger than the last"),
        (["all_reduce", "-d", "float7"], "'float7' is not one of int8"),
        (["all_reduce", "-o", "xor"], "'xor' is not one of sum"),
        (["all_reduce", "-o", "avg", "-d", "int32"], "integers have no average"),
        (["all_reduce", "--backends", "tricoll,rccl"], "'rccl' is not one of tricoll"),
        (["all_reduce", "--algos", "two_rings"], "'two_rings' is not one of auto"),
        (["all_reduce", "--wire", "bf17"], "'bf17' is not a dtype"),
        (["all_reduce", "--plain", "--backends", "tricoll,gloo"], "choose one"),
        (["broadcast", "-r", "9", "-g", "2"], "'9' is not a rank"),
    ],
)
def test_a_wrong_flag_is_an_error(invoke, flags, said):
    result = invoke(*flags)
    assert result.exit_code == 2
    assert said in re.sub(r"[\s│]+", " ", result.output)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_graph_needs_a_gpu(invoke):
    result = invoke("all_reduce", "-G", 1)
    assert result.exit_code == 2
    assert "CUDA" in result.output


def test_a_wrong_result_is_exit_code_1(invoke, monkeypatch):
    real = run.measure

    def broken(comm, case):
        found = real(comm, case)
        found[0].sides[0].wrong += 1
        return found

    monkeypatch.setattr(run, "measure", lambda comm, case: broken(comm, case))
    result = invoke("all_reduce", "-b", 64, "-e", 64, "-g", 2, "-n", 1, "-w", 1)
    assert result.exit_code == 1
    assert "# Out of bounds values : 2 FAILED" in result.stdout


# GPUs. Nothing here needs one.


@pytest.mark.parametrize(
    ("gpus", "here", "rank", "index"),
    [(8, "8", "3", 3), (8, None, "3", 3), (1, "1", "0", 0), (1, "2", "0", "1 GPUs, 2 ranks on this host")],
)
def test_nccl_needs_a_gpu_for_each_rank_of_a_host(monkeypatch, gpus, here, rank, index):
    """Of a job of 8 ranks on one or several hosts, only the ranks of this one count."""
    chosen = []
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 8)
    for name, value in (("is_available", True), ("device_count", gpus), ("current_device", 0)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", here or "")
    if here is None:  # mpirun does not say
        monkeypatch.delenv("LOCAL_WORLD_SIZE")
    if isinstance(index, str):
        with pytest.raises(backends.Unavailable, match=index):
            backends._gpu_for_nccl()
    else:
        assert backends._gpu_for_nccl() == torch.device("cuda", index)
        assert chosen == [index]


def test_tensors_are_where_the_fabric_is():
    """On a GPU, bytes are not counted, and what went wrong is heard of at a barrier."""
    met = []
    on = lambda device: types.SimpleNamespace(
        _fabric=types.SimpleNamespace(device=torch.device(device)),
        stats=lambda: {"payload_bytes": 12},
        barrier=lambda: met.append(device),
    )
    gpu, cpu = (backends.open_tricoll(on(device), "auto", None) for device in ("cuda:1", "cpu"))
    assert (gpu.device, gpu.sent()) == (torch.device("cuda", 1), None)
    assert (cpu.device, cpu.sent()) == (torch.device("cpu"), 12)
    gpu.finish()
    cpu.finish()
    assert met == ["cuda:1"]


@pytest.mark.parametrize(
    ("fabric", "flags", "average"), [("host", [], 1), ("nvshmem", [], 3), ("nvshmem", ["-a", 0], 0)]
)
def test_on_gpus_the_slowest_rank_counts(invoke, monkeypatch, fabric, flags, average):
    planned = []

    class Started:
        prints, size = True, 2

        def fabric(self, name):
            return fabric

    def stop(plan, *rest):
        planned.append(plan)
        raise RuntimeError("enough")

    monkeypatch.setattr(cli.ranks, "started", lambda n: contextlib.nullcontext(Started()))
    monkeypatch.setattr(cli, "run", stop)
    assert invoke("all_reduce", *flags).exit_code == 1
    assert (planned[0].average, planned[0].options["fabric"]) == (average, fabric)
