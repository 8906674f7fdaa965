"""No variable and no profile of whoever runs the tests; stand-ins for torch.cuda and pynvml."""

import os
import sys
import types

import pytest
import torch
from typer.testing import CliRunner

from tricoll import tuned
from tricoll.cli import app
from tricoll.doctor import environment, selftest


@pytest.fixture(autouse=True)
def nobody_elses(monkeypatch, tmp_path):
    """No variable of whoever runs the tests, and no profile of this machine."""
    for name in list(os.environ):
        if name in environment.EFFECTS or name.startswith(environment.PREFIXES):
            monkeypatch.delenv(name)
    monkeypatch.setattr(tuned, "folder", lambda: tmp_path / "profiles")


@pytest.fixture
def run():
    return lambda *arguments: CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "100"})


@pytest.fixture
def shared(pool, monkeypatch):
    """The tests' own ranks, instead of new ones."""

    class Shared:
        def __init__(self, ranks):
            self.ranks = ranks

        def __enter__(self):
            return pool(self.ranks)

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(selftest, "Pool", Shared)


class NVMLError(Exception):
    pass


@pytest.fixture
def cuda(monkeypatch):
    """``cuda(4, arch=(9, 0), reach=..., links=[18, 18, 0, 18])``: a machine with GPUs, as PyTorch and NVML show it."""

    def make(count, arch=(9, 0), reach=lambda i, j: True, links=None, driver="580.1", newest=13000, build="13.0"):
        properties = lambda i: types.SimpleNamespace(
            name="H200", total_memory=150 * 10**9, major=arch[0], minor=arch[1], multi_processor_count=132, uuid=f"u{i}"
        )
        monkeypatch.setattr(torch.version, "cuda", build)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: arch)
        monkeypatch.setattr(torch.cuda, "can_device_access_peer", reach)
        if links is None:
            monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it raises ImportError
            return

        def state(handle, link):
            if link >= 6:
                raise NVMLError("no such link")
            return int(link < links[int(handle.removeprefix("GPU-u"))])

        nvml = types.SimpleNamespace(
            NVMLError=NVMLError,
            nvmlInit=lambda: None,
            nvmlShutdown=lambda: None,
            nvmlSystemGetDriverVersion=lambda: driver.encode(),
            nvmlSystemGetCudaDriverVersion=lambda: newest,
            nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
            nvmlDeviceGetNvLinkState=state,
        )
        monkeypatch.setitem(sys.modules, "pynvml", nvml)

    return make
