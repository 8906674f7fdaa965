"""tricoll as a backend of ``torch.distributed``::

    import torch, tricoll
    torch.distributed.init_process_group("tricoll")

Importing tricoll registers it, for CPU tensors (the ``host`` fabric), and for CUDA tensors (the ``nvshmem`` fabric;
where that cannot be used, they are an error with the reason). A group is for one of them: ``"tricoll"`` for CPU
tensors, ``"cpu:gloo,cuda:tricoll"`` for CUDA tensors, with CPU tensors left to Gloo.

Every call of ``torch.distributed`` is served; each is one call of the group's communicator where that has the same,
and otherwise a few of them that keep together. Groups of the same ranks do not share anything. Differences from Gloo:

* A tag is not searched for. Messages of two ranks arrive in the order in which they were sent, and one with another tag
  than the receiver's is a CollectiveMismatch.
* All ranks must make the same calls of a group in the same order, asynchronous ones included; a difference is a
  CollectiveMismatch on all of them.
* A receive that comes before a collective has to be answered before that collective begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .fabric import nvshmem
from .fabric.agree import once
from .process_group import NAME, ProcessGroup
from .world import connect


def register() -> None:
    """Make the backend known to ``torch.distributed``, once."""
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: Any, given: Any) -> ProcessGroup:
    """What ``torch.distributed`` calls on every rank of a new group. ``given``: its ``pg_options``."""
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(
            f"pg_options is a {type(given).__name__}; for tricoll it is a dict of settings of tricoll.init, such as "
            "{'slot_bytes': 1 << 16}"
        )
    rank, size, timeout = options.group_rank, options.group_size, options.timeout
    name = f"{NAME}/{once(dist.PrefixStore(NAME, options.store), rank, size, timeout.total_seconds())}"
    store = dist.PrefixStore(name, options.store)
    settings = {"timeout": timeout.total_seconds(), **(given or {})}
    if not _for_cuda_only(options.store, f"{name}/device/{rank}"):
        return ProcessGroup(store, rank, size, connect(store, rank, size, **settings))
    gloo = _gloo(dist.PrefixStore("gloo", store), rank, size, timeout)
    if reason := nvshmem.unavailable():
        return ProcessGroup(store, rank, size, None, gloo, reason)
    return ProcessGroup(store, rank, size, connect(store, rank, size, "nvshmem", **settings), gloo)


def _for_cuda_only(store: Any, key: str) -> bool:
    # A backend is not told for which devices it is made, but torch prefixes its store with the first of them.
    store.set(key, "")
    return store.underlying_store.check([f"cuda//{key}"])


def _gloo(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    # torch has made one, too, but a process group in Python takes the place of all that it has made.
    group, backend = dist.ProcessGroup(store, rank, size), dist.ProcessGroup.BackendType.GLOO
    group._set_default_backend(backend)
    group._register_backend(torch.device("cpu"), backend, dist.ProcessGroupGloo(store, rank, size, timeout))
    return group
