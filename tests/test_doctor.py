"""tricoll doctor: right about this machine, and never silent or stopped by what is missing, broken or unknown.

What it says about GPUs is tested with stand-ins for torch.cuda and pynvml: as logic that has not run on a GPU.
"""

import ast
import dataclasses
import errno
import importlib.machinery
import inspect
import json
import os
import re
import socket
import stat
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch
import triton
from typer.testing import CliRunner

import tricoll
from tricoll import dispatch, doctor, tune, world
from tricoll.cli import app
from tricoll.doctor import environment, fabrics, finding, gpu, machine, selftest
from tricoll.doctor.finding import Finding
from tricoll.fabric import host

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "doctor.md"


@pytest.fixture(autouse=True)
def nobody_elses(monkeypatch, tmp_path):
    """No variable of whoever runs the tests, and no profile of this machine."""
    for name in list(os.environ):
        if name in environment.EFFECTS or name.startswith(environment.PREFIXES):
            monkeypatch.delenv(name)
    monkeypatch.setattr(tune, "folder", lambda: tmp_path / "profiles")


@pytest.fixture
def run():
    return lambda *arguments: CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "100"})


def one(probe, name):
    """The finding of a probe by its name."""
    found = [f for f in probe if f.name == name]
    assert len(found) == 1, found
    return found[0]


def every(report):
    return [found for findings in report.sections.values() for found in findings]


# This machine, compared with what others say of it.


def test_it_is_right_about_this_machine():
    report = doctor.examine(test=False)
    assert not report.failed and not [f for f in every(report) if f.state == "failed"]
    data = {f.name: f.data for f in every(report)}
    assert data["Python"] == sys.version.split()[0]
    assert data["PyTorch"].split("+")[0] == torch.__version__.split("+")[0]
    assert data["Triton"] == triton.__version__
    assert data["tricoll"] == tricoll.__version__
    said = lambda *command: subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert data["cores"]["usable"] == int(said("nproc")[0])
    assert data["memory"]["total"] // 1024 == int(re.search(r"MemTotal: +(\d+)", Path("/proc/meminfo").read_text())[1])
    assert data["/dev/shm"]["size"] == int(said("df", "-B1", "--output=size", "/dev/shm")[-1])
    names = {name for _, name in socket.if_nameindex()}
    assert {text.split()[0] for text in data["interfaces"]} <= names - {"lo"}
    assert str(data["limits"]["open_files"] or "unlimited") == said("sh", "-c", "ulimit -n")[0]
    assert data["sim"] is True and data["host"] is True


def test_the_heap_is_what_the_host_fabric_takes(pool):
    """In bytes, for this many ranks."""
    took = pool(2).run(lambda comm: comm._executor.workspace.heap.words.numel() * 8)
    assert took == [machine.heap_bytes(2)] * 2


def test_the_report_fits_the_machine_and_the_screen(run):
    result = run("--no-test")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) < 60 and max(map(len, lines)) <= 100
    assert lines[0] == "software" and "self-test" not in lines
    assert re.fullmatch(r"works here: sim, host.*, not tested; .*", lines[-1].strip())


# Processors, memory and networks that this machine does not have.


def tree(root, files):
    """Files with their texts, under a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "quota", "memory", "processes"),
    [
        ({}, None, None, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None, None, None),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/cpu.max": "150000 100000\n",  # the folder above is tighter
                "sys/fs/cgroup/a/b/memory.max": "4294967296\n",
                "sys/fs/cgroup/a/memory.max": "max\n",
                "sys/fs/cgroup/a/pids.max": "100\n",
            },
            1.5,
            1 << 32,
            100,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000\n",
            },
            0.5,
            1000,
            None,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/job\n3:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
            },
            None,
            None,
            None,
        ),
        ({"proc/self/cgroup": "nonsense\n::\n"}, None, None, None),
    ],
    ids=["none", "v2 endless", "v2", "v1", "v1 endless", "nonsense"],
)
def test_cgroups(files, quota, memory, processes, tmp_path):
    root = tree(tmp_path, {"proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 1024 kB\n", **files})
    assert machine.cpu_quota(root) == quota
    assert one(machine.memory(root), "memory").data["cgroup_limit"] == memory
    assert one(machine.limits(root), "limits").data["processes"] == processes
    found = one(machine.cores(root), "cores")
    assert (found.state == "problem") == (quota is not None and quota < found.data["usable"])


def test_shared_memory_of_a_container(monkeypatch):
    """Docker gives 64 MB."""
    space = types.SimpleNamespace(f_blocks=16384, f_bavail=16000, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: space)
    found = one(machine.shared_memory(), "/dev/shm")
    assert found.state == "problem" and "docker run --shm-size" in found.hint
    assert found.text.startswith("65.54 MB free of 67.11 MB, 3 heaps of 17.")
    monkeypatch.setenv("TRICOLL_SLOT_BYTES", "65536")
    assert one(machine.shared_memory(), "/dev/shm").state == "ok"
    monkeypatch.setenv("TRICOLL_SLOT_BYTES", "nonsense")  # another line says so
    assert one(machine.shared_memory(), "/dev/shm").text == "65.54 MB free of 67.11 MB"


def test_nics(tmp_path, monkeypatch):
    files = {
        "sys/class/net/lo/operstate": "unknown",
        "sys/class/net/eth0/operstate": "up",
        "sys/class/net/eth0/mtu": "9000",
        "sys/class/net/eth0/speed": "100000",
        "sys/class/net/eth1/operstate": "down",
        "sys/class/net/veth/operstate": "unknown",
        "sys/class/net/veth/speed": "-1",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
        "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN",
    }
    root = tree(tmp_path, files)
    assert one(machine.interfaces(root), "interfaces").data == ["eth0 (MTU 9000, 100 Gb/s)", "veth (MTU ?)"]
    found = one(machine.infiniband(root), "RDMA NICs")
    assert found.text == "mlx5_0:1 ACTIVE (InfiniBand, 400 Gb/sec (4X NDR)), mlx5_1:1 DOWN (?, ? Gb/sec)"
    assert found.state == "problem" and "mlx5_1:1" in found.hint and "mlx5_0" not in found.hint
    assert one(machine.infiniband(root), "GPUDirect RDMA").state == "absent"
    tree(root, {"proc/modules": "nvidia_peermem 16384 0 - Live 0x0\n"})
    assert one(machine.infiniband(root), "GPUDirect RDMA").data == ["nvidia_peermem"]
    monkeypatch.setattr(machine.resource, "getrlimit", lambda what: (65536, 65536))
    assert "ulimit -l unlimited" in one(machine.limits(root), "limits").hint


def test_versions_that_do_not_fit(monkeypatch):
    versions = {"tricoll": "0.1.0", "torch": "2.5.1+cu124", "triton": "3.6.0", "numpy": "2.4.6"}
    monkeypatch.setattr(machine, "version", lambda name: versions.get(name, ""))
    found = {f.name: f for f in machine.packages()}
    assert {name: f.state for name, f in found.items()} == {
        "tricoll": "ok", "PyTorch": "problem", "Triton": "ok", "NumPy": "problem",
    }  # fmt: skip
    versions.update(torch="2.10.0", triton="3.10.0")
    assert [f.name for f in machine.packages() if f.state == "problem"] == ["Triton"]
    versions.update(triton="3.9.0+git1", numpy="")
    assert {f.name: f.state for f in machine.packages() if f.state != "ok"} == {"NumPy": "absent"}


# GPUs, by stand-ins.


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


def test_gpus_that_reach_each_other(cuda, tmp_path):
    cuda(2, links=[6, 4])
    found = {f.name: f for f in gpu.gpus(tmp_path)}
    assert found["GPUs"].data == 2
    assert found["GPU 1"].text == "H200, 150 GB, sm_90, 132 multiprocessors" and found["GPU 1"].state == "ok"
    assert found["peer access"].data == [[True, True], [True, True]] and found["peer access"].state == "ok"
    assert found["NVLink"].data == [6, 4]
    driver = one(gpu.driver(tmp_path), "driver")
    assert driver.text == "580.1, for CUDA up to 13.0" and driver.state == "ok"


def test_gpus_that_do_not(cuda, tmp_path):
    cuda(3, reach=lambda i, j: {i, j} != {0, 2})
    found = one(gpu.gpus(tmp_path), "peer access")
    assert found.state == "problem" and "put links" in found.hint
    assert found.text.splitlines() == ["2 pairs do not:", " 0  x x .", " 1  x x x", " 2  . x x"]
    assert "nvidia-ml-py" in one(gpu.gpus(tmp_path), "NVLink").hint


def test_one_gpu_an_old_one_and_a_lost_one(cuda, tmp_path, monkeypatch):
    cuda(1, arch=(7, 5), links=[0])
    found = {f.name: f for f in gpu.gpus(tmp_path)}
    assert "peer access" not in found
    assert found["GPU 0"].state == "problem" and "sm_80" in found["GPU 0"].hint
    assert found["NVLink"].state == "absent"

    def lost(index):
        raise RuntimeError("the GPU has fallen off the bus")

    cuda(2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lost)
    found = {f.name: f for f in gpu.gpus(tmp_path)}
    assert found["GPU 0"].state == found["GPU 1"].state == "problem" and "bus" in found["GPU 1"].text
    assert found["peer access"].state == "ok"


def test_no_gpu_and_why(cuda, tmp_path, monkeypatch):
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.90.07  Release Build\nGCC version: gcc 12\n"
    cuda(0)
    assert one(gpu.gpus(tmp_path), "GPUs").text == "none"
    assert "--gpus all" in one(gpu.driver(tmp_path), "driver").hint
    root = tree(tmp_path, {"proc/driver/nvidia/version": text})
    assert one(gpu.driver(root), "driver").data == {"version": "550.90.07", "cuda": None}
    assert "cannot start CUDA" in one(gpu.gpus(root), "GPUs").text
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "hidden" in one(gpu.gpus(root), "GPUs").text
    cuda(1, links=[0], newest=12040)
    found = one(gpu.driver(root), "driver")
    assert found.state == "problem" and found.text == "580.1, for CUDA up to 12.4" and "CUDA 12.4" in found.hint


def test_nvml_without_a_driver_is_no_nvml(cuda, tmp_path, monkeypatch):
    cuda(1, links=[0])

    def refuse():
        raise NVMLError("driver not loaded")

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlInit", refuse)
    assert one(gpu.driver(tmp_path), "driver").state == "absent"
    assert one(gpu.gpus(tmp_path), "NVLink").state == "absent"


def test_cuda_is_not_started_where_there_is_none(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")

    def started():
        raise AssertionError("CUDA was started")

    monkeypatch.setattr(torch.cuda, "init", started)
    monkeypatch.setattr(torch.cuda, "_lazy_init", started)
    assert not [f for f in every(doctor.examine(test=False)) if f.state == "failed"]


@pytest.mark.parametrize(
    ("installed", "build", "said", "state"),
    [
        ({"nvidia-nvshmem-cu13": "3.8.0", "nvshmem4py-cu13": "0.4.1"}, "13.0", "all for CUDA 13", "ok"),
        ({"nvidia-nvshmem-cu13": "3.8.0"}, None, "all for CUDA 13; PyTorch is a build for CPUs", "ok"),
        ({"nvidia-nvshmem-cu13": "3.8.0", "nvidia-nvshmem-cu12": "3.8.0"}, None, "for two CUDAs", "problem"),
        ({"nvidia-nvshmem-cu12": "3.8.0"}, "13.0", "nvidia-nvshmem is for CUDA 12, PyTorch for 13.0", "problem"),
        ({"nvidia-nvshmem-cu12": "3.8.0", "nvshmem4py-cu13": "0.4.1"}, None, "different CUDAs", "problem"),
    ],
)
def test_nvshmem_agrees_or_not(installed, build, said, state, monkeypatch):
    monkeypatch.setattr(gpu, "version", lambda name: installed.get(name, ""))
    monkeypatch.setattr(torch.version, "cuda", build)
    found = one(gpu.nvshmem(), "agreement")
    assert said in found.text and found.state == state


def test_nvshmem_itself():
    """The host library says its version, without a GPU."""
    if not machine.version("nvidia-nvshmem-cu13"):
        pytest.skip("nvidia-nvshmem-cu13 is not installed")
    assert one(gpu.nvshmem(), "host library").data == machine.version("nvidia-nvshmem-cu13")
    assert one(gpu.device_bitcode(), "device bitcode").data == {"90": "libnvshmem_device_sm_90.bc"}


def test_nvshmem_host_library_of_another_version_or_broken(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "version", lambda name: "3.7.0" if name == "nvidia-nvshmem-cu13" else "")
    if machine.version("nvidia-nvshmem-cu13"):
        assert "not the wheel's version" in one(gpu.nvshmem(), "host library").text
    monkeypatch.setattr(gpu.bitcode, "_wheel_folders", lambda: [tmp_path])
    assert "does not have it" in one(gpu.nvshmem(), "host library").text
    (tmp_path / "libnvshmem_host.so.3").write_text("not a library")
    found = one(gpu.nvshmem(), "host library")
    assert found.state == "problem" and "cannot be loaded" in found.text and found.text.count("\n") == 0


def test_bitcode_of_ones_own_or_none(monkeypatch, tmp_path):
    monkeypatch.setenv("TRICOLL_NVSHMEM_BITCODE", str(tmp_path))
    assert one(gpu.device_bitcode(), "device bitcode").state == "problem"
    (tmp_path / "libnvshmem_device.bc").touch()
    assert "TRICOLL_NVSHMEM_BITCODE" in one(gpu.device_bitcode(), "device bitcode").text
    monkeypatch.delenv("TRICOLL_NVSHMEM_BITCODE")
    monkeypatch.setattr(gpu.bitcode, "_wheel_folders", lambda: [])
    monkeypatch.setattr(gpu, "version", lambda name: "")
    assert one(gpu.device_bitcode(), "device bitcode").state == "absent"
    assert one(gpu.nvshmem(), "NVSHMEM").state == "absent"


# Nothing there, and everything broken.


def test_with_nothing_there(monkeypatch, tmp_path, run):
    """Not even /dev/shm and /proc: every section has its lines, and host, which should work, fails."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setattr(host, "SHM", str(tmp_path / "gone"))
    for module in (machine, gpu):
        monkeypatch.setattr(module, "version", lambda name: "")
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(gpu.bitcode, "_wheel_folders", lambda: [])
    monkeypatch.setitem(sys.modules, "pynvml", None)
    rooted = lambda probe: "root" in inspect.signature(probe).parameters
    at = lambda probe: types.FunctionType(
        probe.__code__, probe.__globals__, probe.__name__, (empty,), probe.__closure__
    )
    sections = {
        name: tuple(at(probe) if rooted(probe) else probe for probe in probes)
        for name, probes in doctor.SECTIONS.items()
    }
    monkeypatch.setattr(doctor, "SECTIONS", sections)
    result = run("--no-test", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1 and report["failed"]
    states = {f["name"]: f["state"] for findings in report["sections"].values() for f in findings}
    assert states["PyTorch"] == states["memory"] == states["interfaces"] == states["NVSHMEM"] == "absent"
    assert states[str(tmp_path / "gone")] == "problem"
    assert {name for name, state in states.items() if state == "failed"} == {"sim", "host"}  # find_spec finds nothing


PROBES = [(section, probe.__name__) for section, probes in doctor.SECTIONS.items() for probe in probes]


@pytest.mark.parametrize(("section", "name"), PROBES)
def test_a_broken_probe_is_a_line(section, name, monkeypatch, run):
    """After what it has found, and without any harm to the others."""

    def broken():
        yield Finding("before", "it broke")
        raise OSError(errno.EIO, "this disk is on fire")

    broken.__name__ = name
    probes = tuple(broken if probe.__name__ == name else lambda: iter(()) for probe in doctor.SECTIONS[section])
    others = {other: (lambda: iter([Finding("fine", "fine")]),) for other in doctor.SECTIONS}
    monkeypatch.setattr(doctor, "SECTIONS", {**others, section: probes})
    result = run("--no-test", "--json")
    sections = json.loads(result.stdout)["sections"]
    assert [f["name"] for f in sections[section]] == ["before", name]
    assert sections[section][1]["state"] == "failed"
    assert sections[section][1]["text"] == "could not be found out: OSError: [Errno 5] this disk is on fire"
    assert all(len(findings) == 1 for other, findings in sections.items() if other not in (section, doctor.TESTS))
    assert result.exit_code == (1 if section in doctor.FATAL else 0)
    assert "on fire" in run("--no-test").stdout


# Variables.


def test_every_variable_that_the_code_reads_is_known():
    shape = {field.name for field in dataclasses.fields(dispatch.Settings)} - {"mapped", "multicast"}
    read = {f"TRICOLL_{name.upper()}" for name in shape}
    for path in [*(ROOT / "tricoll").rglob("*.py"), *(ROOT / "bench").glob("*.py"), *(ROOT / "kernels").glob("*.py")]:
        if path.parent.name != "doctor":
            read |= set(re.findall(r"TRICOLL_[A-Z_]*[A-Z]", path.read_text()))
    assert read <= set(environment.TRICOLL)
    assert set(environment.TRICOLL) - read <= {"TRICOLL_HEAP_BYTES"}  # which is for the nvshmem fabric


def test_variables_with_their_effect(monkeypatch):
    monkeypatch.setenv("TRICOLL_LINK", "put")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = {f.name: f for f in environment.variables()}
    assert found["TRICOLL_LINK"].text == "put  (mapped or put links)" and found["TRICOLL_LINK"].state == "ok"
    assert found["OMP_NUM_THREADS"].data == {"value": "3"}
    assert one(environment.settings(), "settings").data["mapped"] is False


@pytest.mark.parametrize(
    ("name", "near"), [("TRICOLL_LINKS", "TRICOLL_LINK"), ("TRICOLL_SLOTBYTES", "TRICOLL_SLOT_BYTES")]
)
def test_an_unknown_variable_is_pointed_out_and_its_value_kept(name, near, monkeypatch, run):
    monkeypatch.setenv(name, "a secret")
    monkeypatch.setenv("NVSHMEM_SOMETHING", "another secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a third secret")
    for result in (run("--no-test", "--json"), run("--no-test")):
        assert result.exit_code == 0
        assert "secret" not in result.stdout and "AWS" not in result.stdout
        assert f"do you mean {near}?" in result.stdout and "NVSHMEM_SOMETHING" in result.stdout


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TRICOLL_PROFILE", "h1000", "neither a file nor one of the profiles"),
        ("TRICOLL_NVSHMEM_BITCODE", "/nowhere", "no such file"),
        ("GLOO_SOCKET_IFNAME", "ib7", "no interface is named ib7"),
        ("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "=lo,ib7", "no interface is named ib7"),
        ("CUDA_LAUNCH_BLOCKING", "1", "unset it"),
    ],
)
def test_a_value_that_will_not_do(name, value, said, monkeypatch):
    monkeypatch.setenv(name, value)
    found = one(environment.variables(), name)
    assert found.state == "problem" and said in found.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRICOLL_PROFILE", "h100"),
        ("GLOO_SOCKET_IFNAME", "lo"),
        ("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "^docker"),
        ("CUDA_LAUNCH_BLOCKING", "0"),
    ],
)
def test_a_value_that_will_do(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    assert one(environment.variables(), name).state == "ok"


@pytest.mark.parametrize(
    ("name", "value"), [("TRICOLL_SLOTS", "two"), ("TRICOLL_SLOTS", "1"), ("TRICOLL_LINK", "x"), ("TRICOLL_TILES", "x")]
)
def test_settings_that_init_would_refuse(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError) as refused:
        tricoll.simulate(lambda comm: None, 1)
    found = one(environment.settings(), "settings")
    assert found.state == "problem" and found.text == str(refused.value)


def test_half_a_rendezvous(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "here")
    assert one(environment.variables(), "rendezvous").data == ["WORLD_SIZE", "MASTER_PORT"]


# Fabrics and profiles.


def a_fabric(monkeypatch, name, unavailable):
    module = types.ModuleType(f"tricoll.fabric.{name}")
    module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    if unavailable:
        module.unavailable = unavailable
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_a_fabric_says_whether_it_can_be_used(monkeypatch):
    a_fabric(monkeypatch, "loopback", lambda: None)
    assert fabrics.fabric("loopback") == Finding("loopback", "works here: several ranks on one GPU", data=True)
    a_fabric(monkeypatch, "loopback", lambda: "no GPU: buy one")
    assert fabrics.fabric("loopback") == Finding("loopback", "not here: no GPU: buy one", "absent", data=False)
    a_fabric(monkeypatch, "loopback", lambda: 1 / 0)
    assert fabrics.fabric("loopback").state == "problem" and "ZeroDivisionError" in fabrics.fabric("loopback").text
    a_fabric(monkeypatch, "loopback", None)
    assert fabrics.fabric("loopback").state == "problem" and "AttributeError" in fabrics.fabric("loopback").text
    a_fabric(monkeypatch, "host", lambda: "no memory")
    assert fabrics.fabric("host").state == "failed"


def test_host_says_why_not(monkeypatch, tmp_path):
    assert host.unavailable() is None
    monkeypatch.setattr(host, "SHM", str(tmp_path / "gone"))
    assert "cannot allocate shared memory" in host.unavailable()

    def full(fd, offset, size):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(host, "SHM", "/dev/shm")
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert re.search(
        r"needs 32768 bytes of shared memory, and /dev/shm has \d+ free.*TRICOLL_SLOT_BYTES", host.unavailable()
    )


def test_profiles(tmp_path):
    assert one(fabrics.tuning(), "tuning").state == "absent"
    target = tune.Target("host", 4, 4, "mapped")
    origin = {
        "version": tune.VERSION,
        "target": {"fabric": "host", "world_size": 4, "node_size": 4, "link": "mapped"},
        "machine": tune.machine(),
        "tricoll": tricoll.__version__,
        "measured": "2026-11-30T10:00:00+00:00",
    }
    profile = tricoll.cost.PROFILES["host"]
    save = lambda name, **changes: tune.save(
        tricoll.cost.dataclasses.replace(profile, provenance=origin | changes), tune.folder() / name
    )
    save(tune.path_for(target).name)
    assert one(fabrics.tuning(), "tuning").text == "4 ranks on host, mapped links, measured 2026-11-30"
    save("copy.json")
    save("other.json", machine={**tune.machine(), "cores": 1000})
    save("built-in.json", target=None)
    (tune.folder() / "nonsense.json").write_text("{")
    found = {f.text.split(":")[0]: f for f in fabrics.tuning()}
    assert [f.state for f in fabrics.tuning()].count("ok") == 1 and len(list(fabrics.tuning())) == 5
    texts = " ".join(f.text for f in fabrics.tuning())
    assert "copy.json is for 4 ranks on host" in texts and "is of another machine (cores was 1000" in texts
    assert "built-in.json has no target" in texts and found


# The self-test.


def flipped(rank, algorithm):
    """:func:`selftest.check` with one bit of one rank's result flipped, for one algorithm."""
    check = selftest.check

    def checked(comm):
        right = comm.all_reduce

        def wrong(x, *args, algo, **options):
            right(x, *args, algo=algo, **options)
            if comm.rank == rank and algo == algorithm:
                x.view(torch.int32)[5] ^= 1

        comm.all_reduce = wrong
        return check(comm)

    return checked


def test_the_self_tests_pass_here(run):
    """sim and host, as a user runs them."""
    result = run("--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0 and report["tested"] and not report["failed"]
    tests = {f["name"]: f for f in report["sections"]["self-test"]}
    assert {"sim test", "host test"} <= tests.keys()
    assert tests["sim test"]["data"]["ranks"] == 8 and tests["host test"]["data"]["ranks"] == 2
    assert tests["sim test"]["data"]["algorithms"] == ["ring", "tree", "two_shot", "one_shot"]
    assert all(f["state"] == "ok" and f["data"]["error"] is None for f in tests.values())


def test_algorithms_are_those_that_every_fabric_has():
    assert set(selftest.ALGORITHMS) == set(dispatch.having("all_reduce")) - {"hierarchical", "multimem"}


@pytest.mark.parametrize(("rank", "algorithm"), [*zip((0, 7, 3, 7), selftest.ALGORITHMS)])
def test_a_wrong_bit_is_found_on_sim(rank, algorithm, monkeypatch):
    monkeypatch.setattr(selftest, "check", flipped(rank, algorithm))
    found = selftest.run("sim")
    assert found.state == "failed" and f"rank {rank}, {algorithm}: 1 of 10007 elements wrong, first [5]" in found.text


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


def test_a_wrong_bit_is_found_on_host(shared, monkeypatch, run):
    monkeypatch.setitem(selftest.TESTS, "sim", lambda: None)
    monkeypatch.setattr(selftest, "check", flipped(1, "one_shot"))
    result = run()
    assert result.exit_code == 1
    assert re.search(r"x +host test +failed: AssertionError: rank 1, one_shot: 1 of 10007 elements", result.stdout)
    assert "1 failure" in result.stdout.splitlines()[-1]


def test_ranks_that_did_not_run_are_no_success(shared, monkeypatch):
    monkeypatch.setattr(selftest, "check", lambda comm: ["ring"])
    assert selftest.run("host").state == "failed"
    monkeypatch.setattr(selftest, "check", lambda comm: None)
    assert selftest.run("sim").state == "failed"


def test_a_self_test_that_hangs_is_left(monkeypatch):
    monkeypatch.setattr(selftest, "LIMIT", 0.1)
    monkeypatch.setattr(selftest, "START", 0.1)
    monkeypatch.setitem(selftest.TESTS, "sim", lambda: time.sleep(5))
    start = time.monotonic()
    found = selftest.run("sim")
    assert time.monotonic() - start < 3 and found.state == "failed" and "not finished" in found.text


def test_a_setting_that_breaks_init_breaks_the_self_test(monkeypatch, run):
    """The self-test runs in the environment that the user has."""
    monkeypatch.setitem(selftest.TESTS, "host", lambda: None)
    monkeypatch.setenv("TRICOLL_SLOTS", "1")
    result = run()
    assert result.exit_code == 1 and "slots is 1; it must be more than window" in result.stdout


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo rank 0 of 2 has the oracle\\'s bits; echo rank 1 of 2 has the oracle\\'s bits", ""),
        ("echo rank 0 of 2 has the oracle\\'s bits", "ended with code 0"),
        ("echo rank 0 of 2 has the oracle\\'s bits; echo rank 1 of 2 has the oracle\\'s bits; exit 3", "code 3"),
        ("sleep 20", "had not ended"),
    ],
)
def test_oshrun(script, said, monkeypatch, tmp_path):
    """Both ranks must say so, and it must end, well and in time."""
    fake = tmp_path / "oshrun"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(selftest, "LIMIT", 1.0)
    start = time.monotonic()
    found = selftest.run("openshmem")
    assert found.state == ("failed" if said else "ok") and said in found.text
    assert time.monotonic() - start < 10


def test_fabrics_on_gpus(monkeypatch, cuda, shared):
    """Two ranks of nvshmem need two GPUs; loopback has a way to start of its own. By stand-ins."""
    cuda(1)
    assert selftest.run("nvshmem").state == "absent" and "needs 2 GPUs" in selftest.run("nvshmem").text
    asked = []
    monkeypatch.setattr(world, "loopback", lambda fn, n: asked.append((fn, n)) or [fn(None)] * n, raising=False)
    monkeypatch.setattr(selftest, "check", lambda comm: [*selftest.ALGORITHMS])
    assert selftest.run("loopback").state == "ok" and asked == [(selftest.check, 2)]
    monkeypatch.setattr(selftest, "check", lambda comm: [])
    assert selftest.run("loopback").state == "failed"
    monkeypatch.setattr(selftest, "launched", lambda fabric: asked.append(fabric))
    cuda(2)
    assert selftest.run("nvshmem").state == "ok" and asked[-1] == "nvshmem"


# JSON, and the page.


def test_json_is_what_the_page_says(run):
    report = json.loads(run("--no-test", "--json").stdout)
    assert list(report) == ["format", "tricoll", "taken", "tested", "failed", "sections"]
    assert report["format"] == doctor.FORMAT == 1
    names = ["software", "machine", "gpu", "network", "environment", "fabrics", "self-test"]
    assert list(report["sections"]) == names
    for findings in report["sections"].values():
        for found in findings:
            assert list(found) == ["name", "text", "state", "hint", "data"]
            assert found["state"] in finding.STATES
            assert all(isinstance(found[field], str) for field in ("name", "text", "state", "hint"))
    page = PAGE.read_text()
    for name in [*report, *names, *finding.STATES]:
        assert f"`{name}`" in page, name


def test_no_home_and_no_host_in_the_report(monkeypatch, tmp_path, run):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TRICOLL_PROFILE_DIR", str(tmp_path / "kept" / "here"))
    (tmp_path / "kept").mkdir()
    for options in (["--json"], []):
        text = run("--no-test", *options).stdout
        assert str(tmp_path) not in text and "~/kept/here" in text
        assert socket.gethostname() not in text or len(socket.gethostname()) < 5


def test_the_page_is_written_by_the_command(run, tmp_path):
    page = tmp_path / "doctor.md"
    page.write_text(f"before\n{doctor.BEGIN}\nold\n{doctor.END}\nafter\n")
    result = run("--no-test", "--markdown", str(page))
    text = page.read_text()
    assert result.exit_code == 0 and "old" not in text
    assert text.startswith(f"before\n{doctor.BEGIN}\n```text\nsoftware\n") and text.endswith(
        f"```\n{doctor.END}\nafter\n"
    )
    page.write_text("no markers")
    assert run("--no-test", "--markdown", str(page)).exit_code == 2


def test_the_page_shows_and_explains_every_line(run):
    page = PAGE.read_text()
    shown = page[page.index(doctor.BEGIN) : page.index(doctor.END)]
    report = doctor.examine(test=False)
    always = [f.name for name in ("software", "machine", "environment", "fabrics") for f in report.sections[name]]
    for name in [*always, "CUDA runtime", "driver", "GPUs", "interfaces", "RDMA NICs", "sim test", "host test"]:
        assert re.search(rf"^ [ \-!x] {re.escape(name)} ", shown, re.M), (
            f"{name} is not in the page's report: make pages"
        )
    explained = set(re.findall(r"^\| ([^|]+?) \|", page, re.M))
    explained = {name.strip() for row in explained for name in row.split(",")}
    for match in re.finditer(r"^ [ \-!x] (\S.{15,}?) \S", shown, re.M):
        name = match[1].strip()
        assert name in explained or name in fabrics.FABRICS or name.endswith(" test"), f"{name} is not explained"
    sources = "".join(inspect.getsource(module) for module in (machine, gpu, environment, fabrics))
    for name in re.findall(r'Finding\("([^"]+)"', sources):
        assert name in explained, f"{name} is not explained"


def constants(paths):
    """The texts in the source: an f-string's pieces with ... between them."""
    found = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(p.value if isinstance(p, ast.Constant) else "..." for p in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_the_errors_that_the_page_lists_are_in_the_code():
    listed = re.findall(r"^- `([^`]+)`", PAGE.read_text()[PAGE.read_text().index("## What an error says") :], re.M)
    assert len(listed) >= 15
    texts = constants([*(ROOT / "tricoll").glob("*.py"), *(ROOT / "tricoll" / "fabric").glob("*.py")])
    for message in listed:
        assert any(message in text for text in texts), f"no error says {message!r}"
