"""Several ranks on one device: how their threads meet, what fits, and all of it with threads of the CPU for streams."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import gpu_checks
import pytest
import torch
from enqueued import Stream, Streams, over, poll

import tricoll
from tricoll import cost, gpu, testing
from tricoll.communicator import Communicator
from tricoll.fabric import cuda, loopback
from tricoll.fabric.cpu import convert
from tricoll.fabric.host import HostProgram
from tricoll.kernels import jit
from tricoll.settings import settings_for


class Cpu:
    """tricoll.fabric.loopback.Device: launches put a run of the kernel by Python on a thread."""

    device = torch.device("cpu")

    def __init__(self):
        self.heaps, self.starts = {}, []

    def stream(self):
        return Stream("rank")

    def streams(self):
        return Streams()

    def memory(self, words):
        heap = torch.zeros(words, dtype=torch.int64)
        self.heaps[heap.data_ptr()] = heap
        return heap

    def start(self, launches, ranks):
        self.starts.append(len(launches))
        for launch in launches:
            launch.stream.todo.put(lambda launch=launch: self.run(launch))

    def run(self, launch):
        heaps = [self.heaps[address].view(torch.uint8) for address in launch.arguments["bases"].tolist()]
        rank = SimpleNamespace(
            rank=launch.arguments["me"], heaps=heaps, interpreted=False, scratch=SimpleNamespace(memory={}), poll=poll
        )
        for channel in range(launch.channels):
            before = jit.bind(HostProgram(rank, channel))
            try:
                launch.kernel(**convert(launch.kernel, launch.arguments, False))
            finally:
                jit.bind(before)


def run(fn, n, *args, timeout=20.0, below=None, **settings):
    chosen = replace(settings_for(**{"channels": 2, "slot_bytes": 1024, **settings}), multicast=False)
    connect = lambda fabric: Communicator(fabric, chosen, timeout, False, cost.load_profile("nvlink"))
    return loopback.run(fn, n, args, timeout, connect, below or Cpu())


def collectives(comm):
    x = testing.make_inputs(comm.world_size, (300,), torch.float32, "mixed", 5)[comm.rank].clone()
    outs = [over(comm, comm.all_reduce(x.clone(), "avg", wire="bf16", algo=algo)) for algo in ("two_shot", "ring")]
    work = comm.all_reduce(x.clone(), "avg", wire="bf16", algo="two_shot", async_op=True)
    right, left = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    got = torch.zeros(9)
    comm.send(torch.full((9,), float(comm.rank)), right)
    comm.recv(got, left)
    assert comm.fabric == "loopback"
    return outs, over(comm, work.result()), over(comm, got)


def test_all_ranks_in_one_process():
    below = Cpu()
    results = run(collectives, 3, below=below)
    inputs = testing.make_inputs(3, (300,), torch.float32, "mixed", 5)
    for k, algo in enumerate(("two_shot", "ring")):
        testing.check_all_reduce([outs[k] for outs, _, _ in results], inputs, "avg", torch.bfloat16, algo)
    for r, (outs, late, got) in enumerate(results):
        assert torch.equal(outs[0].view(torch.int32), late.view(torch.int32))
        assert torch.equal(got, torch.full((9,), (r - 1) % 3.0))
    assert below.starts.count(3) == 4 and below.starts.count(1) == 6, "collectives together, messages alone"


def test_a_rank_that_leaves_is_named():
    def fn(comm):
        if comm.rank == 1:
            raise KeyError("mine")
        comm.all_reduce(torch.ones(3))

    with pytest.raises(KeyError, match="mine"):
        run(fn, 3)


def test_a_rank_that_does_not_come_is_named():
    def fn(comm):
        if comm.rank == 1:
            time.sleep(1.0)
        comm.all_reduce(torch.ones(3))

    with pytest.raises(tricoll.CollectiveTimeout, match=r"launch 1: ranks \[1\] did not come within 0.4 s"):
        run(fn, 3, timeout=0.4)


@pytest.mark.parametrize(
    "check",
    [gpu_checks.check_timeout, gpu_checks.check_mismatch, lambda run: gpu_checks.check_back_to_back(run, 3, 60)],
)
def test_what_is_checked_on_a_gpu(check):
    check(run)


def test_put_links_are_refused():
    with pytest.raises(ValueError, match="loopback has mapped links only"):
        run(lambda comm: None, 2, link="put")


def test_what_the_last_one_raises_all_raise():
    meeting = loopback.Meeting(2, 5.0)
    said = []

    def last(brought):
        assert brought == {0: "a", 1: "b"}
        raise ValueError("too many")

    def come(rank, mine):
        with pytest.raises(ValueError, match="too many"):
            meeting.meet(rank, "x", mine, last)
        said.append(meeting.meet(rank, "x", mine, lambda brought: sorted(brought.values())))

    other = threading.Thread(target=come, args=(1, "b"))
    other.start()
    come(0, "a")
    other.join(5)
    assert said == [["a", "b"], ["a", "b"]]
    assert not meeting._here and not meeting._done


def test_what_fits_on_a_gpu():
    assert loopback.programs_per_sm(255, 8192, 228 << 10) == 1
    assert loopback.programs_per_sm(128, 8192, 228 << 10) == 2
    assert loopback.programs_per_sm(64, 1024, 228 << 10) == 4
    assert loopback.programs_per_sm(64, 100 << 10, 228 << 10) == 2
    loopback.check_fits(8, 16, 132, 1)
    with pytest.raises(ValueError, match=r"9 ranks of 16 channels are 144 programs, and this GPU holds 132"):
        loopback.check_fits(9, 16, 132, 1)
    assert gpu.GPU.channels == 16


@pytest.mark.skipif(cuda.unavailable() is None, reason="there is a GPU")
def test_without_a_gpu_it_says_why():
    with pytest.raises(tricoll.CollectiveError, match=r"tricoll\.loopback cannot be used: .*CUDA|GPU"):
        tricoll.loopback(lambda comm: None, 2)


def test_stand_ins_have_what_the_real_ones_have():
    public = lambda kind: {name for name in vars(kind) if not name.startswith("_")}
    assert public(loopback.Gpu) <= public(Cpu)
    assert public(cuda.CudaStreams) <= public(Streams)
