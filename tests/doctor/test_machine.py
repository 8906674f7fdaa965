"""Software, processor, memory, network: right about this machine, and about ones that it is not."""

import os
import re
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
import triton
from reports import every, one, tree

import tricoll
from tricoll import doctor
from tricoll.doctor import machine


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
