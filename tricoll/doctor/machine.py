"""Probes of the machine: software, processor, memory, network. They read /proc and /sys, and need nothing else.

``root`` is where those are: another folder in the tests.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from .. import workspace
from ..fabric import host
from ..settings import settings_for
from ..units import show_bytes
from .finding import Finding, read

ROOT = Path("/")
EXTRAS = {"plot": "matplotlib", "tune": "scipy", "bench": "jinja2", "demo": "sklearn", "test": "hypothesis"}
MANY_RANKS = 8  # whose default heaps should fit into /dev/shm
ENDLESS = 2**60  # bytes: what cgroups of version 1 say for "no limit" is more


# Software.


def python() -> Iterator[Finding]:
    version, supported = platform.python_version(), sys.version_info >= (3, 10)
    hint = "" if supported else "use Python 3.10 or newer"
    yield Finding("Python", version, "ok" if supported else "problem", hint, version)


def system() -> Iterator[Finding]:
    release = platform.release()
    text = f"{platform.system()} {'.'.join(release.split('.')[:2])}, {platform.machine()}"
    hint = "" if sys.platform == "linux" else "tricoll works on Linux only"
    data = {"system": platform.system(), "release": release, "machine": platform.machine()}
    yield Finding("system", text, "problem" if hint else "ok", hint, data)


def packages() -> Iterator[Finding]:
    """The versions of what tricoll is made of, read from what is installed: nothing is imported."""
    triton, numpy = version("triton"), version("numpy")
    for name, shown in (("tricoll", "tricoll"), ("torch", "PyTorch"), ("triton", "Triton"), ("numpy", "NumPy")):
        found, hint = version(name), ""
        if name == "triton" and found and not (3, 6) <= numbers(found)[:2] < (3, 10):
            hint = "tricoll is made for Triton 3.6 to 3.9"
        if name == "torch" and found and numbers(found)[:2] < (2, 6):
            hint = "tricoll is made for PyTorch 2.6 and newer"
        if name == "numpy" and triton and numpy and numbers(triton)[:2] == (3, 6) and numbers(numpy)[:2] >= (2, 4):
            hint = 'Triton 3.6 needs NumPy older than 2.4 where kernels are interpreted: pip install "numpy<2.4"'
        if found:
            yield Finding(shown, found, "problem" if hint else "ok", hint, found)
        else:
            yield Finding(shown, "not installed by pip, or its version is not known", "absent")


def extras() -> Iterator[Finding]:
    there = [name for name, module in EXTRAS.items() if importlib.util.find_spec(module)]
    missing = [name for name in EXTRAS if name not in there]
    hint = f'pip install "tricoll[{",".join(missing)}]", if you want them' if missing else ""
    yield Finding("extras", ", ".join(there) or "none", "absent" if missing else "ok", hint, there)


def version(name: str) -> str:
    """Of an installed distribution; empty if there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def numbers(text: str) -> tuple[int, ...]:
    """``3.9.0+git12`` as (3, 9, 0), for comparisons."""
    found = []
    for part in text.split("+")[0].split("."):
        if not part.isdigit():
            break
        found.append(int(part))
    return tuple(found)


# Processor and memory.


def cores(root: Path = ROOT) -> Iterator[Finding]:
    """Cores that may be used. Ranks on CPU fabrics wait for each other, so they share well, but not for nothing."""
    lines = read(root / "proc/cpuinfo").splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    usable, all_of = len(os.sched_getaffinity(0)), os.cpu_count() or 0
    quota = cpu_quota(root)
    text = f"{usable} of {all_of}, {model or 'a processor of unknown make'}"
    data = {"usable": usable, "all": all_of, "model": model, "quota": quota}
    if quota is not None and quota < usable:
        hint = "more ranks than that take turns; raise the container's limit (docker run --cpus=...)"
        yield Finding("cores", f"{text}; a cgroup grants the time of {quota:g}", "problem", hint, data)
    else:
        yield Finding("cores", text, data=data)


def memory(root: Path = ROOT) -> Iterator[Finding]:
    sizes = {}
    for line in read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if rest.split()[1:] == ["kB"]:
            sizes[name] = 1024 * int(rest.split()[0])
    total, free = sizes.get("MemTotal"), sizes.get("MemAvailable")
    limit = least(cgroup_values("memory", "memory.max", "memory.limit_in_bytes", root))
    data = {"total": total, "available": free, "cgroup_limit": limit}
    if total is None or free is None:
        yield Finding("memory", f"{root / 'proc/meminfo'} does not say", "absent", data=data)
    elif limit is not None and limit < total:
        text = f"{show_bytes(free)} free of {show_bytes(total)}; a cgroup grants {show_bytes(limit)}, /dev/shm included"
        yield Finding("memory", text, data=data)
    else:
        yield Finding("memory", f"{show_bytes(free)} free of {show_bytes(total)}", data=data)


def shared_memory() -> Iterator[Finding]:
    """/dev/shm, where the host fabric has its heap, and how many ranks' heaps it can hold."""
    try:
        space = os.statvfs(host.SHM)
    except OSError as error:
        hint = "the host fabric and PyTorch's data loaders need it: mount a tmpfs there"
        yield Finding(host.SHM, f"not there: {error.strerror}", "problem", hint)
        return
    size, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    text, data = f"{show_bytes(free)} free of {show_bytes(size)}", {"size": size, "free": free}
    try:
        heap = heap_bytes(MANY_RANKS)
    except ValueError:  # the environment's section says what is wrong
        yield Finding(host.SHM, text, data=data)
        return
    fit = free // heap
    text, data = f"{text}, {fit:,} heaps of {show_bytes(heap)}", {**data, "heap": heap, "heaps": fit}
    if fit < MANY_RANKS:
        hint = (
            f"too small for {MANY_RANKS} ranks: docker run --shm-size=..., or mount -o remount,size=... {host.SHM}, or "
            "a smaller TRICOLL_SLOT_BYTES"
        )
        yield Finding(host.SHM, text, "problem", hint, data)
    else:
        yield Finding(host.SHM, text, data=data)


def heap_bytes(world_size: int) -> int:
    """What a rank's heap takes on the host fabric. ValueError if the environment's settings are wrong."""
    settings = settings_for()
    settings = dataclasses.replace(settings, multicast=settings.mapped and host.HostFabric.multicast)
    return 8 * sum(part.words for part in workspace.parts(world_size, settings).values())


def limits(root: Path = ROOT) -> Iterator[Finding]:
    """What a rank may have: file descriptors, processes, and memory that a NIC can read."""
    files, locked = resource.getrlimit(resource.RLIMIT_NOFILE)[0], resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    processes = least(cgroup_values("pids", "pids.max", "pids.max", root))
    shown = lambda value: "unlimited" if value in (None, resource.RLIM_INFINITY) else f"{value:,}"
    locked_text = "unlimited" if locked == resource.RLIM_INFINITY else show_bytes(locked)
    text = f"open files {shown(files)}, locked memory {locked_text}, processes of this cgroup {shown(processes)}"
    unlimited = lambda value: None if value == resource.RLIM_INFINITY else value
    data = {"open_files": unlimited(files), "locked_memory": unlimited(locked), "processes": processes}
    if locked != resource.RLIM_INFINITY and (root / "sys/class/infiniband").is_dir():
        hint = "an InfiniBand NIC can only reach locked memory: ulimit -l unlimited (docker run --ulimit memlock=-1)"
        yield Finding("limits", text, "problem", hint, data)
    else:
        yield Finding("limits", text, data=data)


def cgroup_values(controller: str, unified: str, older: str, root: Path = ROOT) -> list[str]:
    """What this process's cgroup and those above it have in a file, of version 2 (``unified``) or 1 (``older``)."""
    values = []
    mount = root / "sys/fs/cgroup"
    for line in read(root / "proc/self/cgroup").splitlines():
        number, names, path = (*line.split(":", 2), "", "")[:3]
        if number == "0":
            base, file = mount, unified
        elif controller in names.split(","):
            base, file = mount / controller, older
        else:
            continue
        here = Path(path.lstrip("/"))
        # In a container, the path may be one that only the host has: the mount itself is then this cgroup.
        values += [text for folder in (here, *here.parents) if (text := read(base / folder / file))]
    return list(dict.fromkeys(values))


def least(values: list[str]) -> int | None:
    """The tightest of several limits; None if there is none."""
    found = [int(text) for text in values if text.lstrip("-").isdigit()]
    return min((value for value in found if 0 <= value < ENDLESS), default=None)


def cpu_quota(root: Path = ROOT) -> float | None:
    """How many cores' time a cgroup grants; None: all."""
    found = []
    for text in cgroup_values("cpu", "cpu.max", "cpu.cfs_quota_us", root):
        quota, _, period = text.partition(" ")  # version 1 has the period in another file
        period = period or (cgroup_values("cpu", "cpu.max", "cpu.cfs_period_us", root) or [""])[0]
        if quota.isdigit() and period.isdigit() and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)


# Network.


def interfaces(root: Path = ROOT) -> Iterator[Finding]:
    """The network interfaces that are up: what TCP (the store, Gloo, UCX) can use."""
    found = []
    for folder in sorted((root / "sys/class/net").glob("*")):
        if folder.name == "lo" or read(folder / "operstate") == "down":
            continue
        speed = read(folder / "speed")  # Mb/s; -1 or an error where nobody knows
        rate = f", {int(speed) / 1000:g} Gb/s" if speed.isdigit() and int(speed) else ""
        found.append(f"{folder.name} (MTU {read(folder / 'mtu') or '?'}{rate})")
    text = ", ".join(found) or "none but the loopback"
    yield Finding("interfaces", text, "ok" if found else "absent", data=found)


def infiniband(root: Path = ROOT) -> Iterator[Finding]:
    """InfiniBand and RoCE: what NVSHMEM's puts to other nodes go through."""
    folder = root / "sys/class/infiniband"
    if not list(folder.glob("*")):
        hint = "only NVSHMEM between nodes needs them"
        yield Finding("RDMA NICs", f"none ({folder} is empty or not there)", "absent", hint, [])
        return
    found, down = [], []
    for port in sorted(folder.glob("*/ports/*")):
        state = read(port / "state").partition(": ")[2] or "?"
        layer, rate = read(port / "link_layer") or "?", read(port / "rate") or "? Gb/sec"
        name = f"{port.parents[1].name}:{port.name}"
        found.append({"port": name, "state": state, "link_layer": layer, "rate": rate})
        if state != "ACTIVE":
            down.append(name)
    text = ", ".join(f"{p['port']} {p['state']} ({p['link_layer']}, {p['rate']})" for p in found)
    hint = f"{', '.join(down)} will not carry anything; NVSHMEM_HCA_LIST names those to use" if down else ""
    yield Finding("RDMA NICs", text, "problem" if down else "ok", hint, found)
    modules = {line.split()[0] for line in read(root / "proc/modules").splitlines() if line}
    direct = [name for name in ("nvidia_peermem", "nv_peer_mem", "gdrdrv") if name in modules]
    text = ", ".join(direct) or "no module for it is loaded (nvidia_peermem, gdrdrv)"
    hint = "" if direct else "NICs that reach GPU memory need nvidia_peermem, or a kernel with DMA-BUF"
    yield Finding("GPUDirect RDMA", text, "ok" if direct else "absent", hint, direct)
