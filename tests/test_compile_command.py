"""``tricoll compile``: what it compiles, shows and says."""

import re
import types

import pytest
import torch
from typer.testing import CliRunner

from tricoll import bitcode, compile, gates
from tricoll.cli import app
from tricoll.compile import Variant
from tricoll.machine_code import Loop


@pytest.fixture
def run():
    """``run("compile", "--arch", 90)`` is what the command printed and its exit code."""

    def invoke(*arguments):
        return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "100"})

    return invoke


@pytest.fixture
def builder(monkeypatch):
    """What ``tricoll compile`` compiles, without doing it; ``builder.objects`` holds variants that fail a check."""
    said = types.SimpleNamespace(variants=[], options={}, objects=set(), error=None)

    def build(variant):
        return compile.Compiled(
            variant, compile.GPU, "", b"", "", "", False, 100, 0, 0, 8192, 40960, (Loop(1, 1, 0, 0, 0),), 20, 1, 1, 0,
            frozenset(), frozenset(), 1.25,
        )  # fmt: skip

    def build_all(variants, jobs, world_size):
        said.variants, said.options = list(variants), {"jobs": jobs, "world_size": world_size}
        if said.error:
            raise said.error
        yield from map(build, reversed(said.variants))  # in any order

    monkeypatch.setattr(compile, "build_all", build_all)
    monkeypatch.setattr(gates, "GATES", {"luck": lambda c: "none" if c.variant in said.objects else None})
    monkeypatch.setattr(bitcode, "slim", lambda arch: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return said


def test_compile_shows_every_variant_in_order(run, builder):
    result = run("compile")
    assert result.exit_code == 0
    assert builder.variants == compile.catalogue()
    assert builder.options["world_size"] == 8
    rows = re.findall(r"^(\S+ (?:mapped|put) sm_\d+ \S+ \w+) +100 +0 +40 KiB +1\.2 +passed", result.stdout, re.M)
    assert rows == [str(v) for v in compile.catalogue()]


def test_compile_chooses(run, builder):
    options = [
        "--arch",
        103,
        "--arch",
        90,
        "--link",
        "put",
        "--kernel",
        "ring.all_gather",
        "--kernel",
        "reduce_scatter",
    ]
    options += ["--dtype", "bf16", "--dtype", "fp32:bf16:fp16", "--op", "sum", "--jobs", 3, "--world-size", 4]
    assert run("compile", *options).exit_code == 0
    assert {(v.kernel, v.link, v.arch, v.dtypes, v.op) for v in builder.variants} == {
        (kernel, "put", arch, dtypes, "sum")
        for kernel in ("ring.all_gather", "ring.reduce_scatter", "direct.reduce_scatter", "hierarchical.reduce_scatter")
        for arch in (90, 103)
        for dtypes in ("bf16:bf16:bf16", "fp32:bf16:fp16")
    }
    assert builder.options == {"jobs": 3, "world_size": 4}


def test_compile_all_dtypes_of_one_algorithm(run, builder):
    assert run("compile", "--arch", 90, "--link", "mapped", "--kernel", "tree", "--dtype", "all").exit_code == 0
    assert [v.dtypes for v in builder.variants] == [
        "fp32:bf16:fp32", "fp32:fp32:fp32", "bf16:bf16:bf16", "fp16:fp16:fp16",
    ]  # fmt: skip


def test_compile_is_for_this_machine(run, builder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 3))
    assert run("compile").exit_code == 0
    assert {v.arch for v in builder.variants} == {103}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--link", "nvlink"], "'nvlink' is not one of mapped, put"),
        (["--kernel", "all_to_none"], "'all_to_none' is not one of ring.all_reduce"),
        (["--dtype", "fp7"], "'fp7' is not a dtype"),
        (["--dtype", "fp32:bf16"], "'fp32:bf16' is not input:wire:output"),
        (["--dtype", "fp64:bf16:fp64"], "fp64:bf16:fp64: casts are among fp32, fp16 and bf16"),
        (["--op", "median"], "op is 'median'"),
        (["--dtype", "int32", "--kernel", "tree"], "integers have no average: add --op sum"),
    ],
)
def test_compile_says_what_is_wrong(run, builder, options, said):
    result = run("compile", *options)
    assert result.exit_code == 2
    assert said in re.sub(r"[\s│]+", " ", result.stderr)
    assert not builder.variants


def test_compile_fails_if_a_check_does(run, builder):
    lucky, other = compile.catalogue((90,), ("mapped",), ("ring.all_reduce", "ring.all_gather"))
    builder.objects = {other}
    result = run(
        "compile", "--arch", 90, "--link", "mapped", "--kernel", "ring.all_reduce", "--kernel", "ring.all_gather"
    )
    assert result.exit_code == 1
    assert re.search(rf"{re.escape(str(lucky))} .* passed", result.stdout)
    assert re.search(rf"{re.escape(str(other))} .* failed", result.stdout)
    assert result.stderr.strip() == f"{other}: luck: none"


def test_compile_says_what_does_not_compile(run, builder):
    builder.error = RuntimeError("ring.all_reduce mapped sm_90 [bold] does not compile: at 1:2")
    result = run("compile", "--link", "mapped")
    assert result.exit_code == 1
    assert result.stderr.strip() == "tricoll: ring.all_reduce mapped sm_90 [bold] does not compile: at 1:2"


def test_compile_says_what_to_install(run, builder, monkeypatch):
    def nothing(arch):
        raise FileNotFoundError(
            f"no NVSHMEM device bitcode for sm_{arch}: NVSHMEM is not installed; {bitcode._INSTALL}"
        )

    monkeypatch.setattr(bitcode, "slim", nothing)
    result = run("compile", "--arch", 90)
    assert result.exit_code == 2
    assert 'sm_90: NVSHMEM is not installed; pip install "tricoll[cu13]"' in result.stderr
    assert "--link mapped" in result.stderr
    assert not builder.variants
    assert run("compile", "--arch", 90, "--link", "mapped").exit_code == 0


def test_compile_writes_markdown(run, builder, tmp_path):
    path = tmp_path / "docs" / "resources.md"
    assert run("compile", "--arch", 90, "--kernel", "ring.all_reduce", "--markdown", path).exit_code == 0
    text = path.read_text()
    assert "**Nothing here ran on a GPU**" in text
    assert "| ring.all_reduce | mapped | sm_90 | fp32:bf16:fp32 | avg | 100 | 0 | 8192 | 40 KiB |" in text
    assert "| ring.all_reduce | put | sm_90 |" in text
    assert text.endswith("|\n")


def test_a_kernel_is_really_compiled(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    result = run("compile", "--arch", 90, "--link", "mapped", "--kernel", "ring.all_gather", "--jobs", 1)
    assert result.exit_code == 0, result.stderr
    variant = Variant("ring.all_gather", "mapped", 90, *compile.BF16_WIRE, "sum")
    assert re.search(rf"{re.escape(str(variant))} +\d+ +0 +\d+ KiB .* passed", result.stdout)
    assert list((tmp_path / "cache").rglob("all_gather.cubin"))
    assert gates.problems(compile.build(variant)) == []
