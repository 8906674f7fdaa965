"""What must hold for a kernel's machine code: on no machine without several GPUs can it be run, so it is read instead.

:data:`SHAPES` says what is written out in each kernel, :data:`GATES` what is looked at.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from . import bitcode, dispatch
from .compile import Compiled, Variant
from .gpu import GPU, REGISTERS, WARPS
from .machine_code import Loop, roundings

DRIVER = {"vprintf", "__assertfail"}
"""Functions that the CUDA driver supplies when it loads a kernel."""


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


def problems(c: Compiled) -> list[str]:
    """What the gates object to."""
    if c.variant.kernel not in SHAPES:
        return [f"{c.variant}: not checked: say in SHAPES of tricoll/gates.py what is written out in this kernel"]
    return [f"{c.variant}: {name}: {said}" for name, gate in GATES.items() if (said := gate(c))]


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
    shape = SHAPES[c.variant.kernel]
    loops, around = (expected_loops(c.variant, words, c.settings) for words in (shape.loops, shape.around))
    found, wanted = (sorted(loop[:3] for loop in each) for each in (c.loops, loops))
    if found != wanted:
        return f"16-byte loads, 16-byte stores and other accesses of the bulk loops are {found}, not {wanted}"
    # The rest of a range is masked, element by element, so there are none but those of whole blocks.
    totals = tuple(sum(loop[i] for loop in loops + around) for i in (0, 1))
    if (c.loads, c.stores) != totals:
        return f"16-byte loads and stores are {c.loads} and {c.stores} in all, not {totals[0]} and {totals[1]}"
    return None


def _rounded(c: Compiled) -> str | None:
    shape = SHAPES[c.variant.kernel]
    loops, around = (expected_loops(c.variant, words, c.settings) for words in (shape.loops, shape.around))
    found, wanted = (sorted(2 * loop.pairs + loop.singles for loop in each) for each in (c.loops, loops))
    if found != wanted:
        return f"the bulk loops round {found} numbers to BF16 by an instruction, not {wanted}"
    # All is written out again for the rest of a range, with as many elements a thread, or with one (or a copy of it).
    number = roundings(c.ptx)
    if shape.polls:  # its words are not loaded and stored 16 bytes at a time
        return None if number or torch.bfloat16 not in (c.variant.wire, c.variant.out) else "nothing is rounded to BF16"
    elements = c.settings.block // (32 * WARPS)  # a thread
    once = sum(2 * loop.pairs for loop in loops + around)
    few = once // elements
    again = elements * sum("w" in word for word in shape.around)
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
    shape = SHAPES[c.variant.kernel]
    found, wanted = c.ptx.count("%globaltimer"), 2 * (shape.waits + shape.polls)
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
    shape = SHAPES[c.variant.kernel]
    waits = shape.waits
    # A put of nothing is a signal. Others are told to give up by a release, too, and each wait looks for that.
    releases = waits + shape.tells + (0 if mapped else shape.sends)
    acquires = waits * (3 if mapped else 2) + shape.polls
    # The kernel as it was written, where program order is the order of the text.
    steps = [match.lastgroup for match in _TTIR.finditer(c.ttir)]
    pairs = Counter(itertools.pairwise(steps))
    if (found := (steps.count("release"), steps.count("acquire"))) != (releases, acquires):
        return f"{found[0]} releases and {found[1]} acquires, not {releases} and {acquires}"
    if pairs["data", "release"] or pairs["acquire", "data"]:
        return "no barrier between the data and the release after them, or the acquire before them"
    if shape.polls:
        # A word brings its own flag: no order is asked for, except when others are told to give up.
        fences = re.findall(r"\b(?:fence|membar)\b\S*", c.ptx)
        return f"a word with a flag in it needs no fence, and here is {fences[0]}" if fences else None
    if mapped:  # nothing is in a library: the same from the machine's instructions, jump by jump
        steps = [match.lastgroup for match in _PTX.finditer(c.ptx)]
        pairs = Counter(itertools.pairwise(steps))
        # LLVM may have merged some; and what tells others to give up hands over no data.
        if steps.count("release") - pairs["barrier", "release"] > shape.tells:
            return "a release without a barrier just before it, in the PTX"
        if steps.count("acquire") != pairs["acquire", "barrier"]:
            return "an acquire without a barrier just after it, in the PTX"
        if steps.count("release") <= SHAPES[c.variant.kernel].tells or not steps.count("acquire"):
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
