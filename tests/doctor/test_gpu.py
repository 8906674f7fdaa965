"""What is said about GPUs and NVSHMEM, by stand-ins for torch.cuda and pynvml: logic that has not run on a GPU."""

import sys

import pytest
import torch
from reports import every, one, tree

from tricoll import doctor
from tricoll.doctor import gpu, machine


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
        raise sys.modules["pynvml"].NVMLError("driver not loaded")

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
