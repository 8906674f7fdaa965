"""One GPU, one run, under ten minutes: everything that can be seen without a second GPU.

``pytest -m gpu -s tests/gpu/test_one_gpu.py``; the table at the end is worth keeping. See docs/gpu.md.
"""

import time

import pytest
import torch
import torch.distributed as dist
from gpu_checks import (
    check_algorithms,
    check_back_to_back,
    check_mismatch,
    check_numerics,
    check_timeout,
    probe,
    traffic,
)
from gpu_stand_in import launches

import tricoll
from tricoll.fabric import cuda, nvshmem
from tricoll.kernels import exchange
from tricoll.kernels.jit import TRITON

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

LINES = []


@pytest.fixture(scope="module", autouse=True)
def table():
    yield
    print("\n" + "\n".join(LINES))


def note(what, said):
    LINES.append(f"{what:<58} {said}")


def test_numerics_of_the_hardware():
    device = cuda.current_device()
    launcher = cuda.Launcher(device, "mapped", cooperative=False)
    dtypes = [d for d in TRITON if "float8" not in str(d) or cuda.arch_of(device) >= 89]

    def launch(arguments):
        there = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
        launcher(probe, 1, there)
        arguments["out"].copy_(there["out"])

    note("casts and operators, bit for bit those of the CPU", f"{check_numerics(launch, dtypes)} cases")


@pytest.mark.parametrize(("n", "node_size"), [(2, 0), (3, 0), (4, 2), (8, 4)])
def test_all_algorithms_in_loopback(n, node_size):
    start = time.monotonic()
    done = check_algorithms(tricoll.loopback, n, (300_007, 1), node_size, device="cuda", timeout=60.0)
    note(f"loopback, {n} ranks, node size {node_size or n}", f"{done} calls right, {time.monotonic() - start:.1f} s")


def test_500_calls_without_waiting():
    check_back_to_back(tricoll.loopback, 4, 500, timeout=60.0)
    note("500 calls back to back, 4 ranks", "right")


def replays(comm):
    x, y = torch.zeros(5000, device="cuda"), torch.zeros(300, device="cuda")
    eager = torch.ones(77, device="cuda")
    seen = []
    comm.all_reduce(x)
    comm.all_reduce(y, "max")
    comm.barrier()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="relaxed")
    comm.all_reduce(x)
    comm.all_reduce(y, "max")
    graph.capture_end()
    for k in range(50):
        x.fill_(comm.rank + k)
        y.fill_(comm.rank - k)
        graph.replay()
        if k % 7 == 0:
            eager.fill_(1.0)
            comm.all_reduce(eager, async_op=k % 2 == 0)
            comm.barrier()
            seen.append(eager[0].item())
        seen += [x[0].item(), y[-1].item()]
    return seen


def test_graphs_are_replayed_among_other_calls():
    n = 2
    expected = []
    for k in range(50):
        expected += ([2.0] if k % 7 == 0 else []) + [1.0 + 2 * k, 1.0 - k]
    assert tricoll.loopback(replays, n, timeout=60.0) == [expected] * n
    note("a CUDA graph replayed 50 times among eager calls", "right")


def cold_capture(comm):
    graph = torch.cuda.CUDAGraph()
    x = torch.zeros(11, device="cuda", dtype=torch.float16)
    graph.capture_begin(capture_error_mode="relaxed")
    try:
        comm.all_reduce(x)
    finally:
        graph.capture_end()


def test_a_capture_of_what_has_not_run_says_so():
    with pytest.raises(RuntimeError, match="before the capture"):
        tricoll.loopback(cold_capture, 2, timeout=20.0)


def test_a_kernel_gives_up_after_its_timeout():
    check_timeout(tricoll.loopback)


def test_different_calls_are_a_mismatch():
    check_mismatch(tricoll.loopback)


def test_too_many_ranks_are_refused():
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    with pytest.raises(ValueError, match="take fewer ranks or channels"):
        tricoll.loopback(lambda comm: comm.all_reduce(torch.ones(4, device="cuda")), 8, channels=sms)


def bandwidth(comm, size, algorithm, wire, turns):
    x = torch.ones(size, device="cuda")
    for _ in range(3):
        comm.all_reduce(x, "avg", wire=wire, algo=algorithm)
    comm.barrier()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(turns):
        comm.all_reduce(x, "avg", wire=wire, algo=algorithm)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / turns / 1e3


def copied(size):
    a, b = torch.ones(size, device="cuda"), torch.empty(size, device="cuda")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for turn in range(13):
        if turn == 3:
            begin.record()
        b.copy_(a)
    end.record()
    end.synchronize()
    return 2 * 4 * size * 10 / (begin.elapsed_time(end) / 1e3)


@pytest.mark.parametrize("algorithm", ["two_shot", "ring", "one_shot"])
def test_speed_in_loopback(algorithm):
    copy = copied(1 << 26)
    if algorithm == "two_shot":
        note("a copy in the GPU's memory", f"{copy / 1e9:.0f} GB/s read and written")
    for n, size in ((2, 1 << 24), (4, 1 << 24), (8, 1 << 12)):
        if algorithm == "one_shot" and size > 1 << 20:
            continue
        seconds = max(tricoll.loopback(bandwidth, n, size, algorithm, "bf16", 20, timeout=60.0))
        share = ""
        if algorithm != "one_shot":
            moved = traffic(algorithm, n, 4 * size, 2 * size) / seconds
            share = f", {moved / 1e9:.0f} GB/s of memory traffic, {moved / copy:.0%} of a copy's"
        note(f"{algorithm}, {n} ranks, {4 * size >> 10} KiB, BF16 wire", f"{seconds * 1e6:.0f} us{share}")


def test_nvshmem_with_one_pe():
    if reason := nvshmem.unavailable():
        pytest.skip(reason)
    fabric = nvshmem.NvshmemFabric(dist.HashStore(), 0, 1, 60.0)
    heap = fabric.allocate(1 << 20, {"mapped": False})
    assert heap.words.is_cuda and int(heap.words.sum()) == 0
    assert heap.bases.tolist() == [0], "the PE number"
    # Loads a module with NVSHMEM in it, and initialises it.
    (_, kernel, given), *_ = launches(lambda comm: comm.gather(torch.ones(16)), 2, "put")
    assert kernel is exchange.exchange
    there = {k: v.to(fabric.device) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    fabric._launcher.load(kernel, there)
    note("NVSHMEM with one PE", f"initialised, a put kernel is loaded; {fabric.mapped=}, {fabric.multicast=}")
    fabric.close()
