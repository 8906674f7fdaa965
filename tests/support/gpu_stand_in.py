"""What Triton and PyTorch ask of a GPU when a kernel is compiled, loaded and launched; nothing runs."""

import collections
import contextlib
from types import SimpleNamespace

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import compiler

import tricoll
from tricoll.fabric import cuda, sim
from tricoll.gpu import GPU


class Driver:
    """Says to Triton that there is a GPU. ``loaded`` and ``launched`` have what came to it."""

    def __init__(self, arch):
        self.arch, self.stream, self.loaded, self.launched = arch, 5, [], []
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 227 << 10}, load_binary=self.load
        )

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return self.stream

    def get_current_target(self):
        return GPUTarget("cuda", self.arch, 32)

    def load(self, name, binary, shared, device):
        self.loaded.append(name)
        return 70 + len(self.loaded), 80 + len(self.loaded), 100, 0, 1024  # module, function, registers, ...

    def launcher_cls(self, source, metadata):
        def launch(x, y, z, stream, function, packed, launch_metadata, enter, leave, *args):
            self.launched.append(SimpleNamespace(grid=(x, y, z), stream=stream, metadata=metadata, args=args))

        return launch


@contextlib.contextmanager
def gpu(arch, kernels, capturing=lambda: False):
    """A GPU of an architecture, on which none of these kernels has been loaded."""
    driver = Driver(arch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton.runtime.driver, "_active", driver)
        patch.setattr(compiler, "max_shared_mem", lambda device: 227 << 10)
        patch.setattr(torch.cuda, "get_device_capability", lambda device=None: divmod(arch, 10))
        patch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        patch.setattr(torch.cuda, "is_current_stream_capturing", capturing)
        for kernel in kernels:
            patch.setattr(kernel, "device_caches", collections.defaultdict(kernel.create_binder))
        hooks = list(triton.knobs.runtime.kernel_load_end_hook.calls)
        yield driver
        triton.knobs.runtime.kernel_load_end_hook.calls[:] = hooks
        for compiled in (c for kernel in kernels for cache in kernel.device_caches.values() for c in cache[0].values()):
            compiled.module = None  # or Triton would unload it from a driver that is gone


def launcher(link, arch, loaded=None, cooperative=True):
    """tricoll.fabric.cuda.Launcher on that GPU."""
    made = cuda.Launcher(torch.device("cuda", 0), link, cooperative, loaded)
    assert made.options["launch_cooperative_grid"] is cooperative
    return made


def launches(calls, n, *links):
    """What a communicator with the settings of GPUs passes to kernels: (link, kernel, arguments) of each launch."""
    fabric = next(v for v in vars(sim).values() if isinstance(v, type) and "launch" in vars(v))
    launch = fabric.launch
    seen = []

    def watched(self, kernel, channels, given):
        seen.append(("mapped" if given["MAPPED"] else "put", kernel, given))
        return launch(self, kernel, channels, given)

    shape = {name: getattr(GPU, name) for name in ("slots", "slot_bytes", "window", "block", "node_size")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fabric, "launch", watched)
        for link in links:
            tricoll.simulate(calls, n, link=link, channels=1, **shape)
    return seen
