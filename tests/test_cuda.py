"""Launching on a GPU and its streams, with stand-ins for the driver; what is compiled is in tests/compiled."""

import contextlib
import ctypes
from types import SimpleNamespace

import gpu_stand_in
import pytest
import torch
from gpu_stand_in import launcher

import tricoll
from tricoll import gpu
from tricoll.fabric import cuda
from tricoll.kernels import exchange

BARRIER = exchange.exchange


@pytest.fixture(scope="module")
def given():
    """The arguments of a small kernel: a gather's."""
    seen = gpu_stand_in.launches(lambda comm: comm.gather(torch.ones(16)), 2, "mapped")
    (_, kernel, arguments), *_ = seen
    assert kernel is BARRIER
    return arguments


def test_a_kernel_is_not_loaded_during_a_capture(given):
    capturing = [True]
    with gpu_stand_in.gpu(90, [BARRIER], lambda: capturing[0]) as driver:
        launch = launcher("mapped", 90)
        with pytest.raises(RuntimeError, match="exchange has not run with these dtypes and settings yet"):
            launch(BARRIER, 16, given)
        assert driver.loaded == driver.launched == []
        capturing[0] = False
        launch(BARRIER, 16, given)
        capturing[0] = True
        launch(BARRIER, 16, given)
        assert len(driver.launched) == 2 and len(driver.loaded) == 1
        with pytest.raises(RuntimeError, match="make the same call once before the capture"):
            launch(BARRIER, 16, {**given, "SLOT": 64})
        assert len(driver.loaded) == 1


def test_loading_does_not_launch(given):
    with gpu_stand_in.gpu(90, [BARRIER]) as driver:
        launch = launcher("mapped", 90, cooperative=False)
        compiled = launch.load(BARRIER, given)
        assert compiled.n_regs == 100 and len(driver.loaded) == 1 and not driver.launched
        launch(BARRIER, 4, given)
        assert len(driver.loaded) == 1
        assert driver.launched[0].grid == (4, 1, 1)
        assert not driver.launched[0].metadata.launch_cooperative_grid


def test_a_module_that_cannot_be_initialised_is_an_error_of_the_launch(given):
    def broken(module):
        raise tricoll.CollectiveError(f"module {module}")

    with gpu_stand_in.gpu(90, [BARRIER]) as driver:
        with pytest.raises(tricoll.CollectiveError, match="module 71"):
            launcher("mapped", 90, broken)(BARRIER, 16, given)
        assert not driver.launched
        assert cuda._here.launcher is None


def test_options():
    assert gpu.options("mapped", 90) == {
        "num_warps": 8,
        "maxnreg": 255,
        "enable_fp_fusion": False,
        "launch_cooperative_grid": True,
    }


# Streams


class Stream:
    def __init__(self, device=None, priority=0):
        self.log, self.priority = [], priority

    def wait_event(self, event):
        self.log.append(event)

    def synchronize(self):
        self.log.append("synchronize")


@pytest.fixture
def streams(monkeypatch):
    now, modes = [Stream()], [0]

    @contextlib.contextmanager
    def on(stream):
        now.append(stream)
        yield
        now.pop()

    def exchange_mode(pointer):
        new = pointer._obj.value
        pointer._obj.value = modes[-1]
        modes.append(new)
        return 0

    driver = SimpleNamespace(cuThreadExchangeStreamCaptureMode=exchange_mode)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: now[-1])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(torch, "zeros", unpinned(torch.zeros))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    capturing = [False]
    made = cuda.CudaStreams(torch.device("cpu"))
    made.modes, made.capture = modes, capturing
    return made


def unpinned(zeros):
    return lambda *shape, pin_memory=False, **options: zeros(*shape, **options)


def test_status_is_read_over_a_stream_of_its_own_and_during_anybodys_capture(streams):
    blocks = [torch.arange(16).view(2, 8), torch.ones(2, 8, dtype=torch.int64)]
    assert streams.read(blocks[:1]) == [blocks[0].tolist()]
    blocks[0][0, 0] = 9
    assert streams.read(blocks) == [block.tolist() for block in blocks]
    assert streams._copies.log == ["synchronize"] * 2
    assert streams.modes == [0, 2, 0, 2, 0], "relaxed while it copies, then as before"
    assert streams._spare.numel() == cuda.MIRRORED - 32
    many = [torch.full((64, 8), k) for k in range(40)]  # more than there is memory for
    assert streams.read([*blocks, *many]) == [block.tolist() for block in [*blocks, *many]]
    word = torch.zeros(3, dtype=torch.int64)
    streams.write([word[:1], word[2:]], 5)
    assert word.tolist() == [5, 0, 5]


def test_memory_is_kept_for_streams_of_its_own_only(streams):
    kept = []
    tensor = SimpleNamespace(record_stream=kept.append)
    own = streams.own(("send", 1))
    assert own is streams.own(("send", 1)) and own is not streams.own(None)
    assert own.priority == -1
    streams.keep([tensor])
    assert kept == []
    with streams.on(own):
        streams.keep([tensor])
    assert kept == [own]


def test_tables_are_not_copied_during_a_capture(streams):
    table = torch.arange(5)
    assert torch.equal(streams.upload(table), table)
    streams.capture[0] = True
    with pytest.raises(RuntimeError, match="make the same call once before the capture"):
        streams.upload(table)


def test_a_driver_that_refuses():
    with pytest.raises(tricoll.CollectiveError, match="cuX failed with CUDA driver error 999"):
        cuda.check_driver(999, "cuX")
    cuda.check_driver(0, "cuX")


@pytest.mark.parametrize(
    ("version", "available", "capability", "reason"),
    [
        (None, False, None, "is not a CUDA build"),
        ("13.0", False, None, "there is no GPU here, or no driver"),
        ("13.0", True, (7, 5), r"has compute capability \(7, 5\); kernels need \(8, 0\)"),
        ("13.0", True, (9, 0), None),
    ],
)
def test_why_it_is_unavailable(monkeypatch, version, available, capability, reason):
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "T4")
    if reason is None:
        assert cuda.unavailable() is None
    else:
        with pytest.raises(AssertionError, match=reason):
            raise AssertionError(cuda.unavailable())


def test_memory_that_torch_has_not_allocated():
    described = cuda.DeviceMemory(4096, 16).__cuda_array_interface__
    assert described["data"] == (4096, False) and described["shape"] == (16,) and described["typestr"] == "<i8"
