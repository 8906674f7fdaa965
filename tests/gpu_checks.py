"""What is checked on GPUs, and on CPUs too, so that the checks themselves are known to work."""

import torch
import triton.language as tl
from streams import BF16_WIRE, FP32, ROWED, Played, Step, callable_in

from tricoll import oracle
from tricoll.kernels.jit import TRITON, jit
from tricoll.kernels.numerics import Reduction, accumulator, combine_, finish_, scale_
from tricoll.kernels.tiles import transfer
from tricoll.tensors import ARITHMETIC, BITWISE, SMALL_FLOATS

BF16 = (torch.bfloat16,) * 3
REDUCING = ("all_reduce", "reduce_scatter", "reduce")

# Every algorithm


def steps(n, node_size, mapped, sizes, dtypes=(FP32, BF16_WIRE, BF16), multicast=False):
    """One call of each collective with each algorithm, size and choice of dtypes."""
    made = []
    for algorithm, collective in callable_in(n, node_size, mapped):
        if algorithm == "multimem" and not multicast:
            continue
        for k, (size, types) in enumerate((size, types) for size in sizes for types in dtypes):
            shape = (n * max(1, size // (3 * n)), 3) if collective in ROWED else (size,)
            op = ("avg" if k % 2 else "sum") if collective in REDUCING else "sum"
            root = k % n
            made.append(Step(algorithm, collective, shape, types, op, root=root, peer=(root + 1) % n, seed=k))
    return made


def play_all(comm, played):
    """Make all calls on this rank, with nothing between them."""
    return [each.on(comm) for each in played]


def check_algorithms(run, n, sizes, node_size=0, mapped=True, device="cpu", **settings):
    """All algorithms against the oracle, byte for byte, canaries included. ``run(fn, n, *args, **settings)`` is one of
    tricoll.loopback and the like. Returns how many calls there were."""
    played = [Played(step, n, node_size, device) for step in steps(n, node_size, mapped, sizes)]
    if device != "cpu":
        torch.cuda.synchronize()  # the ranks have streams of their own
    results = run(play_all, n, played, node_size=node_size, **settings)
    for each, outcomes in zip(played, zip(*results), strict=True):
        each.check(outcomes)
    return len(played)


# Casts and operators by the hardware


@jit
def probe(
    own, recv, out, n: tl.int64, world: tl.int64, scale: tl.float64,
    OWN: tl.constexpr, RECV: tl.constexpr, LAST: tl.constexpr, OP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The bulk loop alone: out = what is made of own and recv."""
    transfer(own, recv, out, out, n, Reduction(world, scale, None), OWN, RECV, True, False, LAST, OP, BLOCK)


def patterns(dtype, count, seed):
    """Random bits, and special values among them."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator).view(dtype)
    if dtype.is_floating_point:
        special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0, -1.0])
        bits[: len(special)] = special.to(dtype)
        bits[-len(special) :] = special.flip(0).to(dtype)
    return bits


def cases(dtypes):
    """(operator, own, received, output) of each cast and each reduction."""
    for source in dtypes:
        for target in dtypes if source in SMALL_FLOATS else (source,):
            if source in SMALL_FLOATS and target not in SMALL_FLOATS:
                continue
            yield "sum", source, None, target
        accumulated = torch.float32 if source in SMALL_FLOATS else source
        ops = (*ARITHMETIC, "avg", "premul_sum") if source.is_floating_point else (*ARITHMETIC, *BITWISE)
        for op in ops:
            yield op, source, source, accumulated


def check_numerics(launch, dtypes=tuple(TRITON), count=4099):
    """Every cast and operator against the same in PyTorch on the CPU, bit for bit.

    ``launch(arguments)`` runs :func:`probe`; tensors are on the CPU before and after. Returns how many cases.
    """
    done = 0
    for op, source, received, target in cases(dtypes):
        own = patterns(source, count, 1)
        recv = own if received is None else patterns(received, count, 2)
        out = torch.zeros(count, dtype=target)
        launch(
            {
                "own": own, "recv": recv, "out": out, "n": count, "world": 3, "scale": 0.3,
                "OWN": True, "RECV": received is not None, "LAST": received is not None, "OP": op, "BLOCK": 1024,
            }
        )  # fmt: skip
        expected = expected_of(own, recv if received is not None else None, op, target)
        wrong = oracle.differing(out, expected)
        if wrong.any():
            at = int(wrong.nonzero()[0])
            raise AssertionError(
                f"{op} of {source} to {target}: {int(wrong.sum())} of {count} differ, the first is element {at}: "
                f"{own[at]} and {recv[at]} give {out[at]}, not {expected[at]}"
            )
        done += 1
    return done


def expected_of(own, recv, op, target):
    """What the bulk loop makes of two values, in PyTorch. The world is 3."""
    if recv is None:
        return oracle.cast(own, target)
    red = Reduction(3, 0.3, None)
    total = recv.to(accumulator(recv.dtype), copy=True)
    scaled = own.to(total.dtype, copy=True)
    scale_(scaled, red, op)
    combine_(total, scaled, op)
    finish_(total, red, op)
    return oracle.cast(total, target)


# Speed


def traffic(algorithm, n, own, wire):
    """Bytes that all ranks' kernels read and write in an all-reduce of ``own`` bytes a rank, ``wire`` as they travel.

    What is not counted: flags, and what a cache saves.
    """
    if algorithm == "two_shot":  # shares written; n shares read, n results written; results read
        return n * (own + wire + wire + wire + wire + own)
    if algorithm == "ring":  # n - 1 steps of reading, adding and writing a chunk; the same without adding
        step = (n - 1) / n
        return n * (own + wire * (step + step) + wire * (step + step) + own)
    raise ValueError(f"no account of {algorithm}")
