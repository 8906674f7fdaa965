"""What is read in machine code is there: by other tools, and by what a kernel is known to do."""

import re
import subprocess
from pathlib import Path

import pytest
import triton
from binaries import MAIN, variants

from tricoll import gates
from tricoll.compile import KERNELS
from tricoll.machine_code import Loop, roundings

pytestmark = pytest.mark.timeout(600)  # the first test waits for compilers that run side by side
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


# What a letter of a bulk loop costs with 16 elements a thread, FP32 in and out, BF16 on the wire.
LETTERS = {
    "O": Loop(4, 0, 0, 0, 0),
    "R": Loop(2, 0, 0, 0, 0),
    "K": Loop(0, 4, 0, 0, 0),
    "S": Loop(0, 2, 0, 0, 0),
    "Q": Loop(2, 0, 1, 0, 0),
    "P": Loop(0, 2, 3, 0, 0),
    "A": Loop(0, 0, 0, 0, 0),
    "W": Loop(0, 0, 0, 0, 0),
    "w": Loop(0, 0, 0, 0, 0),
}


@variants(*MAIN)
def test_bulk_loops_are_all_the_code_that_moves_blocks(compiled):
    def loop(word):
        total = Loop(*map(sum, zip(*(LETTERS[letter] for letter in word))))
        if "P" in word and compiled.variant.link == "put":
            total = total._replace(narrow=1)  # no address of a peer's heap is looked up
        rounds = set(word) & {"S", "W"} and set(word) & {"O", "A"}  # to the wire dtype, and not from it
        return total._replace(pairs=8 if rounds else 0)

    inner = [loop(word) for word in gates.SHAPES[compiled.variant.kernel].loops]
    every = inner + [loop(word) for word in gates.SHAPES[compiled.variant.kernel].around]
    assert sorted(compiled.loops) == sorted(inner)
    assert compiled.loads == sum(each.loads for each in every)
    assert compiled.stores == sum(each.stores for each in every)
    assert roundings(compiled.ptx) >= 2 * sum(each.pairs for each in every), "LLVM may not find all pairs"


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
