"""The sum of sparse tensors over ranks: what an embedding with ``sparse=True`` has for a gradient."""

from __future__ import annotations

from typing import Any

import torch

from .communicator import Communicator
from .tensors import as_op


def sparse_all_reduce(comm: Communicator, x: torch.Tensor, op: Any = "sum") -> torch.Tensor:
    """Reduce a sparse COO tensor over all ranks, in place; the ranks' numbers of entries may differ.

    Every rank gets all entries, in rank order, and adds those of one place in that order, in the dtype of ``x``. Three
    all-gathers: how many entries, where, what.

    Raises:
        TypeError: ``op`` is neither sum nor avg.
    """
    name = as_op(op).name
    if name not in ("sum", "avg"):
        raise TypeError(f"sparse tensors cannot be reduced with {name!r}; they can with ('sum', 'avg')")
    mine = x.detach().coalesce()
    counts = comm.all_gather(torch.tensor([mine._nnz()])).tolist()
    where = comm.all_gather(mine.indices().t().contiguous(), sizes=counts)
    what = comm.all_gather(mine.values().contiguous(), sizes=counts)
    total = torch.sparse_coo_tensor(where.t(), what, x.shape, check_invariants=False).coalesce()
    x.copy_(total / comm.world_size if name == "avg" else total)
    return x
