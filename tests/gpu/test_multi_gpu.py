"""Several GPUs: ``torchrun --nproc-per-node=8 -m pytest -m multigpu -s tests/gpu/test_multi_gpu.py``, once as it is and
once with NVSHMEM_DISABLE_P2P=1, so that every link is a put. See docs/gpu.md.
"""

import os
import time

import pytest
import torch
import torch.distributed as dist
from gpu_checks import play_all, steps
from streams import Played

import tricoll
from tricoll.fabric import nvshmem

pytestmark = [
    pytest.mark.multigpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif("RANK" not in os.environ, reason="start it with torchrun, one process a GPU"),
]

LINES = []


@pytest.fixture(scope="module")
def world():
    """This rank's place in torch's world, over Gloo for the tests' own talk and NCCL to compare with."""
    if reason := nvshmem.unavailable():
        pytest.skip(reason)
    os.environ.setdefault("TRICOLL_HEAP_BYTES", str(2 << 30))  # room for several communicators at once
    os.environ.setdefault("NVSHMEM_SYMMETRIC_SIZE", str(5 << 30))
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    yield dist.get_rank(), dist.get_world_size()
    if dist.get_rank() == 0:
        print("\n" + "\n".join(LINES))
    tricoll.destroy()
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=["auto", "put"])
def comm(world, request):
    with tricoll.init(fabric="nvshmem", link=request.param, timeout=60.0) as made:
        yield made


def gathered(value):
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, value)
    return everybody


def test_all_algorithms(comm):
    settings, n = comm._settings, comm.world_size
    made = steps(n, settings.node_size, settings.mapped, (300_007, 1), multicast=settings.multicast)
    if n < 2:
        made = [step for step in made if step.collective != "send"]
    played = [Played(step, n, settings.node_size, "cuda") for step in made]
    start = time.monotonic()
    outcomes = play_all(comm, played)
    comm.barrier()
    mine = [out if out is None else out.cpu() for out in outcomes]
    for each, results in zip(played, zip(*gathered(mine), strict=True), strict=True):
        if each.step.collective != "barrier":
            each.check_bits(list(results))
    link = "mapped" if settings.mapped else "put"
    LINES.append(f"{n} ranks, {link} links: {len(made)} calls right, {time.monotonic() - start:.1f} s")


def test_a_group_of_some_ranks(comm):
    if comm.world_size < 3:
        pytest.skip("needs three ranks")
    ranks, link = list(range(1, comm.world_size)), "mapped" if comm._settings.mapped else "put"
    group = dist.new_group(ranks)
    if comm.rank in ranks:
        with tricoll.init(group, fabric="nvshmem", link=link, slot_bytes=1 << 16) as part:
            x = torch.full((1000,), float(comm.rank), device="cuda")
            part.all_reduce(x)
            part.barrier()
            assert x[0].item() == sum(ranks)
    dist.barrier()


def test_a_late_rank_is_named(world):
    rank, n = world
    with tricoll.init(fabric="nvshmem", timeout=3.0) as short:
        short.barrier()
        if rank == n - 1:
            time.sleep(8)
        else:
            short.all_reduce(torch.ones(100, device="cuda"))
            with pytest.raises(tricoll.CollectiveTimeout, match=rf"ranks \[{n - 1}\] did not take part"):
                short.barrier()
    dist.barrier()


def test_graphs(comm):
    x = torch.zeros(100_000, device="cuda")
    comm.all_reduce(x)
    comm.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        comm.all_reduce(x)
    for k in range(20):
        x.fill_(comm.rank + k)
        graph.replay()
        if k % 5 == 0:
            comm.barrier()
        n = comm.world_size
        assert x[-1].item() == n * (n - 1) / 2 + n * k


def seconds(call, turns):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(5):
        call()
    begin.record()
    for _ in range(turns):
        call()
    end.record()
    end.synchronize()
    return max(gathered(begin.elapsed_time(end) / turns / 1e3))


def test_speed_against_nccl(comm):
    n = comm.world_size
    for power in range(10, 29, 2):
        size, turns = (1 << power) // 4, 20 if power < 24 else 5
        x = torch.ones(size, device="cuda")
        half = x.bfloat16()
        dist.barrier()
        nccl = seconds(lambda: dist.all_reduce(x, dist.ReduceOp.AVG), turns)
        nccl_half = seconds(lambda: dist.all_reduce(half, dist.ReduceOp.AVG), turns)
        ours = seconds(lambda: comm.all_reduce(x, "avg", wire="bf16"), turns)
        comm.barrier()
        busbw = lambda t: 2 * (n - 1) / n * 4 * size / t / 1e9
        LINES.append(
            f"{4 * size:>12} bytes FP32, auto is {comm.explain('all_reduce', 2 * size).winner:<12} "
            f"tricoll BF16 wire {ours * 1e6:9.1f} us ({busbw(ours):6.1f} GB/s bus)   NCCL FP32 {nccl * 1e6:9.1f} us "
            f"({busbw(nccl):6.1f})   NCCL on BF16 {nccl_half * 1e6:9.1f} us without the casts"
        )
