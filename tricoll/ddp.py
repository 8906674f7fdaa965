"""Communication hooks for ``torch.nn.parallel.DistributedDataParallel``.

::

    torch.distributed.init_process_group("tricoll")
    model = DistributedDataParallel(model)
    model.register_comm_hook(None, tricoll.ddp.bf16_hook)    # once, before the first backward

The hook's *state* says who averages: None, the default group, which must be of the tricoll backend; a process group of
that backend; or a communicator, so that DDP itself may use any backend::

    torch.distributed.init_process_group("gloo")             # DDP's own set-up
    comm = tricoll.init()                                    # of the same ranks
    model.register_comm_hook(comm, tricoll.ddp.bf16_hook)

The gradients of a bucket are averaged in place, in one pass: the cast to the wire's dtype, the addition in FP32 and the
division by the number of ranks are one kernel's work. They keep their dtype, and all ranks get the same bits. Buckets
travel while the backward pass goes on; :func:`timeline` shows how much of that was hidden. Complex gradients go as
pairs of reals, sparse ones as their entries.

The communicator must have exactly the ranks of the model's group: for ``DistributedDataParallel(model,
process_group=group)`` that is ``tricoll.init(group=group)``, or the group itself. A hook cannot see the model's group.
A communicator with more ranks ends in a CollectiveError that names those that take no part; **one with fewer ranks goes
unnoticed**, and the replicas drift apart.

To have the norm of the gradients, and know whether they are finite and how noisy, without another pass over memory,
give :class:`GradientStats` as the state.

With ``model.join()``, ranks that have run out of data count as zeros: sums are divided by the number of all ranks.
"""

# No ``from __future__ import annotations`` here: DDP compares a hook's annotations with the classes themselves.

import weakref
from typing import Any

import torch
import torch.distributed as dist

from .communicator import Communicator
from .gradient_stats import GradientStats, StepStats
from .process_group import ProcessGroup
from .sparse import sparse_all_reduce
from .tally import Tally
from .tensors import can_convert
from .timeline import Recorder, Timeline

__all__ = ["GradientStats", "StepStats", "Timeline", "bf16_hook", "fp32_hook", "reproducible_hook", "timeline"]

_recorders: weakref.WeakKeyDictionary[Communicator, Recorder] = weakref.WeakKeyDictionary()


def bf16_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients with BF16 on the wire, half the bytes of FP32.

    Each of the n ranks rounds to BF16 once on the ring, so that an element is off by at most about n / 256 of the mean
    of the ranks' absolute values. FP16 gradients go as BF16 too, since a sum on its way may be too large for FP16.
    Those of a dtype that cannot be cast to BF16 (FP64) go in their own.

    Args:
        state: a communicator, a process group of the tricoll backend, None for the default one, or
            :class:`GradientStats` with one of them, as it was given to ``register_comm_hook``.
        bucket: what DDP has gathered: a one-dimensional tensor of gradients, one dtype.

    Returns:
        A future of the bucket's tensor.

    Raises:
        TypeError: ``state`` is none of these.
        CollectiveError: out of ``backward()``; see :mod:`tricoll.errors`.
    """
    return _average(state, bucket, torch.bfloat16)


def fp32_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Like :func:`bf16_hook`, with nothing rounded for the wire: FP32 gradients go as FP32, others in their own dtype.

    An FP32 element is off by at most about n / 2**24 of the mean of the ranks' absolute values.
    """
    return _average(state, bucket, None)


def reproducible_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Like :func:`fp32_hook`, adding in rank order: (x[0] + x[1] + ... + x[n-1]) / n in FP32, rounded once.

    An element's bits depend on the ranks' gradients only, not on buckets, their sizes or the algorithm that suits them.
    """
    return _average(state, bucket, None, algo="two_shot")


def timeline(state: Any = None) -> Timeline:
    """When the buckets of the last backward passes were ready, sent and averaged, on this rank.

    ``state``: as it was given to ``register_comm_hook``. The first pass of a model with ``static_graph=True`` averages
    after its end, which the timeline does not see.
    """
    recorder = _recorders.get(_communicator(state))
    return recorder.timeline() if recorder else Timeline(_communicator(state).rank, [])


def _communicator(state: Any) -> Communicator:
    if isinstance(state, GradientStats):
        state = state.state
    group = dist.group.WORLD if state is None and dist.is_initialized() else state
    if isinstance(group, Communicator):
        return group
    if isinstance(group, ProcessGroup):
        return group.communicator
    what = "None, and the default group is not of the tricoll backend" if state is None else f"a {type(state).__name__}"
    raise TypeError(
        f"the hook's state is {what}. Register it with model.register_comm_hook(comm, tricoll.ddp.bf16_hook), where "
        "comm = tricoll.init() is of the model's ranks, or a process group of the tricoll backend"
    )


def _average(
    state: Any, bucket: dist.GradBucket, wire: torch.dtype | None, algo: str = "auto"
) -> torch.futures.Future[torch.Tensor]:
    comm, buffer = _communicator(state), bucket.buffer()
    tally = state.tally(comm) if isinstance(state, GradientStats) else None
    if buffer.layout == torch.sparse_coo:
        work = comm.together("the average of sparse gradients", lambda: _average_sparse(comm, buffer, tally), buffer)
    else:
        reals = torch.view_as_real(buffer).view(-1) if buffer.is_complex() else buffer
        chosen = wire if wire is not None and can_convert(reals.dtype, wire) else reals.dtype
        work = comm.collective(
            "all_reduce",
            lambda p: p.reduction("all_reduce", reals, "avg", None, chosen, algo, tally=tally),
            value=buffer,
        )
    if comm not in _recorders:
        _recorders[comm] = Recorder(comm.rank)
    _recorders[comm].add(bucket.index(), buffer, work)
    return work.get_future()


def _average_sparse(comm: Communicator, x: torch.Tensor, tally: Tally | None) -> None:
    if tally is not None:
        tally.include(x.coalesce().values(), None)
    sparse_all_reduce(comm, x, "avg")
    if tally is not None and comm.rank == 0:  # all ranks have all of the result
        tally.include(None, x.coalesce().values())
