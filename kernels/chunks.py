"""Where a chunk of the data begins, and how much of a piece of it there is.

``edges``: where each chunk starts, and where the last one ends, in elements.
"""

from . import shmem
from .jit import jit


@jit
def start(edges, chunk, ALIGNED):
    """Where a chunk begins. ``ALIGNED``: at a multiple of 16."""
    at = shmem.load(edges + chunk)
    if ALIGNED:
        at = at // 16 * 16  # changes nothing, but lets the compiler see what allows vectors of 16 bytes
    return at


@jit
def count(edges, chunk, at, piece):
    """How many elements the piece has that starts ``at`` in a chunk."""
    return max(min(piece, shmem.load(edges + chunk + 1) - shmem.load(edges + chunk) - at), 0)
