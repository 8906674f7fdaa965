"""Launching compiled kernels on a GPU, and its streams: what the fabrics with a GPU share.

Nothing here waits for a kernel. What is asked of the device while kernels run goes over a stream of its own, whose
copies are all that is waited for.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from triton import knobs

from tricoll import gpu
from tricoll.errors import CollectiveError

MIN_CAPABILITY = (8, 0)  # Ampere: the first with hardware BF16 conversion
MIRRORED = 1 << 14  # words of status blocks that there is pinned memory for, to begin with: 128 blocks of 16 channels
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


def unavailable() -> str | None:
    """Why compiled kernels cannot run here, or None."""
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is not a CUDA build"
    if not torch.cuda.is_available():
        return "torch.cuda.is_available() is False: there is no GPU here, or no driver that PyTorch can use"
    capability = torch.cuda.get_device_capability()
    if capability < MIN_CAPABILITY:
        return f"{torch.cuda.get_device_name()} has compute capability {capability}; kernels need {MIN_CAPABILITY}"
    return None


def current_device() -> torch.device:
    """The GPU that this thread uses."""
    return torch.device("cuda", torch.cuda.current_device())


def arch_of(device: torch.device) -> int:
    """The compute capability of a GPU, as 90 for sm_90."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


class _Here(threading.local):
    """What this thread is launching."""

    launcher: Launcher | None = None


_here = _Here()


def _module_loaded(module: Any, *_: Any) -> None:
    # Triton's hook, for every module that this process loads, of whatever library.
    launcher = _here.launcher
    if launcher is not None and launcher.loaded is not None:
        launcher.loaded(int(module))


class Launcher:
    """Launches kernels for one kind of link on one GPU, compiled as :mod:`tricoll.gpu` says."""

    def __init__(
        self, device: torch.device, link: str, cooperative: bool, loaded: Callable[[int], None] | None = None
    ) -> None:
        """``loaded``: called with each CUDA module that a launch has loaded, before the kernel runs."""
        self.device, self.loaded = device, loaded
        self.options = gpu.options(link, arch_of(device), cooperative)
        knobs.runtime.kernel_load_end_hook.add(_module_loaded)  # adds it once

    def __call__(self, kernel: Any, channels: int, arguments: dict[str, Any]) -> None:
        """Put a kernel with one program a channel on the current stream. Compiles and loads it the first time."""
        with self._launching():
            if torch.cuda.is_current_stream_capturing() and not self._is_loaded(kernel, arguments):
                raise RuntimeError(
                    f"{kernel.__name__} has not run with these dtypes and settings yet, and a kernel cannot be loaded "
                    "while a CUDA graph is captured: make the same call once before the capture"
                )
            kernel.run(grid=(channels,), warmup=False, **taken(kernel, arguments), **self.options)

    def load(self, kernel: Any, arguments: dict[str, Any]) -> Any:
        """Compile and load a kernel without running it. Returns what Triton has compiled."""
        with self._launching():
            compiled = self._compile(kernel, arguments)
            compiled._init_handles()
            return compiled

    def _is_loaded(self, kernel: Any, arguments: dict[str, Any]) -> bool:
        return self._compile(kernel, arguments).module is not None

    def _compile(self, kernel: Any, arguments: dict[str, Any]) -> Any:
        return kernel.run(grid=(1,), warmup=True, **taken(kernel, arguments), **self.options)

    @contextmanager
    def _launching(self) -> Iterator[None]:
        previous, _here.launcher = _here.launcher, self
        try:
            with torch.cuda.device(self.device):  # Triton launches on the current one
                yield
        finally:
            _here.launcher = previous


def taken(kernel: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a kernel has."""
    return {name: arguments[name] for name in kernel.arg_names}


class CudaStreams:
    """The streams of a GPU. See :class:`tricoll.fabric.base.Streams`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._own: dict[Any, torch.cuda.Stream] = {}
        self._copies = torch.cuda.Stream(device)
        # In pinned memory, which is better not asked for while kernels wait for other ranks.
        self._spare = torch.zeros(MIRRORED, dtype=torch.int64, pin_memory=True)
        self._mirrors: list[torch.Tensor] = []  # for read()
        self._word = torch.zeros(1, dtype=torch.int64, pin_memory=True)

    def current(self) -> Any:
        return torch.cuda.current_stream(self.device)

    def own(self, name: Any) -> Any:
        if name not in self._own:
            # With priority: what waits for other ranks should not wait for this GPU's own queue, too.
            self._own[name] = torch.cuda.Stream(self.device, priority=-1)
        return self._own[name]

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def record(self, stream: Any) -> Any:
        event = torch.cuda.Event()
        event.record(stream)
        return event

    def wait(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def done(self, event: Any) -> bool:
        return bool(event.query())

    def capturing(self) -> bool:
        with torch.cuda.device(self.device):  # whose stream is asked about
            return bool(torch.cuda.is_current_stream_capturing())

    def keep(self, tensors: Sequence[torch.Tensor]) -> None:
        stream = self.current()
        if stream in self._own.values():  # on the caller's stream, the allocator keeps the order by itself
            for tensor in tensors:
                tensor.record_stream(stream)

    def upload(self, values: torch.Tensor) -> torch.Tensor:
        if self.capturing():
            raise RuntimeError(
                "a call with these sizes has not been made yet, and its tables cannot be copied to the GPU while a "
                "CUDA graph is captured: make the same call once before the capture"
            )
        with torch.cuda.stream(self._copies):
            return values.to(self.device)

    def read(self, words: Sequence[torch.Tensor]) -> list[list[list[int]]]:
        with unrestricted(), torch.cuda.stream(self._copies):
            for tensor in words[len(self._mirrors) :]:
                size = tensor.numel()
                if self._spare.numel() < size:
                    self._spare = torch.zeros(max(size, MIRRORED), dtype=torch.int64, pin_memory=True)
                self._mirrors.append(self._spare[:size].view(tensor.shape))
                self._spare = self._spare[size:]
            for mirror, tensor in zip(self._mirrors, words):
                mirror.copy_(tensor, non_blocking=True)
            self._copies.synchronize()
        return [mirror.tolist() for mirror in self._mirrors[: len(words)]]

    def write(self, words: Sequence[torch.Tensor], value: int) -> None:
        with unrestricted(), torch.cuda.stream(self._copies):
            self._word.fill_(value)
            for tensor in words:
                tensor.copy_(self._word, non_blocking=True)
            self._copies.synchronize()


@contextmanager
def unrestricted() -> Iterator[None]:
    """Let this thread copy while another one captures a graph, which CUDA would otherwise take for part of it."""
    exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    mode = ctypes.c_int(RELAXED)
    check_driver(exchange(ctypes.byref(mode)), "cuThreadExchangeStreamCaptureMode")
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


def check_driver(code: int, what: str) -> None:
    """CollectiveError for a driver call that failed."""
    if code:
        raise CollectiveError(f"{what} failed with CUDA driver error {code}")


class DeviceMemory:
    """Memory of a GPU that PyTorch has not allocated, for ``torch.as_tensor``."""

    def __init__(self, address: int, words: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (words,),
            "typestr": "<i8",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


def words_at(address: int, words: int, device: torch.device) -> torch.Tensor:
    """int64 words at an address of a GPU's memory, as a tensor. Whoever owns the memory must outlive it."""
    return torch.as_tensor(DeviceMemory(address, words), device=device)
