"""What these tests share: settings with small slots, the calls that there are, and inputs for them.

They are failures that users of such libraries have reported. Each file's comments say what kind of mistake is meant.
"""

import pytest
import torch
from streams import CALLS, ROWED, Step, callable_in

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
SMALL = {"channels": 2, "slots": 3, "window": 2, "slot_bytes": 256, "block": 32}  # 64 FP32 a slot

links = pytest.mark.parametrize("link", ["mapped", "put"])
both_tiles = pytest.mark.parametrize("tiles", ["torch", "triton"])
every_call = pytest.mark.parametrize("call", CALLS, ids=" ".join)
every_all_reduce = pytest.mark.parametrize("algo", [a for a, c in CALLS if c == "all_reduce"])

# Infinities and NaN are among the values; NumPy, which is under Triton's interpreter, warns of them.
quiet = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")


def wires(call, n=4, node_size=2):
    """The kinds of links on which a call can be made."""
    return [link for link in ("mapped", "put") if call in callable_in(n, node_size, link == "mapped")]


def step(call, n, rows, seed=0, **changes):
    """A call with so many rows a rank, where that means anything."""
    shape = (rows,) if call[1] in ("all_gather", "gather") or call[1] not in ROWED else (n * rows,)
    return Step(*call, shape, peer=(1 + seed) % n, root=seed % n, seed=seed, kind="random")._replace(**changes)


def step_aside(comm, times):
    """Let the others run for a while, as a rank that is late does."""
    for _ in range(times):
        comm._fabric.world.scheduler.step_aside()
