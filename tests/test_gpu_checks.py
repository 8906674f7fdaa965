"""What is checked on GPUs, checked here: on the simulator and in Triton's interpreter, where all of it can run too."""

import functools

import pytest
import torch
from gpu_checks import check_algorithms, check_numerics, probe, steps, traffic

import tricoll
from tricoll import gpu
from tricoll.fabric import cpu, cuda
from tricoll.fabric.base import Counters
from tricoll.kernels import jit, numerics, tiles
from tricoll.kernels.jit import TRITON

import gpu_stand_in  # isort: skip

SMALL = {"slots": 3, "slot_bytes": 2048, "window": 2, "block": 64, "channels": 2}


def simulated(fn, n, *args, **settings):
    return tricoll.simulate(fn, n, *args, **{**SMALL, **settings}).results


@pytest.mark.parametrize(("n", "node_size", "mapped"), [(4, 2, True), (3, 0, False)])
def test_algorithms(n, node_size, mapped):
    link = {"link": "mapped" if mapped else "put"}
    made = steps(n, node_size, mapped, (301, 1))
    assert check_algorithms(simulated, n, (301, 1), node_size, mapped, **link) == len(made) > 50


def test_a_wrong_bit_is_found(monkeypatch):
    def broken(fn, n, *args, **settings):
        results = simulated(fn, n, *args, **settings)
        next(r for r in results[1] if r is not None and r.numel() > 20).view(-1).view(torch.uint8)[33] ^= 1
        return results

    with pytest.raises(AssertionError):
        check_algorithms(broken, 2, (64,))


def on_cpu(interpreted, arguments):
    converted = cpu.convert(probe, arguments, interpreted)
    before = jit.bind(cpu.CpuProgram(0, 0, [], interpreted, Counters()))
    try:
        if interpreted:
            with cpu.interpreting(probe):
                probe(**converted)
        else:
            probe(**converted)
    finally:
        jit.bind(before)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
@pytest.mark.parametrize("interpreted", [False, True])
def test_numerics(interpreted):
    assert check_numerics(functools.partial(on_cpu, interpreted), count=257) > 80


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_a_wrong_operator_is_found(monkeypatch):
    monkeypatch.setattr(tiles, "combine_", lambda total, v, op: numerics.combine_(total, v, "sum"))
    with pytest.raises(AssertionError, match=r"prod of torch.float64 to torch.float64: \d+ of 257 differ"):
        check_numerics(functools.partial(on_cpu, False), count=257)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int64], ids=str)
def test_the_probe_compiles_for_a_gpu(dtype):
    arguments = {
        "own": torch.zeros(16, dtype=dtype), "recv": torch.zeros(16, dtype=dtype), "n": 16, "world": 3, "scale": 0.3,
        "out": torch.zeros(16, dtype=dtype), "OWN": True, "RECV": True, "LAST": True, "OP": "sum", "BLOCK": 1024,
    }  # fmt: skip
    with gpu_stand_in.gpu(90, [probe]) as driver:
        launch = gpu_stand_in.launcher("mapped", 90, cooperative=False)
        launch(probe, 1, arguments)
        assert len(driver.launched) == 1 and list(driver.launched[0].args) == list(
            cuda.taken(probe, arguments).values()
        )
    assert dtype in TRITON and gpu.WARPS == 8


def test_traffic_is_what_the_simulated_kernels_send():
    # A lower bound: what is sent is written once by the sender and read once by the receiver.
    for algorithm in ("two_shot", "ring"):
        run = tricoll.simulate(lambda comm: comm.all_reduce(torch.ones(4096), algo=algorithm), 4, channels=1)
        sent = sum(stats["payload_bytes"] for stats in run.stats)
        assert traffic(algorithm, 4, 4 * 4096, 4 * 4096) >= 2 * sent
