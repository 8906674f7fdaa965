"""Reading machine code: what is in a cubin, and what its PTX does in loops over data."""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import triton


class Loop(NamedTuple):
    """What one pass of a bulk loop does, a thread."""

    loads: int  # of 16 bytes
    stores: int
    narrow: int  # other accesses to global memory
    pairs: int  # of numbers rounded to BF16 by one instruction, a conversion or an addition
    singles: int  # numbers rounded to BF16 by one instruction each


def resources(cubin: bytes) -> dict[str, int]:
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


def symbols(cubin: bytes) -> tuple[int, frozenset[str], frozenset[str]]:
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
LOAD, STORE = (rf"\b{name}\.global\.(?:v4\.b32|v2\.b64)" for name in ("ld", "st"))
# LLVM adds two BF16 as such where that gives the same bits; on sm_80 by fma with 1.0.
PAIR = r"cvt\.rn\.bf16x2\.f32|(?:add|fma)\.rn\.bf16x2"
SINGLE = r"cvt\.rn\.bf16\.f32|(?:add|fma)\.rn\.bf16"


def bulk_loops(ptx: str) -> Iterator[Loop]:
    """The innermost loops that access global memory 16 bytes at a time."""
    for match in _INNERMOST.finditer(ptx):
        names = _INSTRUCTION.findall(match[2])
        loads, stores, pairs, singles = (
            sum(bool(re.fullmatch(pattern, name)) for name in names) for pattern in (LOAD, STORE, PAIR, SINGLE)
        )
        if loads or stores:
            narrow = sum(not _ELSEWHERE.search(name) for name in names) - loads - stores
            yield Loop(loads, stores, narrow, pairs, singles)


def wide_accesses(ptx: str) -> tuple[int, int]:
    """Loads and stores of 16 bytes, in the whole program."""
    return len(re.findall(LOAD, ptx)), len(re.findall(STORE, ptx))


def roundings(ptx: str) -> int:
    """Numbers that are rounded to BF16 by an instruction, in the whole program."""
    pairs, singles = (len(re.findall(rf"\b(?:{kind})\b", ptx)) for kind in (PAIR, SINGLE))
    return 2 * pairs + singles


def bulk_instructions(ptx: str) -> int:
    """Instructions of all loops with accesses of 16 bytes."""
    return sum(map(_length, _INNERMOST.finditer(ptx)))


def _length(loop: re.Match[str]) -> int:
    """Instructions of a loop with accesses of 16 bytes; 0 for others."""
    if not re.search(f"{LOAD}|{STORE}", loop[2]):
        return 0
    return len(re.findall(r"^[ \t]*(?:@!?%p\d+[ \t]+)?[a-z]\w*[.\w:]*[ \t].*;", loop[2], re.M))
