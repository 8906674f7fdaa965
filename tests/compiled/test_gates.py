"""The gates: every kernel's machine code, for every architecture and link, is what it must be.

The gates themselves are tested too: each objects to a kernel that was broken for it.
"""

import dataclasses
import importlib
import itertools
import shutil

import pytest
from binaries import COUNTING, KERNEL_SOURCES, MAIN, OTHER_DTYPES, cache_for, variants
from divergence import divergent_barriers

from tricoll import bitcode, compile, gates
from tricoll.compile import GPU, KERNELS, catalogue

pytestmark = pytest.mark.timeout(600)  # the first test waits for compilers that run side by side


@pytest.mark.parametrize("gate", gates.GATES.values(), ids=gates.GATES.keys())
@variants(*MAIN, *OTHER_DTYPES, *COUNTING)
def test_gate(gate, compiled):
    assert gate(compiled) is None


def test_every_kernel_is_in_the_gate():
    assert set(KERNELS) == set(gates.SHAPES), "say in gates.SHAPES what is written out in a new kernel"
    combinations = {(v.kernel, v.link, v.arch) for v in MAIN}
    every = set(itertools.product(KERNELS, ("mapped", "put"), (80, 90, 100)))
    assert every - combinations == {
        *(
            ("flagged.all_reduce", "put", arch) for arch in (80, 90, 100)
        ),  # words must arrive in the peer's memory whole
        *(("multimem.all_reduce", "put", arch) for arch in (80, 90, 100)),  # a switch is between mapped peers
        ("multimem.all_reduce", "mapped", 80),  # which has no such instruction
    }


REGISTERS = {  # of mapped kernels: what was recorded, and a little; raise it knowingly
    "ring.all_reduce": 216,
    "ring.reduce_scatter": 184,
    "ring.all_gather": 176,
    "rooted.broadcast": 160,
    "rooted.reduce": 168,
    "tree.all_reduce": 192,
    "direct.two_shot": 176,
    "direct.two_shot.reduce": 168,
    "direct.reduce_scatter": 160,
    "direct.one_shot": 160,
    "exchange.exchange": 168,
    "hierarchical.all_reduce": 236,
    "hierarchical.reduce_scatter": 208,
    "hierarchical.all_gather": 208,
    "multimem.all_reduce": 160,
    "flagged.all_reduce": 144,
}


@variants(*MAIN)
def test_register_count(compiled):
    mapped = compiled.variant.link == "mapped"
    assert 32 < compiled.registers <= (REGISTERS[compiled.variant.kernel] if mapped else 255)


@variants(*COUNTING)
def test_a_tally_adds_no_spill_and_no_pass_over_memory(compiled):
    plain = dataclasses.replace(compiled.variant, tally=False)
    without = compile.build(plain)
    assert not (compiled.stack or compiled.local) or compiled.variant.link == "put"  # where NVSHMEM's calls take some
    assert (compiled.loads, compiled.stores) == (without.loads, without.stores)
    assert sorted(loop[:3] for loop in compiled.loops) == sorted(loop[:3] for loop in without.loops)


# On sm_80: elsewhere NVSHMEM's own code has branches that cannot be told to be uniform. The kernels' are the same. Nor
# can it be told of polls: they end for all threads by a reduction over the CTA, of which every thread has the result,
# but by shuffles.
@variants(*(v for v in MAIN if (v.link == "mapped" or v.arch == 80) and not gates.SHAPES[v.kernel].polls))
def test_no_barrier_is_in_a_branch_that_threads_take_differently(compiled):
    assert compiled.ptx.count("bar.sync") > 20
    assert divergent_barriers(compiled.ptx) == []


def test_branches_are_judged():
    def ptx(condition):
        lines = [".entry k(", "{", "ld.param.b64 %rd1, [k_param_0];", "mov.u32 %r1, %tid.x;", condition]
        lines += ["@%p1 bra $L__BB0_2;", "bar.sync 0;", "$L__BB0_2:", "ret;", "$L__func_end0:"]
        return "\n".join(lines)

    assert divergent_barriers(ptx("setp.eq.b64 %p1, %rd1, 0;")) == []
    assert divergent_barriers(ptx("setp.eq.b32 %p1, %r1, 0;")) == [("%p1", "bra", "$L__BB0_2")]


# Each gate can fail


@pytest.fixture
def broken(tmp_path, monkeypatch, alone):
    """``broken(file, old, new)``: from now on, kernels are those of a copy in which some text was replaced."""

    def copy(file, old, new):
        name = f"broken_{tmp_path.name}"
        shutil.copytree(KERNEL_SOURCES, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        path = tmp_path / name / file
        assert old in path.read_text(), "the test's text is out of date"
        path.write_text(path.read_text().replace(old, new))
        monkeypatch.setenv("TRITON_CACHE_DIR", cache_for(tmp_path / name))
        monkeypatch.syspath_prepend(tmp_path)
        ring = importlib.import_module(f"{name}.ring")
        monkeypatch.setattr(
            compile, "KERNELS", {f"ring.{key}": compile.Entry(getattr(ring, key), "ring", {}) for key in dir(ring)}
        )

    return copy


GATHER, SCATTER, REDUCE = "ring.all_gather", "ring.reduce_scatter", "ring.all_reduce"
WRITTEN = "    shmem.barrier()  # every thread has written"
READ = "    shmem.barrier()  # every thread has read"


def objections(kernel, link="mapped", arch=90, settings=GPU):
    """The gates that object to a kernel."""
    c = compile.build(catalogue((arch,), (link,), (kernel,))[0], settings)
    return {name for name, gate in gates.GATES.items() if gate(c)}, c


@pytest.mark.parametrize(
    ("file", "old", "new", "kernel", "link", "gate"),
    [
        ("ring.py", "piece = piece // 16 * 16", "piece = piece * 1", GATHER, "mapped", "16-byte accesses"),
        ("chunks.py", "at = at // 16 * 16", "at = at * 1", GATHER, "mapped", "16-byte accesses"),
        ("tiles.py", "whole = n // 16 * 16", "whole = n * 1", GATHER, "mapped", "16-byte accesses"),
        ("numerics.py", "elif on_cpu() and DTYPE", "elif DTYPE", GATHER, "mapped", "hardware BF16"),
        (
            "numerics.py",
            "tl.div_rn(v, red.world.to(tl.float32))",
            "v / red.world",
            SCATTER,
            "mapped",
            "exact arithmetic",
        ),
        ("link.py", WRITTEN, "    #", GATHER, "mapped", "release and acquire"),
        ("link.py", READ, "    #", GATHER, "mapped", "release and acquire"),
        ("link.py", READ, "    #", GATHER, "put", "release and acquire"),
        ("shmem.py", 'sem="release"', 'sem="relaxed"', GATHER, "mapped", "release and acquire"),
        ("shmem.py", 'sem="acquire"', 'sem="relaxed"', GATHER, "mapped", "release and acquire"),
        ("shmem.py", "_signal_wait_until(flag, word)\n", "word = word + 0\n", GATHER, "put", "release and acquire"),
        ("shmem.py", "_uniform(cuda.globaltimer(), scratch) - start", "start", GATHER, "mapped", "bounded waits"),
        ("shmem.py", "if _thread() == 0:", "if pe >= 0:", GATHER, "put", "one signal"),
    ],
)
def test_a_gate_objects_to(broken, file, old, new, kernel, link, gate):
    broken(file, old, new)
    assert gate in objections(kernel, link, arch=80 if link == "put" else 90)[0]


@pytest.mark.parametrize(
    ("old", "new", "link"),
    [
        ("_uniform(cuda.globaltimer(), scratch) - start", "cuda.globaltimer() - start", "mapped"),
        ("word = _uniform(_signal_fetch(flag), scratch)", "word = _signal_fetch(flag)", "put"),
    ],
)
def test_branches_are_judged_in_a_kernel(broken, old, new, link):
    broken("shmem.py", old, new)
    assert divergent_barriers(objections(GATHER, link, arch=80)[1].ptx)


def test_a_function_that_nvshmem_does_not_have(broken):
    broken("shmem.py", '"nvshmemx_signal_op"', '"nvshmemx_signal_opp"')
    with pytest.raises(RuntimeError, match=r"ring\.all_gather put sm_80 .* does not compile"):
        objections(GATHER, "put", arch=80)


def test_the_register_limit_is_needed_against_spills(monkeypatch, alone):
    chosen = compile.options("mapped", 80)
    monkeypatch.setattr(compile, "options", lambda *_: {**chosen, "maxnreg": None})
    assert objections(REDUCE, arch=80)[0] == {"no spills"}


def test_fused_arithmetic(broken, monkeypatch):
    broken("tiles.py", "    v = finish(v, red, OP)", "    v = finish(v * 3 + v, red, OP)")
    assert objections(SCATTER)[0] == set()
    chosen = compile.options("mapped", 90)
    monkeypatch.setattr(compile, "options", lambda *_: {**chosen, "enable_fp_fusion": True})
    found, c = objections(SCATTER)
    assert found == {"exact arithmetic"}
    assert gates.GATES["exact arithmetic"](dataclasses.replace(c, fused=False)), "the PTX shows it as well"


@variants(MAIN[0])
def test_gates_that_no_kernel_can_fail_yet(compiled):
    def objects(**changes):
        found = gates.problems(dataclasses.replace(compiled, **changes))
        return {gate for gate in gates.GATES for problem in found if f": {gate}: " in problem}

    assert objects() == set()
    assert objects(undefined=frozenset({"nvshmem_team_my_pe"})) == {"symbols"}
    assert objects(undefined=frozenset({"vprintf"})) == set()
    assert objects(ptx=compiled.ptx + "\ncall.uni nvshmem_quiet, ();\n") == {"no NVSHMEM"}
    assert objects(registers=256) == {"registers"}
    assert objects(local=8) == {"no spills"}


@variants(MAIN[0])
def test_a_kernel_that_nobody_has_described(compiled):
    new = dataclasses.replace(compiled, variant=dataclasses.replace(compiled.variant, kernel="chain.all_reduce"))
    assert gates.problems(new) == [
        "chain.all_reduce mapped sm_80 fp32:bf16:fp32 avg: not checked: "
        "say in SHAPES of tricoll/gates.py what is written out in this kernel"
    ]


@variants(next(v for v in MAIN if v.link == "put"))
def test_the_state_that_the_host_side_looks_for(compiled):
    lost = dataclasses.replace(compiled, exported=compiled.exported - {bitcode.STATE[0]})
    assert bitcode.STATE[0] in gates.GATES["symbols"](lost)
