"""Compiling ahead of time: what is compiled is what calls launch, and a launch finds it."""

import gpu_stand_in
import pytest
import torch
import triton
from binaries import MAIN, variants

from tricoll import arguments, compile, dispatch, gates
from tricoll.compile import BF16_WIRE, GPU, KERNELS, catalogue
from tricoll.machine_code import Loop

pytestmark = pytest.mark.timeout(600)  # the first test waits for compilers that run side by side


# A launch finds what was compiled ahead of time


@pytest.fixture(scope="module")
def launches():
    """What the communicator passes to each kernel, for both kinds of link: from one call of each collective."""

    def calls(comm):
        x = torch.ones(compile.WORLD_SIZE, 16)
        for algorithm, collective in arguments.KERNELS:
            if collective in ("all_reduce", "reduce_scatter", "reduce", "all_gather", "broadcast"):
                if algorithm == "multimem" and not comm._settings.mapped:
                    continue
                op = {} if collective in ("all_gather", "broadcast") else {"op": "avg"}
                getattr(comm, collective)(x.clone(), wire="bf16", algo=algorithm, **op)

    seen = gpu_stand_in.launches(calls, compile.WORLD_SIZE, "mapped", "put")
    rooted = lambda kernel, given: given["ROOTED"] if "ROOTED" in kernel.arg_names else None
    return {(link, kernel, rooted(kernel, given)): given for link, kernel, given in seen}


@variants(*(v for v in MAIN if v.arch == 90))
def test_a_launch_looks_up_what_was_compiled(compiled, launches, monkeypatch, alone):
    variant = compiled.variant
    kernel, _, constants = KERNELS[variant.kernel]
    hits, modules = [], []
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda *, cache_hit, **_: hits.append(cache_hit))
    given = launches[variant.link, kernel, constants.get("ROOTED")]
    with gpu_stand_in.gpu(variant.arch, [kernel]) as driver:
        launch = gpu_stand_in.launcher(variant.link, variant.arch, modules.append)
        for _ in range(2):
            launch(kernel, GPU.channels, given)
    assert hits == [True], "found in the cache, once"
    assert (len(driver.loaded), modules) == (1, [71]), "loaded and initialised once"
    for launched in driver.launched:
        assert (launched.grid, launched.stream) == ((GPU.channels, 1, 1), 5)
        assert launched.metadata.hash == compiled.hash
        assert launched.metadata.launch_cooperative_grid
        assert list(launched.args) == [given[name] for name in kernel.arg_names]
    assert len(driver.launched) == 2


# The rest of the module


def test_catalogue_has_what_calls_launch():
    ints = (torch.int32, torch.int32, torch.int32)
    rings = [name for name in KERNELS if name.startswith("ring.")]
    names = [str(v) for v in catalogue((90,), ("mapped",), rings, dtypes=(BF16_WIRE, ints), ops=("avg", "sum"))]
    assert names == [
        "ring.all_reduce mapped sm_90 fp32:bf16:fp32 avg",
        "ring.all_reduce mapped sm_90 fp32:bf16:fp32 sum",
        "ring.all_reduce mapped sm_90 int32:int32:int32 sum",
        "ring.reduce_scatter mapped sm_90 fp32:bf16:fp32 avg",
        "ring.reduce_scatter mapped sm_90 fp32:bf16:fp32 sum",
        "ring.reduce_scatter mapped sm_90 int32:int32:int32 sum",
        "ring.all_gather mapped sm_90 fp32:bf16:fp32 sum",
        "ring.all_gather mapped sm_90 int32:int32:int32 sum",
    ]


def test_settings_are_those_of_the_binary():
    small = dispatch.Settings(mapped=True, channels=1, slots=8, slot_bytes=1 << 16, window=4, block=2048)
    c = compile.build(catalogue((90,), ("mapped",), ("ring.all_gather",))[0], small)
    assert gates.problems(c) == []
    assert max(c.loops) == Loop(2, 3, 0, 4, 0), "8 elements a thread: read FP32, write BF16 and FP32"
