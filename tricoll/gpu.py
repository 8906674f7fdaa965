"""How kernels are compiled and launched on GPUs: the shape of the links there, and what the compiler is told.

One place, because the compile gate (:mod:`tricoll.compile`) must build exactly what a launch looks up.
"""

from __future__ import annotations

from typing import Any

from . import bitcode
from .dispatch import Settings

# 8 warps with 16 elements a thread keep 24 KB of a ring step in flight a program. 4096 elements on 4 warps spill;
# 2048 on 8 take 150 registers for half the bytes; 4096 on 16 take the whole register file.
GPU = Settings(mapped=True, channels=16, slots=4, slot_bytes=1 << 20, window=2, block=4096, node_size=4)
WARPS = 8
# Left to itself, ptxas spills to reach 128 registers a thread, two programs an SM, which a collective has no use for.
REGISTERS = 65536 // (32 * WARPS) - 1
"""The most registers that a thread may take: one program has an SM's register file to itself."""


def options(link: str, arch: int, cooperative: bool = True) -> dict[str, Any]:
    """How kernels are compiled for a GPU: keyword arguments of the launch.

    Args:
        link: "mapped" or "put", which links NVSHMEM's device library in.
        arch: compute capability, 90 for sm_90.
        cooperative: all programs of a launch start together, or the launch is an error. No kernel needs it, since its
            channels do not wait for each other; it keeps a rank from holding its peers' channels up one by one while
            other kernels fill its GPU. Several ranks on one GPU go without.
    """
    chosen: dict[str, Any] = {
        "num_warps": WARPS,
        "maxnreg": REGISTERS,
        "enable_fp_fusion": False,
        "launch_cooperative_grid": cooperative,
    }
    if link == "put":
        chosen["extern_libs"] = {"libnvshmem_device": str(bitcode.slim(arch))}
    return chosen
