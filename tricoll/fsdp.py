"""tricoll under PyTorch's FSDP2 (``torch.distributed.fsdp.fully_shard``)::

    torch.distributed.init_process_group("tricoll")
    for layer in model.layers:
        fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    fully_shard(model, ...)
    tricoll.fsdp.apply(model)

FSDP reduces gradients in ``reduce_dtype``. With FP32 there, tricoll takes FP32 gradients, sends BF16, adds in FP32 and
hands FP32 shards to the optimizer: half the bytes of ``reduce_dtype=float32`` elsewhere, and none of the BF16 additions
of ``reduce_dtype=bfloat16``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import process_group
from .communicator import Communicator
from .tensors import as_dtype, can_convert
from .work import Work


def apply(
    model: torch.nn.Module,
    comm: Communicator | None = None,
    *,
    wire: torch.dtype | str | None = "bf16",
    gather_wire: torch.dtype | str | None = None,
    algo: str = "auto",
) -> torch.nn.Module:
    """Have all parts of a model that ``fully_shard`` was applied to communicate through tricoll.

    Args:
        model: what ``fully_shard`` was applied to, or has parts that it was applied to.
        comm: a communicator of exactly the ranks over which the model is sharded. None: that of FSDP's own group, which
            must be of the tricoll backend; with a two-dimensional mesh, each part finds its own.
        wire: the dtype in which gradients travel. None: the one in which FSDP reduces them.
        gather_wire: the dtype in which parameters travel. None: the one in which FSDP gathers them. With a narrower
            one, all ranks compute with rounded parameters, and keep their shards as they are.
        algo: of the reduce-scatter: "two_shot" adds in rank order.

    Returns:
        ``model``.

    Raises:
        ValueError: nothing in ``model`` is sharded; or, in the first step, ``comm`` has other ranks than FSDP's group.
        RuntimeError: this PyTorch's FSDP cannot be told how to communicate.
    """
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError as error:
        raise RuntimeError(f"PyTorch {torch.__version__} has no FSDP2: install a newer one") from error
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not parts:
        raise ValueError("no part of the model is sharded: call torch.distributed.fsdp.fully_shard on it first")
    if not hasattr(parts[0], "set_custom_reduce_scatter") or not hasattr(parts[0], "set_custom_all_gather"):
        raise RuntimeError(
            f"FSDP2 of PyTorch {torch.__version__} has no set_custom_reduce_scatter: install a newer one"
        )
    scatter: Any = ReduceScatter(comm, wire, algo)  # FSDP's interface for it is private
    gather: Any = AllGather(comm, gather_wire)
    for part in parts:
        part.set_custom_reduce_scatter(scatter)
        part.set_custom_all_gather(gather)
    return model


class _Collective:
    """What FSDP calls: it allocates, and communicates over a group that it names."""

    def __init__(self, comm: Communicator | None, wire: torch.dtype | str | None) -> None:
        self._comm, self._wire = comm, None if wire is None else as_dtype(wire)

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def communicator(self, group: dist.ProcessGroup) -> Communicator:
        comm = self._comm or process_group.communicator(group)
        if (comm.rank, comm.world_size) != (group.rank(), group.size()):
            raise ValueError(
                f"FSDP shards over {group.size()} ranks, of which this is number {group.rank()}; the communicator has "
                f"{comm.world_size}, and this is number {comm.rank}: give tricoll.init(group) of FSDP's own group"
            )
        return comm

    def wire(self, dtype: torch.dtype) -> torch.dtype:
        return self._wire if self._wire is not None and can_convert(dtype, self._wire) else dtype


class ReduceScatter(_Collective):
    """For ``FSDPModule.set_custom_reduce_scatter``. The last addition goes into the shard unrounded."""

    def __init__(self, comm: Communicator | None = None, wire: torch.dtype | str | None = "bf16", algo: str = "auto"):
        super().__init__(comm, wire)
        self._algo = algo

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Work | None:
        comm, reduction = self.communicator(group), process_group.reduction(op)
        wire = self.wire(input_tensor.dtype)
        result = comm.reduce_scatter(
            input_tensor, reduction, out=output_tensor, wire=wire, algo=self._algo, async_op=async_op
        )
        return result if async_op else None


class AllGather(_Collective):
    """For ``FSDPModule.set_custom_all_gather``."""

    def __init__(self, comm: Communicator | None = None, wire: torch.dtype | str | None = None) -> None:
        super().__init__(comm, wire)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> Work | None:
        wire = self.wire(input_tensor.dtype)
        result = self.communicator(group).all_gather(input_tensor, out=output_tensor, wire=wire, async_op=async_op)
        return result if async_op else None
