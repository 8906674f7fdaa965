"""Stand-ins for NVSHMEM, cuda-python and the GPU: they record what is called, and memory is the CPU's."""

import contextlib
import ctypes
import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from enqueued import Streams

from tricoll.fabric import cuda, gpus, nvshmem, symmetric


class NVSHMEMError(Exception):
    def __init__(self, status):
        self.status = status


class Uid:
    def __init__(self):
        self._data = np.zeros(1, dtype=[("version", np.int32), ("internal", np.int8, (124,))]).view(np.recarray)


class Fake:
    """One process's NVSHMEM. ``log`` has the calls in order; the other attributes say how it behaves."""

    def __init__(self, rank, n):
        self.rank, self.n, self.log, self.status = rank, n, [], 0
        self.version, self.gpu, self.host = "3.8.0", f"0000:{rank:02x}:00.0", "one"
        self.unmapped, self.atomics, self.multicast, self.room, self.hang, self.module = (
            set(),
            True,
            0,
            1 << 40,
            None,
            0,
        )
        self.memory = {}

    def call(self, name, *args):
        self.log.append((name, *args))

    def malloc(self, size):
        self.call("malloc", size)
        if size > self.room:
            return 0
        self.room -= size
        memory = torch.full((size + 512,), 7, dtype=torch.uint8)
        address = -(-memory.data_ptr() // 512) * 512
        self.memory[address] = memory
        return address

    def free(self, ptr):
        self.call("free", ptr)
        del self.memory[ptr]

    def ptr(self, dest, pe):
        return 0 if pe in self.unmapped else dest if pe == self.rank else dest + (pe + 1) * (1 << 40)

    def mc_ptr(self, team, ptr):
        if self.multicast < 0:
            raise NVSHMEMError(3)
        return self.multicast and ptr

    def cumodule_init(self, module):
        self.call("cumodule_init", module)
        return self.module

    def get_unique_id(self, empty=False):
        uid = Uid()
        if not empty:
            uid._data.version, uid._data.internal[:] = 1, np.arange(124)
        return uid

    def init(self, device=None, uid=None, rank=None, nranks=None, mpi_comm=None, initializer_method=""):
        if self.hang is not None:
            self.hang.wait(20)
        assert initializer_method == "uid" and mpi_comm is None
        self.call("init", device.index, rank, nranks, bytes(uid._data.view(np.uint8)).hex())
        self.status = 2

    def finalize(self):
        self.call("finalize")
        self.status = 0

    def driver(self):
        answer = lambda value: (0, value)
        return SimpleNamespace(
            cuDeviceGet=lambda ordinal: answer(ordinal),
            cuDeviceGetPCIBusId=lambda length, dev: answer(self.gpu.encode() + b"\0"),
            cuDeviceGetByPCIBusId=lambda pciBusId: answer(pciBusId) if self.atomics is not None else (101, None),
            cuDeviceGetP2PAttribute=lambda attrib, srcDevice, dstDevice: answer(int(self.atomics)),
            cuPointerGetAttribute=lambda attribute, ptr: answer(ptr),
            CUdevice_P2PAttribute=int,
            CUpointer_attribute=int,
        )


class Device:
    def __init__(self, index):
        self.index = index

    def set_current(self):
        pass


class Launcher:
    """tricoll.fabric.cuda.Launcher: says what it would launch, and loads a module for each kernel."""

    made = None

    def __init__(self, device, link, cooperative, loaded=None):
        self.link, self.cooperative, self.loaded, self.launched = link, cooperative, loaded, []
        Launcher.made = self

    def __call__(self, kernel, channels, arguments):
        if kernel not in self.launched and self.loaded is not None:
            self.loaded(len(self.launched) + 1)
        self.launched.append(kernel)


@contextlib.contextmanager
def installed(fake):
    """The fake takes the place of the packages and of the GPU, in this process."""
    module = lambda name, **names: vars(modules.setdefault(name, ModuleType(name))).update(names)
    modules = {}
    module("nvshmem")
    bindings = {name: getattr(fake, name) for name in ("malloc", "free", "ptr", "mc_ptr", "cumodule_init")}
    module("nvshmem.bindings", NVSHMEMError=NVSHMEMError, Team_id=SimpleNamespace(TEAM_WORLD=0), **bindings)
    module(
        "nvshmem.core",
        get_unique_id=fake.get_unique_id,
        init=fake.init,
        finalize=fake.finalize,
        init_status=lambda: fake.status,
        my_pe=lambda: fake.rank,
        n_pes=lambda: fake.n,
        get_version=lambda: SimpleNamespace(libnvshmem_version=fake.version),
    )
    module("nvshmem", bindings=modules["nvshmem.bindings"], core=modules["nvshmem.core"])
    module("cuda.core", Device=Device)
    module("cuda.bindings", driver=fake.driver())
    module("cuda", core=modules["cuda.core"], bindings=modules["cuda.bindings"])
    here = threading.local()
    with pytest.MonkeyPatch.context() as patch:
        for name, stand_in in modules.items():
            patch.setitem(sys.modules, name, stand_in)
        patch.setattr(torch.cuda, "set_device", lambda device: setattr(here, "device", device))
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch.cuda, "device_count", lambda: 8)
        patch.setattr(torch.cuda, "synchronize", lambda device=None: fake.call("synchronize"))
        patch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=lambda: None))
        patch.setattr(nvshmem, "unavailable", lambda: None)
        patch.setattr(nvshmem, "_version", lambda package: fake.version)
        patch.setattr(nvshmem.socket, "gethostname", lambda: fake.host)
        patch.setattr(gpus, "device_of", lambda index: torch.device("cpu"))
        patch.setattr(cuda, "CudaStreams", lambda device: Streams())
        patch.setattr(cuda, "Launcher", Launcher)
        patch.setattr(cuda, "words_at", words_at)
        patch.setattr(symmetric, "_world", None)
        yield fake


def words_at(address, words, device):
    return torch.frombuffer((ctypes.c_int64 * words).from_address(address), dtype=torch.int64)


def fabric(comm, name, timeout=10.0, ranks=None):
    """The fabric of some ranks of a communicator (None: all), on this rank; ``name``: used once."""
    ranks = list(range(comm.world_size)) if ranks is None else ranks
    store = dist.PrefixStore(f"fake/{name}", comm._fabric.store)
    return nvshmem.NvshmemFabric(store, ranks.index(comm.rank), len(ranks), timeout)
