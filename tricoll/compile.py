"""Compile kernels to machine code without a GPU.

A :class:`Variant` names one binary: a kernel, a kind of link, an architecture and the dtypes. :func:`build` compiles it
exactly as a launch would, so it lands in Triton's cache under the key that the launch looks up (with the settings of
:mod:`tricoll.gpu` and 16-byte aligned tensors). What is in the machine code is read by :mod:`tricoll.machine_code` and
judged by :mod:`tricoll.gates`.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.errors import TritonError
from triton.runtime.jit import MockTensor, create_function_from_signature

from . import arguments, dispatch
from .gpu import GPU, options
from .kernels.jit import TRITON
from .machine_code import Loop, bulk_instructions, bulk_loops, resources, symbols, wide_accesses

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
    usage = resources(cubin)
    code, exported, undefined = symbols(cubin)
    loads, stores = wide_accesses(ptx)
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
        instructions=bulk_instructions(ptx),
        loads=loads,
        stores=stores,
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
