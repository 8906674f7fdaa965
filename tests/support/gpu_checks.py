"""What is checked on GPUs, and on CPUs too, so that the checks themselves are known to work."""

import time

import pytest
import torch
import triton.language as tl
from streams import BF16_WIRE, FP32, ROWED, Played, Step, callable_in

import tricoll
from tricoll import oracle, testing
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


# Calls that follow each other, and calls that fail


def _back_to_back(comm, calls):
    device = comm._fabric.device
    x = [_values(comm.world_size, k)[comm.rank].to(device) for k in range(5)]
    call = lambda k: comm.all_reduce(x[k % 5].clone(), "avg", wire="bf16", algo="ring", async_op=k % 3 == 0)
    made = [call(k) for k in range(calls)]
    comm.barrier()
    return [(out.result() if isinstance(out, tricoll.Work) else out).cpu() for out in made]


def _values(n, k):
    return testing.make_inputs(n, (4099,), torch.float32, "mixed", k)


def check_back_to_back(run, n, calls, **settings):
    """Many calls, some of them asynchronous, none of them waited for."""
    results = run(_back_to_back, n, calls, **settings)
    for k in range(5):
        expected = oracle.all_reduce(_values(n, k), "avg", torch.bfloat16, algorithm="ring")
        for made in results:
            for out in made[k::5]:
                testing.assert_same_bits(out, expected)


def _unanswered(comm):
    if comm.rank == 1:
        time.sleep(3)
        return
    start = time.monotonic()
    with pytest.raises(tricoll.CollectiveTimeout, match=r"ranks \[1\] did not take part"):
        comm.recv(torch.zeros(100, device=comm._fabric.device), 1, async_op=True).wait(30)
    assert 1 < time.monotonic() - start < 3


def check_timeout(run):
    """A kernel that waits for a rank that does nothing gives up by itself, and the rank is named."""
    with pytest.raises(tricoll.CollectiveError):  # the communicator cannot be used any more
        run(_unanswered, 2, timeout=1.5)


def _different(comm):
    start = time.monotonic()
    comm.all_reduce(torch.ones(96 if comm.rank else 64, device=comm._fabric.device), algo="ring")
    with pytest.raises(tricoll.CollectiveMismatch) as caught:
        comm.barrier()
    assert "float32[64]" in str(caught.value) and "float32[96]" in str(caught.value)
    assert time.monotonic() - start < 20


def check_mismatch(run):
    """Kernels of different calls find out by themselves, and the calls are named."""
    with pytest.raises(tricoll.CollectiveMismatch):
        run(_different, 2, timeout=30.0)


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
