"""Communication hooks for ``torch.nn.parallel.DistributedDataParallel``.

::

    torch.distributed.init_process_group("gloo")            # DDP needs a group for its own set-up
    comm = tricoll.init()                                    # of the same ranks
    model = DistributedDataParallel(model)
    model.register_comm_hook(comm, tricoll.ddp.bf16_hook)    # once, before the first backward

The gradients of a bucket are averaged in place, in one pass: the cast to the wire's dtype, the addition in FP32 and the
division by the number of ranks are one kernel's work. They keep their dtype, and all ranks get the same bits.

The communicator must have exactly the ranks of the model's group: for ``DistributedDataParallel(model,
process_group=group)`` that is ``tricoll.init(group=group)``. A hook cannot see the model's group. A communicator with
more ranks ends in a CollectiveError that names those that take no part; **one with fewer ranks goes unnoticed**, and
the replicas drift apart.
"""

# No ``from __future__ import annotations`` here: DDP compares a hook's annotations with the classes themselves.

import torch
import torch.distributed as dist

from .communicator import Communicator
from .tensors import can_convert


def bf16_hook(state: Communicator, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients with BF16 on the wire, half the bytes of FP32.

    Each of the n ranks rounds to BF16 once on the ring, so that an element is off by at most about n / 256 of the mean
    of the ranks' absolute values. FP16 gradients go as BF16 too, since a sum on its way may be too large for FP16.
    Those of a dtype that cannot be cast to BF16 (FP64) go in their own.

    Args:
        state: the communicator, as it was given to ``register_comm_hook``.
        bucket: what DDP has gathered: a one-dimensional tensor of gradients, one dtype.

    Returns:
        A future that is completed and holds the bucket's tensor.

    Raises:
        TypeError: ``state`` is not a communicator.
        CollectiveError: out of ``backward()``; see :mod:`tricoll.errors`.
    """
    buffer = bucket.buffer()
    return _average(state, buffer, torch.bfloat16 if can_convert(buffer.dtype, torch.bfloat16) else buffer.dtype)


def fp32_hook(state: Communicator, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Like :func:`bf16_hook`, with nothing rounded for the wire: FP32 gradients go as FP32, others in their own dtype.

    An FP32 element is off by at most about n / 2**24 of the mean of the ranks' absolute values.
    """
    buffer = bucket.buffer()
    return _average(state, buffer, buffer.dtype)


def _average(state: object, buffer: torch.Tensor, wire: torch.dtype) -> torch.futures.Future[torch.Tensor]:
    if not isinstance(state, Communicator):
        raise TypeError(
            f"the hook's state is a {type(state).__name__}, not a tricoll communicator. Register it with "
            "model.register_comm_hook(comm, tricoll.ddp.bf16_hook), where comm = tricoll.init() is of the model's ranks"
        )
    state.all_reduce(buffer, "avg", wire=wire)
    # A future with a CUDA tensor has to know the device: whoever waits for it then waits for the current stream.
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
        devices=[buffer.device] if buffer.is_cuda else None
    )
    future.set_result(buffer)
    return future
