"""Compile kernels to machine code without a GPU, and check what came out.

A :class:`Variant` names one binary: a kernel, a kind of link, an architecture and the dtypes. :func:`build` compiles it
exactly as a launch would, so it lands in Triton's cache under the key that the launch looks up (with the settings of
:mod:`tricoll.gpu` and 16-byte aligned tensors). :data:`GATES` are what must hold for the machine code: on no machine
without several GPUs can it be run, so it is read instead.
"""

from __future__ import annotations

import itertools
import multiprocessing
import re
import struct
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.errors import TritonError
from triton.runtime.jit import MockTensor, create_function_from_signature

from . import arguments, bitcode, dispatch
from .gpu import GPU, REGISTERS, WARPS, options
from .kernels.jit import TRITON

ARCHS = (80, 90, 100)
LINKS = ("mapped", "put")
BF16_WIRE = (torch.float32, torch.bfloat16, torch.float32)  # input, wire, output: what the gradient hooks send
DTYPES = (
    BF16_WIRE,
    (torch.float32, torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16, torch.float16),
)
"""The dtypes that are worth compiling ahead of time."""
WORLD_SIZE = 8


class Shape(NamedTuple):
    """What is written out in a kernel, so what its machine code must have.

    A bulk loop is a word in the letters of tiles.py: it reads Own and Recv, writes Keep and Send. Where many slots are
    read or written in a loop of its own: Q for a share that is read, P for a peer's slot that is written, both after a
    look at where it is; around it, A for the sum, W if it is rounded to the wire dtype, w if the compiler may write
    that out a second time, in another branch.
    """

    loops: tuple[str, ...]  # innermost ones
    sends: int  # acquire and publish
    receives: int  # await_data and release
    around: tuple[str, ...] = ()  # what loops around others do besides
    tells: int = 2  # to give up
    polls: int = 0  # for words with flags in them

    @property
    def waits(self) -> int:
        """As many as there are hand-overs: before a slot is written, and before it is read."""
        return self.sends + self.receives


SHAPES = {
    "ring.all_reduce": Shape(("OS", "ORS", "ORKS", "RKS", "RK"), 4, 4),
    "ring.reduce_scatter": Shape(("OS", "ORS", "ORK"), 2, 2),
    "ring.all_gather": Shape(("OKS", "RKS", "RK"), 2, 2),
    "rooted.broadcast": Shape(("OKS", "OS", "RKS", "RS", "RK"), 4, 1),
    "rooted.reduce": Shape(("ORRS", "ORKS", "ORS", "OS"), 1, 2),
    "tree.all_reduce": Shape(("ORRS", "ORS", "OS", "ORKS", "RKS", "RK", "RS"), 4, 3, tells=12),
    "direct.two_shot": Shape(("OS", "OS", "Q", "P", "RK"), 2, 2, around=("QAWK",)),
    "direct.two_shot.reduce": Shape(("OS", "OS", "Q", "P", "RK"), 2, 2, around=("QAW",)),
    "direct.one_shot": Shape(("OS", "OS", "Q"), 1, 1, around=("QAWK",)),
    "direct.reduce_scatter": Shape(("OS", "OS", "Q"), 1, 1, around=("QAK",)),
    "hierarchical.all_reduce": Shape(("OS", "OS", "Q", "P", "RK"), 3, 3, around=("QRRAWwSK",), tells=4),
    "hierarchical.reduce_scatter": Shape(("OS", "OS", "Q"), 2, 2, around=("QRAWwSK",), tells=4),
    "hierarchical.all_gather": Shape(("OS", "P", "RK"), 2, 2, around=("RWSK",), tells=4),
    "exchange.exchange": Shape(("OS", "OKS", "RK"), 1, 1),
    "multimem.all_reduce": Shape(("OS", "RAK"), 1, 1),
    "flagged.all_reduce": Shape((), 0, 0, polls=2),
}


class Entry(NamedTuple):
    """A kernel as it is launched."""

    kernel: Any
    family: str
    constants: dict[str, Any]  # of its own


def _entries() -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for (algorithm, collective), kernel in arguments.KERNELS.items():
        name, constants = f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}", {}
        if "ROOTED" in kernel.arg_names:
            constants["ROOTED"] = collective == "reduce"
            name += ".reduce" if constants["ROOTED"] else ""
        # 1 byte: never with flags in the data.
        found.setdefault(name, Entry(kernel, dispatch.family(algorithm, collective, 1, GPU), constants))
    for kernel in arguments.FLAGGED.values():
        found[f"flagged.{kernel.__name__}"] = Entry(kernel, "flagged", {})
    return found


KERNELS = _entries()
"""By file and function; .reduce where there is a variant of it for one rank."""
DRIVER = {"vprintf", "__assertfail"}
"""Functions that the CUDA driver supplies when it loads a kernel."""


@dataclass(frozen=True)
class Variant:
    """One binary of a kernel."""

    kernel: str  # one of KERNELS
    link: str
    arch: int  # 90 for sm_90
    x: torch.dtype
    wire: torch.dtype
    out: torch.dtype
    op: str
    tally: bool = False  # whether it counts what it reduces

    @property
    def dtypes(self) -> str:
        """Input, wire and output: fp32:bf16:fp32."""
        return ":".join(str(TRITON[d]) for d in (self.x, self.wire, self.out))

    def __str__(self) -> str:
        return f"{self.kernel} {self.link} sm_{self.arch} {self.dtypes} {self.op}{' tally' * self.tally}"


class Loop(NamedTuple):
    """What one pass of a bulk loop does, a thread."""

    loads: int  # of 16 bytes
    stores: int
    narrow: int  # other accesses to global memory
    pairs: int  # of numbers rounded to BF16 by one instruction, a conversion or an addition
    singles: int  # numbers rounded to BF16 by one instruction each


@dataclass(frozen=True)
class Compiled:
    """The machine code of a variant and what was found in it. Sizes are in bytes."""

    variant: Variant
    settings: dispatch.Settings
    hash: str  # the name of Triton's cache entry
    cubin: bytes
    ptx: str
    ttir: str
    fused: bool  # whether a multiplication and an addition may become one instruction
    registers: int  # a thread
    stack: int  # a thread
    local: int  # a thread
    shared: int  # a program, asked for at launch
    code: int
    loops: tuple[Loop, ...]  # those with accesses of 16 bytes
    instructions: int  # of PTX, in loops with accesses of 16 bytes
    loads: int  # of 16 bytes, here and below in the whole program
    stores: int
    conversions: int
    exported: frozenset[str]
    undefined: frozenset[str]
    seconds: float

    @property
    def shape(self) -> Shape:
        """What there must be."""
        return SHAPES[self.variant.kernel]

    @property
    def problems(self) -> list[str]:
        """What the gates object to."""
        return [f"{self.variant}: {name}: {said}" for name, gate in GATES.items() if (said := gate(self))]


def catalogue(
    archs: Iterable[int] = ARCHS,
    links: Iterable[str] = LINKS,
    kernels: Iterable[str] = tuple(KERNELS),
    dtypes: Iterable[tuple[torch.dtype, torch.dtype, torch.dtype]] = (BF16_WIRE,),
    ops: Iterable[str] = ("avg",),
    tally: bool = False,
) -> list[Variant]:
    """All combinations, with a ``tally`` or without one, but for those that no call launches: moves have no operator,
    only floats have a mean, flags are inside the data and switches add on mapped links only, and those from sm_90 on.
    """
    variants: dict[Variant, None] = {}
    for arch, link, kernel, (x, wire, out), op in itertools.product(archs, links, kernels, dtypes, ops):
        if kernel.endswith((".all_gather", ".broadcast", ".exchange")):
            op = "sum"
        if kernel.startswith(("flagged.", "multimem.")) and link == "put":
            continue
        if kernel.startswith("multimem.") and arch < 90:
            continue
        if tally and ("tally" not in KERNELS[kernel].kernel.arg_names or kernel.endswith(".reduce")):
            continue
        if op == "sum" or x.is_floating_point:
            variants[Variant(kernel, link, arch, x, wire, out, op, tally)] = None
    return list(variants)


def build(variant: Variant, settings: dispatch.Settings = GPU, world_size: int = WORLD_SIZE) -> Compiled:
    """Compile a variant, or take it from Triton's cache.

    The world size matters to the direct algorithms, whose slots share what a ring has for one link.

    FileNotFoundError or RuntimeError, saying what to install, if the variant needs NVSHMEM and it is not there;
    RuntimeError if it does not compile.
    """
    target = GPUTarget("cuda", variant.arch, 32)
    chosen = options(variant.link, variant.arch)
    source = _source(variant, settings, world_size, target, chosen)
    start = time.perf_counter()
    try:
        result = triton.compile(source, target=target, options=chosen)
    except TritonError as error:
        raise RuntimeError(f"{variant} does not compile: {error}") from error
    seconds = time.perf_counter() - start
    cubin, ptx = result.asm["cubin"], result.asm["ptx"]
    usage = _resources(cubin)
    code, exported, undefined = _elf(cubin)
    return Compiled(
        variant,
        settings,
        result.hash,
        cubin,
        ptx,
        result.asm["ttir"],
        fused=result.metadata.enable_fp_fusion,
        registers=usage["REG"],
        stack=usage["STACK"],
        local=usage["LOCAL"],
        shared=result.metadata.shared,
        code=code,
        loops=tuple(bulk_loops(ptx)),
        instructions=sum(map(_length, _INNERMOST.finditer(ptx))),
        loads=len(re.findall(_LOAD, ptx)),
        stores=len(re.findall(_STORE, ptx)),
        conversions=ptx.count("cvt.rn.bf16x2.f32"),
        exported=exported,
        undefined=undefined,
        seconds=seconds,
    )


def build_all(
    variants: Iterable[Variant], jobs: int = 1, settings: dispatch.Settings = GPU, world_size: int = WORLD_SIZE
) -> Iterator[Compiled]:
    """Compile several variants, ``jobs`` at a time; each is yielded when it is done."""
    with processes(jobs) as pool:
        futures = [pool.submit(build, variant, settings, world_size) for variant in variants]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def processes(jobs: int) -> ProcessPoolExecutor:
    """Processes to compile in: started afresh, as a fork would copy other libraries' threads half."""
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))


def _source(
    variant: Variant, settings: dispatch.Settings, world_size: int, target: GPUTarget, chosen: dict[str, Any]
) -> ASTSource:
    """What Triton's JIT would compile at a launch, by the JIT's own functions: its cache key hangs on all of it.

    Pointers are taken to be 16-byte aligned; integers are not specialised.
    """
    kernel, family, constants = KERNELS[variant.kernel]
    given = {
        "x": MockTensor(variant.x),
        "out": MockTensor(variant.out),
        "WIRE": TRITON[variant.wire],
        "OP": variant.op,
        "MAPPED": variant.link == "mapped",
        "SLOTS": settings.slots,
        "SLOT": dispatch.slot_bytes(family, world_size, settings)
        // (8 if family == "flagged" else variant.wire.itemsize),
        "WINDOW": settings.window,
        "ALIGNED": True,
        "tally": MockTensor(torch.float64) if variant.tally else None,
        "BLOCK": arguments.block(family, settings),
        **constants,
    }
    words = MockTensor(torch.int64)
    passed = {p.name: given.get(p.name, 1 if p.annotation_type else words) for p in kernel.params}
    backend = make_backend(target)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, rest = bind(**passed, **chosen)
    _, *parts = kernel._pack_args(backend, {**passed, **chosen}, bound, specialization, rest)
    return ASTSource(kernel, *parts)  # signature, constants, attributes


def _resources(cubin: bytes) -> dict[str, int]:
    """Registers and memory of the kernel, as cuobjdump names them."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kernels = re.findall(r"^ *REG:.*", printed, re.M)
    if len(kernels) != 1:
        raise RuntimeError(f"cuobjdump said nothing of the kernel's resources: {printed!r}")
    return {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", kernels[0])}


def _elf(cubin: bytes) -> tuple[int, frozenset[str], frozenset[str]]:
    """Bytes of machine code, and the names that a cubin (64-bit ELF) exports and leaves undefined."""
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    # A section: name, type, flags, address, offset, size, link, info, alignment, entry size.
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * size) for i in range(count)]

    def text(table: int, offset: int) -> str:
        at = sections[table][4] + offset
        return cubin[at : cubin.index(b"\0", at)].decode()

    code, exported, undefined = 0, set(), set()
    for section in sections:
        if text(names, section[0]).startswith(".text"):
            code += section[5]
        if section[1] == 2:  # a symbol table; a symbol: name, kind, visibility, section, value, size
            for symbol in struct.iter_unpack("<IBBHQQ", cubin[section[4] : section[4] + section[5]]):
                name = text(section[6], symbol[0])
                if symbol[3] == 0 and name and not name.startswith(".nv."):  # ptxas itself adds such names
                    undefined.add(name)
                elif symbol[3] and symbol[1] >> 4 == 1:
                    exported.add(name)
    return code, frozenset(exported), frozenset(undefined)


# A block of instructions that ends with a jump to its own start: an innermost loop.
_INNERMOST = re.compile(
    r"^(\$L__BB\w+):.*\n((?:(?!\$L__BB).*\n)*?)[ \t]*(?:@!?%p\d+[ \t]+)?bra(?:\.uni)?[ \t]+\1;", re.M
)
_INSTRUCTION = re.compile(r"^[ \t]*(?:@!?%p\d+[ \t]+)?((?:ld|st|atom|red|cvt|add|fma)\.[\w.:]+)", re.M)
_ELSEWHERE = re.compile(r"^(?:cvt|add|fma)|\.(?:shared|param|local|const)\b")
_LOAD, _STORE = (rf"\b{name}\.global\.(?:v4\.b32|v2\.b64)" for name in ("ld", "st"))
# LLVM adds two BF16 as such where that gives the same bits; on sm_80 by fma with 1.0.
_PAIR = r"cvt\.rn\.bf16x2\.f32|(?:add|fma)\.rn\.bf16x2"
_SINGLE = r"cvt\.rn\.bf16\.f32|(?:add|fma)\.rn\.bf16"


def bulk_loops(ptx: str) -> Iterator[Loop]:
    """The innermost loops that access global memory 16 bytes at a time."""
    for match in _INNERMOST.finditer(ptx):
        names = _INSTRUCTION.findall(match[2])
        loads, stores, pairs, singles = (
            sum(bool(re.fullmatch(pattern, name)) for name in names) for pattern in (_LOAD, _STORE, _PAIR, _SINGLE)
        )
        if loads or stores:
            narrow = sum(not _ELSEWHERE.search(name) for name in names) - loads - stores
            yield Loop(loads, stores, narrow, pairs, singles)


def _length(loop: re.Match[str]) -> int:
    """Instructions of a loop with accesses of 16 bytes; 0 for others."""
    if not re.search(f"{_LOAD}|{_STORE}", loop[2]):
        return 0
    return len(re.findall(r"^[ \t]*(?:@!?%p\d+[ \t]+)?[a-z]\w*[.\w:]*[ \t].*;", loop[2], re.M))


def expected_loops(variant: Variant, words: Iterable[str], settings: dispatch.Settings = GPU) -> list[Loop]:
    """What the bulk loops must be that do this; the best case, as there are no single roundings."""
    elements = settings.block // (32 * WARPS)  # a thread
    bf16 = torch.bfloat16

    def accesses(dtype: torch.dtype) -> int:
        return elements * dtype.itemsize // 16

    loops = []
    for word in words:
        loads = word.count("O") * accesses(variant.x) + sum(map(word.count, "QR")) * accesses(variant.wire)
        stores = word.count("K") * accesses(variant.out) + (word.count("S") + word.count("P")) * accesses(variant.wire)
        # Two elements an instruction, unless what is rounded to BF16 was BF16 before and nothing was added.
        read = [letter for letter in word if letter in "ORQA"]
        exact = None if len(read) != 1 else variant.x if read == ["O"] else variant.wire
        pairs = 0
        for target in [variant.wire] * ("S" in word or "W" in word) + [variant.out] * word.count("K"):
            pairs += elements // 2 if target == bf16 != exact else 0
            exact = target if target.itemsize == 2 else exact
        # How many messages a link has carried is looked up, and the addresses of two heaps if the peer is mapped.
        lookups = word.count("Q") + word.count("P") * (3 if variant.link == "mapped" else 1)
        loops.append(Loop(loads, stores, lookups, pairs, 0))
    return sorted(loops)


# Gates. Each returns what is wrong, or nothing.


def _symbols(c: Compiled) -> str | None:
    if missing := c.undefined - DRIVER:
        return f"undefined: {', '.join(sorted(missing))}"
    if c.variant.link == "put" and (missing := frozenset(bitcode.STATE) - c.exported):
        return f"NVSHMEM's host side will look for {', '.join(sorted(missing))} in the module"
    return None


def _standalone(c: Compiled) -> str | None:
    if c.variant.link == "mapped" and (call := re.search(r"\bcall\b|\bnvshmem\w*", c.ptx)):
        return f"a mapped link needs no function, and here is {call[0]!r}"
    return None


def _wide(c: Compiled) -> str | None:
    loops, around = (expected_loops(c.variant, words, c.settings) for words in (c.shape.loops, c.shape.around))
    found, wanted = (sorted(loop[:3] for loop in each) for each in (c.loops, loops))
    if found != wanted:
        return f"16-byte loads, 16-byte stores and other accesses of the bulk loops are {found}, not {wanted}"
    # The rest of a range is masked, element by element, so there are none but those of whole blocks.
    totals = tuple(sum(loop[i] for loop in loops + around) for i in (0, 1))
    if (c.loads, c.stores) != totals:
        return f"16-byte loads and stores are {c.loads} and {c.stores} in all, not {totals[0]} and {totals[1]}"
    return None


def _rounded(c: Compiled) -> str | None:
    loops, around = (expected_loops(c.variant, words, c.settings) for words in (c.shape.loops, c.shape.around))
    found, wanted = (sorted(2 * loop.pairs + loop.singles for loop in each) for each in (c.loops, loops))
    if found != wanted:
        return f"the bulk loops round {found} numbers to BF16 by an instruction, not {wanted}"
    # All is written out again for the rest of a range, with as many elements a thread, or with one (or a copy of it).
    number = 2 * len(re.findall(rf"\b(?:{_PAIR})\b", c.ptx)) + len(re.findall(rf"\b(?:{_SINGLE})\b", c.ptx))
    if c.shape.polls:  # its words are not loaded and stored 16 bytes at a time
        return None if number or torch.bfloat16 not in (c.variant.wire, c.variant.out) else "nothing is rounded to BF16"
    elements = c.settings.block // (32 * WARPS)  # a thread
    once = sum(2 * loop.pairs for loop in loops + around)
    few = once // elements
    again = elements * sum("w" in word for word in c.shape.around)
    if number != 2 * once and not once + few <= number <= once + 2 * few + again:
        return f"{number} numbers are rounded to BF16 by an instruction in all, not {2 * once}"
    return None


def _stack(c: Compiled) -> str | None:
    if c.variant.link == "mapped" and (c.stack or c.local):  # NVSHMEM's functions are called, and calls need a stack
        return f"spills: {c.stack} bytes of stack and {c.local} of local memory a thread"
    return None


def _registers(c: Compiled) -> str | None:
    return f"{c.registers} registers a thread, more than {REGISTERS}" if c.registers > REGISTERS else None


def _exact(c: Compiled) -> str | None:
    if inexact := re.search(r"\bfma\.[\w.]*\bf(?:32|64)\w*|\b[\w.]+\.ftz\b[\w.]*|\bdiv\.(?:approx|full)[\w.]*", c.ptx):
        return f"a GPU's bits would not be the CPU's, because of {inexact[0]}"
    # An addition of BF16 may be written as fma by 1.0, which is exact.
    ones = re.findall(r"mov\.b(?:16|32) *\t(%\w+), (?:0x3F80|16256|1065369472);", c.ptx)
    if c.fused or set(re.findall(r"\bfma\.rn\.bf16(?:x2)?\s+%\w+, %\w+, (%\w+),", c.ptx)) - set(ones):
        return "a GPU's bits would not be the CPU's, because a multiplication and an addition may be fused"
    return None


def _bounded(c: Compiled) -> str | None:
    # Each wait reads the clock when it starts and in every turn.
    found, wanted = c.ptx.count("%globaltimer"), 2 * (c.shape.waits + c.shape.polls)
    return f"the waits read the clock at {found} places, not {wanted}" if found != wanted else None


_TTIR = re.compile(
    r"(?P<barrier>\b(?:ttg|gpu)\.barrier)"
    r"|(?P<data>\btt\.(?:load|store) .*tensor<)"
    r"|(?P<release>\batomic_rmw exch, release, sys|\"nvshmemx_(?:putmem_signal_nbi_block|signal_op)\")"
    r"|(?P<acquire>\batomic_rmw add, acquire, sys|\"nvshmem_signal_wait_until\")"
)
_PTX = re.compile(
    r"(?P<jump>^\$L__BB)|(?P<barrier>\bbar\.sync)|(?P<data>\.global\.v4\.b32)"
    r"|(?P<release>\batom\.global\.sys\.release\.exch\.b64)|(?P<acquire>\bld\.global\.sys\.acquire\.b64)",
    re.M,
)


def _ordered(c: Compiled) -> str | None:
    """Each message is handed over by a release after a CTA barrier, and waited for by an acquire before one."""
    mapped = c.variant.link == "mapped"
    waits = c.shape.waits
    # A put of nothing is a signal. Others are told to give up by a release, too, and each wait looks for that.
    releases = waits + c.shape.tells + (0 if mapped else c.shape.sends)
    acquires = waits * (3 if mapped else 2) + c.shape.polls
    # The kernel as it was written, where program order is the order of the text.
    steps = [match.lastgroup for match in _TTIR.finditer(c.ttir)]
    pairs = Counter(itertools.pairwise(steps))
    if (found := (steps.count("release"), steps.count("acquire"))) != (releases, acquires):
        return f"{found[0]} releases and {found[1]} acquires, not {releases} and {acquires}"
    if pairs["data", "release"] or pairs["acquire", "data"]:
        return "no barrier between the data and the release after them, or the acquire before them"
    if c.shape.polls:
        # A word brings its own flag: no order is asked for, except when others are told to give up.
        fences = re.findall(r"\b(?:fence|membar)\b\S*", c.ptx)
        return f"a word with a flag in it needs no fence, and here is {fences[0]}" if fences else None
    if mapped:  # nothing is in a library: the same from the machine's instructions, jump by jump
        steps = [match.lastgroup for match in _PTX.finditer(c.ptx)]
        pairs = Counter(itertools.pairwise(steps))
        # LLVM may have merged some; and what tells others to give up hands over no data.
        if steps.count("release") - pairs["barrier", "release"] > c.shape.tells:
            return "a release without a barrier just before it, in the PTX"
        if steps.count("acquire") != pairs["acquire", "barrier"]:
            return "an acquire without a barrier just after it, in the PTX"
        if steps.count("release") <= c.shape.tells or not steps.count("acquire"):
            return "releases or acquires are missing in the PTX"
    return None


def _once(c: Compiled) -> str | None:
    """A call is made by every thread that reaches it, so a signal must stand in a branch for thread 0."""
    lines = c.ttir.splitlines()
    for i, line in enumerate(lines):
        if '"nvshmemx_signal_op"' in line and not _for_one_thread(lines[:i], _depth(line)):
            return "a signal is sent by every thread"
    return None


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _for_one_thread(above: list[str], depth: int) -> bool:
    """Whether the branch that the next line stands in is for thread 0."""

    def definition(name: str) -> str:
        return next((line for line in reversed(above) if line.lstrip().startswith(f"{name} = ")), "")

    branch = re.search(r"scf\.if (%\w+)", next(line for line in reversed(above) if _depth(line) < depth))
    test = branch and re.search(r"arith\.cmpi eq, (%\w+), %c0_i32", definition(branch[1]))
    return bool(test and "%tid.x" in definition(test[1]))


GATES: dict[str, Callable[[Compiled], str | None]] = {
    "symbols": _symbols,
    "no NVSHMEM": _standalone,
    "16-byte accesses": _wide,
    "hardware BF16": _rounded,
    "no spills": _stack,
    "registers": _registers,
    "exact arithmetic": _exact,
    "bounded waits": _bounded,
    "release and acquire": _ordered,
    "one signal": _once,
}
