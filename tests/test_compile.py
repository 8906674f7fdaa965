"""The compile gate: every kernel becomes machine code for every architecture and link, and the code is what it must be.

None of it runs here. The gates themselves are tested too: each objects to a kernel that was broken for it.
"""

import collections
import dataclasses
import hashlib
import importlib
import itertools
import os
import re
import shutil
import subprocess
from concurrent.futures import wait
from pathlib import Path

import gpu_stand_in
import pytest
import torch
import triton

from tricoll import arguments, bitcode, compile, dispatch
from tricoll.compile import BF16_WIRE, GPU, KERNELS, catalogue

pytest.importorskip("llvmlite", reason="llvmlite is not installed: pip install 'tricoll[cu13]'")
try:
    bitcode.find(80)
except FileNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)

pytestmark = pytest.mark.timeout(600)  # the first test waits for compilers that run side by side

TRIPLE = torch.bfloat16, torch.bfloat16, torch.bfloat16
FP16_ON_FP32 = torch.float16, torch.float32, torch.float16
MAIN = catalogue()
OTHER_DTYPES = [
    *catalogue((90,), ("mapped",), dtypes=(TRIPLE,)),
    *catalogue((90,), ("mapped",), ("ring.all_reduce",), dtypes=(TRIPLE, FP16_ON_FP32), ops=("sum",)),
]
COUNTING = [
    *catalogue(links=("mapped",), tally=True),
    *catalogue((90,), ("put",), ("ring.all_reduce",), tally=True),
]
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def variants(*chosen):
    """Run a test with the binary of each of these variants, as ``compiled``."""
    return pytest.mark.parametrize("compiled", chosen, ids=str, indirect=True)


CACHE = Path(triton.knobs.cache.dir) / "tricoll"


def cache_for(sources):
    """A folder of Triton's cache for one state of the kernels: Triton's own keys do not see into primitives."""
    text = b"".join(path.read_bytes() for path in sorted(sources.glob("*.py")))
    return str(CACHE / hashlib.sha256(text).hexdigest()[:16])


KERNEL_SOURCES = Path(importlib.import_module("tricoll.kernels").__file__).parent


@pytest.fixture(scope="module", autouse=True)
def cache():
    """What was compiled is there in the next session, if the kernels are still the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", cache_for(KERNEL_SOURCES))
        yield


@pytest.fixture(scope="module")
def builds(request, cache):
    """The binaries that the tests of this module ask for: compiled side by side, while tests look at the first."""
    calls = [item.callspec for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    wanted = {call.params["compiled"]: None for call in calls if "compiled" in call.params}
    with compile.processes(os.cpu_count()) as pool:
        yield {variant: pool.submit(compile.build, variant) for variant in wanted}
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def alone(builds):
    """Nothing is being compiled while this test changes how that is done."""
    wait(builds.values())


@pytest.fixture
def compiled(request, builds):
    """The binary of a variant."""
    return builds[request.param].result()


# The gates


@pytest.mark.parametrize("gate", compile.GATES.values(), ids=compile.GATES.keys())
@variants(*MAIN, *OTHER_DTYPES, *COUNTING)
def test_gate(gate, compiled):
    assert gate(compiled) is None


def test_every_kernel_is_in_the_gate():
    assert set(KERNELS) == set(compile.SHAPES), "say in compile.SHAPES what is written out in a new kernel"
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


# What a letter of a bulk loop costs with 16 elements a thread, FP32 in and out, BF16 on the wire.
LETTERS = {
    "O": compile.Loop(4, 0, 0, 0, 0),
    "R": compile.Loop(2, 0, 0, 0, 0),
    "K": compile.Loop(0, 4, 0, 0, 0),
    "S": compile.Loop(0, 2, 0, 0, 0),
    "Q": compile.Loop(2, 0, 1, 0, 0),
    "P": compile.Loop(0, 2, 3, 0, 0),
    "A": compile.Loop(0, 0, 0, 0, 0),
    "W": compile.Loop(0, 0, 0, 0, 0),
    "w": compile.Loop(0, 0, 0, 0, 0),
}


@variants(*MAIN)
def test_bulk_loops_are_all_the_code_that_moves_blocks(compiled):
    def loop(word):
        total = compile.Loop(*map(sum, zip(*(LETTERS[letter] for letter in word))))
        if "P" in word and compiled.variant.link == "put":
            total = total._replace(narrow=1)  # no address of a peer's heap is looked up
        rounds = set(word) & {"S", "W"} and set(word) & {"O", "A"}  # to the wire dtype, and not from it
        return total._replace(pairs=8 if rounds else 0)

    inner = [loop(word) for word in compiled.shape.loops]
    every = inner + [loop(word) for word in compiled.shape.around]
    assert sorted(compiled.loops) == sorted(inner)
    assert compiled.loads == sum(each.loads for each in every)
    assert compiled.stores == sum(each.stores for each in every)
    pairs, singles = (len(re.findall(rf"\b(?:{kind})\b", compiled.ptx)) for kind in (compile._PAIR, compile._SINGLE))
    assert 2 * pairs + singles >= 2 * sum(each.pairs for each in every), "LLVM may not find all pairs"


@variants(*(v for v in MAIN if v.link == "mapped"))
def test_the_machine_code_keeps_what_the_ptx_says(compiled, tmp_path):
    path = tmp_path / "kernel.cubin"
    path.write_bytes(compiled.cubin)
    sass = subprocess.run([TOOLS / "nvdisasm", "-c", path], check=True, capture_output=True, text=True).stdout
    count = lambda pattern: len(re.findall(pattern, sass))
    assert count(r"\bLDG\.E\.128\b") >= compiled.loads  # ptxas may unroll
    assert count(r"\bSTG\.E\.128\b") >= compiled.stores
    assert count(r"\bF2FP\.BF16\S*PACK_AB\b") >= compiled.conversions
    assert not count(r"\b(?:LDL|STL)\b"), "local memory: spills"
    releases = compiled.ptx.count("sys.release.exch")
    assert count(r"\bMEMBAR\.\w+\.SYS\b") >= releases > 0
    assert count(r"\bATOMG\.E\.EXCH\.64\.STRONG\.SYS\b") == count(r"\bMEMBAR\.\w+\.SYS\b")
    # An acquire throws away what the SM's first-level cache holds of the slots.
    assert count(r"\bCCTL\.IVALL\b") >= compiled.ptx.count("ld.global.sys.acquire")


@variants(MAIN[0], next(v for v in MAIN if v.link == "put"))
def test_symbols_are_those_that_cuobjdump_sees(compiled, tmp_path):
    path = tmp_path / "kernel.cubin"
    path.write_bytes(compiled.cubin)
    command = [TOOLS / "cuobjdump", "--dump-elf-symbols", path]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    symbols = [line.split() for line in printed.splitlines() if line.startswith("STT_")]
    undefined = {words[-1] for words in symbols if "U" in words and not words[-1].startswith(".nv.")}
    exported = {words[-1] for words in symbols if "STB_GLOBAL" in words} - undefined
    assert compiled.undefined == undefined
    assert compiled.exported == {name for name in exported if not name.startswith(".nv.")}
    assert KERNELS[compiled.variant.kernel].kernel.__name__ in exported
    assert 0 < compiled.code < len(compiled.cubin)


# Barriers stop a CTA for good unless all of its threads come to them, so the branches around them must be uniform.

INSTRUCTION = re.compile(r"(?:\{ )?(?:@!?(?P<guard>%\w+)\s+)?(?P<name>[a-z][\w.:]*)\s*(?P<operands>.*);")
# What each thread sees for itself. Other loads count as uniform, as they read what does not change during a kernel, or
# what one thread has left for all (shared memory; the status block's scratch word, by ld.volatile.global).
DIFFERS = re.compile(r"%tid\b|%laneid|%globaltimer|%clock|^elect|^shfl|^activemask|^atom|^ld\.volatile\.b|\.acquire\b")
NO_RESULT = re.compile(r"st\.|bra|ret|bar|call|red\.|fence|membar|cp\.|mbarrier|trap|exit")


class Flow:
    """The basic blocks of a kernel in PTX, the blocks after each, and those that every path from it comes through."""

    def __init__(self, ptx):
        body = ptx[ptx.index(".entry") :]
        self.blocks, labels = [[]], {}
        for line in body[: body.index("$L__func_end")].splitlines():
            line = line.split("//")[0].strip()
            if label := re.match(r"(\$L__BB\w+):", line):
                labels[label[1]] = len(self.blocks)
                self.blocks.append([])
            elif (match := INSTRUCTION.match(line)) and not line.startswith("."):
                self.blocks[-1].append(match.group("guard", "name", "operands"))
                if match["name"].startswith(("bra", "ret")):
                    self.blocks.append([])
        self.end = len(self.blocks)
        self.after = []
        for i, block in enumerate(self.blocks):
            guard, name, operands = block[-1] if block else (None, "", "")
            jump = [labels[operands.strip()]] if name.startswith("bra") else [self.end] if name == "ret" else []
            self.after.append(jump if jump and guard is None else [*jump, i + 1])
        self.before = collections.defaultdict(set)
        for i, after in enumerate(self.after):
            for j in after:
                self.before[j].add(i)
        everything = set(range(self.end + 1))
        self.always = [everything] * self.end + [{self.end}]
        changed = True
        while changed:
            changed = False
            for i in reversed(range(self.end)):
                new = {i}.union(set.intersection(*(self.always[j] for j in self.after[i])))
                changed |= new != self.always[i]
                self.always[i] = new

    def either(self, i):
        """The blocks that a thread may come through after block i, and may not."""
        found, todo = set(), list(self.after[i])
        while todo:
            j = todo.pop()
            if j not in found and (j == i or j not in self.always[i]):
                found.add(j)
                todo += self.after[j]
        return found


def split(name, operands):
    """The registers that an instruction sets, and those that it reads."""
    registers = re.findall(r"[%\w.]+", operands)
    if NO_RESULT.match(name):
        return [], registers
    vector = re.match(r"\{([^}]*)\}", operands)
    count = len(vector[1].split(",")) if vector else 2 if "|" in operands.split(",")[0] else 1
    return registers[:count], registers[count:]


def divergent_barriers(ptx):
    """The branches that threads of a CTA may take differently and that have a barrier on one side only."""
    flow = Flow(ptx)
    code = [[(guard, name, operands, *split(name, operands)) for guard, name, operands in b] for b in flow.blocks]
    own = set()  # registers that may differ from thread to thread

    def values(register, i, inside):
        """What a register can hold where the ways through ``inside`` that part after block i meet again."""
        found, seen = set(), set()
        todo = [j for j in inside | {i} if any(k not in inside for k in flow.after[j])]
        while todo:
            j = todo.pop()
            if j not in seen:
                seen.add(j)
                setters = [(name.split(".")[0], operands) for _, name, operands, to, _ in code[j] if register in to]
                if setters or j == i:
                    found.add(setters[-1] if setters else None)
                else:
                    todo += flow.before[j] & (inside | {i})
        return found

    while True:
        known, bad = len(own), []
        for guard, name, operands, to, read in itertools.chain(*code):
            if DIFFERS.search(name) or DIFFERS.search(operands) or guard in own or own.intersection(read):
                own.update(to)
        for i, block in enumerate(flow.blocks):
            if not block or not block[-1][1].startswith("bra") or block[-1][0] not in own:
                continue
            inside = flow.either(i)
            for register in {r for j in inside for *_, to, _ in code[j] for r in to} - own:
                ends = values(register, i, inside)
                if len(ends) > 1 or any(end and end[0] != "mov" for end in ends):
                    own.add(register)
            if any(re.match(r"bar\.sync|barrier", name) for j in inside for _, name, _ in flow.blocks[j]):
                bad.append(block[-1])
        if len(own) == known:
            return bad


# On sm_80: elsewhere NVSHMEM's own code has branches that cannot be told to be uniform. The kernels' are the same. Nor
# can it be told of polls: they end for all threads by a reduction over the CTA, of which every thread has the result,
# but by shuffles.
@variants(*(v for v in MAIN if (v.link == "mapped" or v.arch == 80) and not compile.SHAPES[v.kernel].polls))
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
    return {name for name, gate in compile.GATES.items() if gate(c)}, c


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
    assert compile.GATES["exact arithmetic"](dataclasses.replace(c, fused=False)), "the PTX shows it as well"


@variants(MAIN[0])
def test_gates_that_no_kernel_can_fail_yet(compiled):
    def gates(**changes):
        problems = dataclasses.replace(compiled, **changes).problems
        return {gate for gate in compile.GATES for problem in problems if f": {gate}: " in problem}

    assert gates() == set()
    assert gates(undefined=frozenset({"nvshmem_team_my_pe"})) == {"symbols"}
    assert gates(undefined=frozenset({"vprintf"})) == set()
    assert gates(ptx=compiled.ptx + "\ncall.uni nvshmem_quiet, ();\n") == {"no NVSHMEM"}
    assert gates(registers=256) == {"registers"}
    assert gates(local=8) == {"no spills"}


@variants(next(v for v in MAIN if v.link == "put"))
def test_the_state_that_the_host_side_looks_for(compiled):
    lost = dataclasses.replace(compiled, exported=compiled.exported - {bitcode.STATE[0]})
    assert bitcode.STATE[0] in compile.GATES["symbols"](lost)


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
    found, c = objections(GATHER, settings=small)
    assert found == set()
    assert max(c.loops) == compile.Loop(2, 3, 0, 4, 0), "8 elements a thread: read FP32, write BF16 and FP32"
