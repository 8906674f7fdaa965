"""Probes of CUDA, GPUs and NVSHMEM. Nothing here starts CUDA where there is none.

What happens with GPUs has been tested with stand-ins for ``torch.cuda`` and ``pynvml`` only: it has not run on one.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .. import bitcode
from ..units import show_bytes
from .finding import Finding, read
from .machine import ROOT, numbers, version

OLDEST = 80  # compute capability with BF16, and what the compiled kernels are checked for
LINKS = 18  # NVLinks a GPU, at most
LOADING = 20.0  # seconds that NVSHMEM's host library may take to say its version
CUDAS = ("13", "12")

ASK = """
import ctypes, sys
library, version = ctypes.CDLL(sys.argv[1]), [ctypes.c_int() for _ in range(3)]
library.nvshmemx_vendor_get_version_info(*map(ctypes.byref, version))
print(*(number.value for number in version), sep=".")
"""


# CUDA.


def runtime() -> Iterator[Finding]:
    cuda, hip = torch.version.cuda, getattr(torch.version, "hip", None)
    if cuda:
        yield Finding("CUDA runtime", f"{cuda}, of PyTorch", data=cuda)
    elif hip:
        yield Finding("CUDA runtime", f"none: PyTorch is built for ROCm {hip}, which tricoll does not use", "problem")
    else:
        hint = "for GPUs, install a CUDA build (PyTorch's installation page says how)"
        yield Finding("CUDA runtime", "none: PyTorch is a build for CPUs", "absent", hint)


def driver(root: Path = ROOT) -> Iterator[Finding]:
    """The driver's version: from NVML if pynvml is there, else from what its kernel module says."""
    found, cuda = "", 0
    with contextlib.suppress(ImportError), _nvml() as nvml:
        found, cuda = _text(nvml.nvmlSystemGetDriverVersion()), int(nvml.nvmlSystemGetCudaDriverVersion())
    if not found:
        match = re.search(r"Kernel Module.*?\s(\d+\.\d+[\d.]*)\s", read(root / "proc/driver/nvidia/version") + " ")
        found = match[1] if match else ""
    if not found:
        hint = "install NVIDIA's driver; in a container, start it with --gpus all" if torch.version.cuda else ""
        yield Finding("driver", "none: no NVIDIA kernel module is loaded", "absent", hint)
        return
    newest = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""
    text = f"{found}, for CUDA up to {newest}" if newest else found
    data = {"version": found, "cuda": newest or None}
    if newest and torch.version.cuda and numbers(newest)[:1] < numbers(torch.version.cuda)[:1]:
        hint = (
            f"too old for the CUDA {torch.version.cuda} of PyTorch: update it, or install a PyTorch for CUDA {newest}"
        )
        yield Finding("driver", text, "problem", hint, data)
    else:
        yield Finding("driver", text, data=data)


def gpus(root: Path = ROOT) -> Iterator[Finding]:
    """Each GPU, which pairs of them can reach each other's memory, and their NVLinks."""
    if not torch.cuda.is_available():
        yield _no_gpu(root)
        return
    count = torch.cuda.device_count()
    yield Finding("GPUs", str(count), data=count)
    for index in range(count):
        try:
            yield _gpu(index)
        except Exception as error:  # one that is lost, or hidden: the others are still worth knowing
            yield Finding(f"GPU {index}", f"does not answer: {error}", "problem", "nvidia-smi says more")
    if count > 1:
        yield _peers(count)
    yield _nvlinks(count)


def _no_gpu(root: Path) -> Finding:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not torch.version.cuda:
        return Finding("GPUs", "none that PyTorch can use: it is a build for CPUs", "absent", data=0)
    if visible is not None and not visible.strip(" -1"):
        hint = "unset CUDA_VISIBLE_DEVICES, or name GPUs in it"
        return Finding("GPUs", f"hidden: CUDA_VISIBLE_DEVICES is {visible!r}", "problem", hint, 0)
    if read(root / "proc/driver/nvidia/version"):
        hint = "python -c 'import torch; torch.cuda.init()' says why"
        return Finding("GPUs", "the driver is there, and PyTorch cannot start CUDA", "problem", hint, 0)
    return Finding("GPUs", "none", "absent", data=0)


def _gpu(index: int) -> Finding:
    properties = torch.cuda.get_device_properties(index)
    arch = 10 * properties.major + properties.minor
    text = (
        f"{properties.name}, {show_bytes(properties.total_memory)}, sm_{arch}, "
        f"{properties.multi_processor_count} multiprocessors"
    )
    data = {
        "name": properties.name,
        "memory": properties.total_memory,
        "arch": arch,
        "multiprocessors": properties.multi_processor_count,
    }
    if arch < OLDEST:
        return Finding(f"GPU {index}", text, "problem", f"tricoll's kernels are made for sm_{OLDEST} and newer", data)
    return Finding(f"GPU {index}", text, data=data)


def _peers(count: int) -> Finding:
    """Which GPU can load and store in which other one's memory: a row a GPU, . where it cannot."""
    able = [[i == j or torch.cuda.can_device_access_peer(i, j) for j in range(count)] for i in range(count)]
    rows = "\n".join(f"{i:>2}  " + " ".join("x" if can else "." for can in row) for i, row in enumerate(able))
    missing = sum(not can for row in able for can in row)
    text = "every GPU reaches every other one" if not missing else f"{missing} pairs do not:\n{rows}"
    hint = "links between them are put links, through the host or a NIC" if missing else ""
    return Finding("peer access", text, "problem" if missing else "ok", hint, able)


def _nvlinks(count: int) -> Finding:
    """How many NVLinks of each GPU are up, as NVML counts them."""
    try:
        with _nvml() as nvml:
            up = [_links_of(nvml, index) for index in range(count)]
    except ImportError:
        return Finding("NVLink", "not known without pynvml", "absent", "pip install nvidia-ml-py")
    if not any(up):
        return Finding("NVLink", "none is up: GPUs reach each other over PCIe", "absent", data=up)
    return Finding("NVLink", "up on each GPU: " + ", ".join(map(str, up)), data=up)


def _links_of(nvml: Any, index: int) -> int:
    # NVML numbers the GPUs of the machine, PyTorch those that CUDA_VISIBLE_DEVICES leaves.
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") if uuid else nvml.nvmlDeviceGetHandleByIndex(index)
    active = 0
    for link in range(LINKS):
        try:
            active += int(nvml.nvmlDeviceGetNvLinkState(handle, link) == 1)
        except nvml.NVMLError:  # there is no such link
            break
    return active


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """pynvml, started. ImportError if it, or what it needs, is not there."""
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise ImportError(f"pynvml is there, and NVML is not ({error})") from error
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


# NVSHMEM.


def nvshmem() -> Iterator[Finding]:
    """The wheel, its host library, its Python bindings, and whether they and PyTorch are for one CUDA."""
    wheels = {cuda: version(f"nvidia-nvshmem-cu{cuda}") for cuda in CUDAS}
    bindings = {cuda: version(f"nvshmem4py-cu{cuda}") for cuda in CUDAS}
    wheels, bindings = ({cuda: v for cuda, v in found.items() if v} for found in (wheels, bindings))
    shown = lambda name, found: ", ".join(f"{name}-cu{cuda} {v}" for cuda, v in found.items())
    if not wheels:
        yield Finding("NVSHMEM", "not installed", "absent", f"for GPUs: {bitcode._INSTALL}", {})
    else:
        yield Finding("NVSHMEM", shown("nvidia-nvshmem", wheels), data=wheels)
        yield _host_library(wheels)
    if bindings:
        yield Finding("nvshmem4py", shown("nvshmem4py", bindings), data=bindings)
    else:
        yield Finding("nvshmem4py", "not installed", "absent", f"for the nvshmem fabric: {bitcode._INSTALL}", {})
    if wheels or bindings:
        yield _agreement(wheels, bindings)


def _host_library(wheels: dict[str, str]) -> Finding:
    """Its version, as it says itself: in a process of its own, for it may crash where there is no driver."""
    name = "host library"
    library = next((path for folder in bitcode._wheel_folders() for path in folder.glob("libnvshmem_host.so*")), None)
    if library is None:
        return Finding(name, "the wheel does not have it", "problem", f"install it again: {bitcode._INSTALL}")
    command = [sys.executable, "-S", "-c", ASK, str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOADING)
    except subprocess.TimeoutExpired:
        return Finding(name, f"{library.name} was not loaded within {LOADING:g} s", "problem")
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return Finding(name, f"{library.name} cannot be loaded: {why[0]}", "problem", f"install it: {bitcode._INSTALL}")
    found = done.stdout.strip()
    if not any(numbers(found) == numbers(v)[:3] for v in wheels.values()):
        hint = f"two versions have been mixed in one folder: pip uninstall them all, then {bitcode._INSTALL}"
        return Finding(name, f"{found} ({library.name}), which is not the wheel's version", "problem", hint, found)
    return Finding(name, f"{found} ({library.name})", data=found)


def _agreement(wheels: dict[str, str], bindings: dict[str, str]) -> Finding:
    name, cuda = "agreement", torch.version.cuda
    for what, found in (("nvidia-nvshmem", wheels), ("nvshmem4py", bindings)):
        if len(found) > 1:
            hint = f"pip uninstall {what}-cu12 {what}-cu13, then {bitcode._INSTALL}"
            return Finding(name, f"{what} is installed for two CUDAs, in one folder", "problem", hint)
    wanted = cuda.split(".")[0] if cuda else ""
    for what, found in (("nvidia-nvshmem", wheels), ("nvshmem4py", bindings)):
        if wanted and found and wanted not in found:
            hint = f'pip install "tricoll[cu{wanted}]"'
            return Finding(name, f"{what} is for CUDA {next(iter(found))}, PyTorch for {cuda}", "problem", hint)
    if wheels and bindings and wheels.keys() != bindings.keys():
        return Finding(name, "NVSHMEM and nvshmem4py are for different CUDAs", "problem", bitcode._INSTALL)
    text = f"all for CUDA {next(iter({**wheels, **bindings}))}" + ("" if cuda else "; PyTorch is a build for CPUs")
    return Finding(name, text)


def device_bitcode() -> Iterator[Finding]:
    """What kernels with put links are linked with, for this machine's GPUs, else for sm_90."""
    name, given = "device bitcode", os.environ.get("TRICOLL_NVSHMEM_BITCODE")
    archs = {90}
    if torch.cuda.is_available():
        capabilities = map(torch.cuda.get_device_capability, range(torch.cuda.device_count()))
        archs = {10 * major + minor for major, minor in capabilities}
    found = {}
    try:
        for arch in sorted(archs):
            found[arch] = bitcode.find(arch)
    except FileNotFoundError as error:
        state = "problem" if given or version("nvidia-nvshmem-cu13") or version("nvidia-nvshmem-cu12") else "absent"
        yield Finding(name, str(error), state, "only put links need it; kernels for mapped links do not")
        return
    source = f", of {given} (TRICOLL_NVSHMEM_BITCODE)" if given else ""
    text = ", ".join(f"{path.name} for sm_{arch}" for arch, path in found.items()) + source
    hint = (
        "make sure that it is of the host library's version: they are compared when a kernel is loaded" if given else ""
    )
    yield Finding(name, text, hint=hint, data={str(arch): path.name for arch, path in found.items()})
    reader = version("llvmlite")
    if not reader:
        yield Finding("llvmlite", "not installed", "absent", f"reducing the bitcode needs it: {bitcode._INSTALL}")
    elif numbers(reader) < (0, 50):
        yield Finding("llvmlite", reader, "problem", "cannot read the bitcode of NVSHMEM 3.8: install 0.50 or newer")
    else:
        yield Finding("llvmlite", reader, data=reader)
