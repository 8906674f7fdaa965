"""What tests of the oracle share: every way to make a call, inputs of one value a rank, and short names of types."""

import torch

from tricoll import oracle

FP64, FP32, BF16, FP16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
C64 = torch.complex64


def ways(n, collective="all_reduce", op="sum", wire=FP32):
    """Every algorithm that can serve a call, with every node size."""
    for algorithm in oracle.ALGORITHMS[collective]:
        if algorithm == "hierarchical":
            yield from ({"algorithm": algorithm, "node_size": size} for size in range(1, n + 1) if n % size == 0)
        elif algorithm != "multimem" or (op in ("sum", "avg") and wire in oracle.MULTIMEM_WIRES):
            yield {"algorithm": algorithm}


def filled(values, numel, dtype=FP32):
    return [torch.full((numel,), v, dtype=dtype) for v in values]
