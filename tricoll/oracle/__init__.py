"""The exact bits that collectives must produce, in plain PyTorch.

Written from the documented order of operations (docs/numerics.md), without any of the code that it judges. A reduction
is five steps: a share *enters* (is widened to the accumulator's dtype), two are *combined*, what *travels* is rounded
to the wire dtype, the total is *finished* (an average is divided), and the result is cast to the output dtype. The
algorithms differ in the order of combination and in what travels:

- ring: chunk c is x[c+1] + x[c+2] + ... + x[c] (mod n), and every partial sum travels.
- direct (two_shot, one_shot): every share travels, the own one too; then x[0] + x[1] + ... + x[n-1].
- tree: two trees with half of the data each. A rank adds own + first child + second child; what goes up travels.
- hierarchical: direct within each node, and a ring over the nodes.
- multimem: as direct, but the switch rounds the sum before an average is divided.

Inputs are one tensor a rank, of any stride and on any device; results are on the CPU. A dtype or op that does not exist
for the other is a TypeError, any other argument that does not fit a ValueError.

The five steps are in steps.py, who is added to whom in order.py, and collectives made of them in reductions.py.
"""

from .bounds import bound
from .compare import BITS, bits, differing, same_bits
from .cuts import chunk_size
from .dtypes import COMPLEX, DTYPES, FLOATS, INTEGERS, SMALL_FLOATS, accumulator, converts, has, ops
from .moves import all_gather, all_to_all, broadcast, gather, scatter
from .reductions import ALGORITHMS, MULTIMEM_WIRES, all_reduce, reduce, reduce_scatter
from .steps import cast

__all__ = [
    "all_reduce",
    "reduce_scatter",
    "reduce",
    "all_gather",
    "gather",
    "broadcast",
    "scatter",
    "all_to_all",
    "bound",
    "cast",
    "same_bits",
    "differing",
    "bits",
    "chunk_size",
    "ops",
    "has",
    "converts",
    "accumulator",
    "ALGORITHMS",
    "MULTIMEM_WIRES",
    "DTYPES",
    "FLOATS",
    "SMALL_FLOATS",
    "INTEGERS",
    "COMPLEX",
    "BITS",
]
