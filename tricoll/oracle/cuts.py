"""How data are cut into chunks and parts, and whose they are."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

CHUNK_MULTIPLE = 16  # elements; all-reduce cuts where every channel's vectors stay aligned


def chunk_size(numel: int, world_size: int) -> int:
    """Elements in a chunk of an all-reduce: an equal share, rounded up. The last chunks may be short, or empty."""
    share = (numel + world_size - 1) // world_size
    return (share + CHUNK_MULTIPLE - 1) // CHUNK_MULTIPLE * CHUNK_MULTIPLE


def chunks(flat: Sequence[Tensor], size: int, count: int) -> list[list[Tensor]]:
    """For each of ``count`` chunks of ``size`` elements, the ranks' shares."""
    return [[x[c * size : (c + 1) * size] for x in flat] for c in range(count)]


def rows(x: Tensor, n: int, sizes: Sequence[int] | None = None) -> list[int]:
    """Rows of dimension 0 for each of n ranks: ``sizes``, or None for as many for each.

    Raises:
        ValueError: ``x`` has no such rows.
    """
    count = x.shape[0] if x.dim() else 0
    if sizes is None:
        if not x.dim() or count % n:
            raise ValueError(f"shape {tuple(x.shape)} cannot be cut along dimension 0 into {n} equal parts")
        return [count // n] * n
    if not x.dim() or len(sizes) != n or min(sizes) < 0 or sum(sizes) != count:
        raise ValueError(f"shape {tuple(x.shape)} cannot be cut along dimension 0 into {n} parts of {list(sizes)} rows")
    return list(sizes)


def check_root(root: int, n: int) -> None:
    """ValueError unless ``root`` is one of n ranks."""
    if not 0 <= root < n:
        raise ValueError(f"root is {root}; with {n} ranks it can be 0 to {n - 1}")


def of_root(inputs: Sequence[Tensor | None], root: int) -> Tensor:
    """What the root gives; ValueError if that is nothing."""
    check_root(root, len(inputs))
    x = inputs[root]
    if x is None:
        raise ValueError(f"the root, rank {root}, gives no tensor")
    return x
