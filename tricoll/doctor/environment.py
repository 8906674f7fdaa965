"""The environment variables that matter to a job, and what they do. Values of those not named here are not shown."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from .. import cost
from ..fabric import cpu
from ..settings import settings_for
from ..units import show_bytes
from .finding import Finding
from .machine import ROOT

# What each does, in a few words. tests/doctor/test_environment.py holds this to what tricoll's code reads.
TRICOLL = {
    "TRICOLL_BLOCK": "elements a pass of the bulk loop",
    "TRICOLL_CACHE_DIR": "where the reduced NVSHMEM bitcode is kept",
    "TRICOLL_CHANNELS": "programs that share a call's data",
    "TRICOLL_HEAP_BYTES": "symmetric memory that the nvshmem fabric takes at once",
    "TRICOLL_LINK": "mapped or put links",
    "TRICOLL_NODE_SIZE": "ranks a node, for algo=hierarchical",
    "TRICOLL_NVSHMEM_BITCODE": "NVSHMEM's device bitcode, in place of the wheel's",
    "TRICOLL_PROFILE": "the constants by which algo=auto chooses, in place of tuned ones",
    "TRICOLL_PROFILE_DIR": "where tricoll tune keeps profiles",
    "TRICOLL_REPRODUCIBLE": "1: only algorithms that round once",
    "TRICOLL_SLOTS": "slots a link",
    "TRICOLL_SLOT_BYTES": "bytes a slot; the heap grows with it",
    "TRICOLL_TILES": "bulk loops on a CPU: torch, or triton to interpret them",
    "TRICOLL_WINDOW": "pieces that go round a ring together",
}
RENDEZVOUS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
OTHERS = {
    "RANK": "this process is that rank of a job",
    "WORLD_SIZE": "ranks of the job",
    "LOCAL_RANK": "the rank's number on this machine: its GPU",
    "LOCAL_WORLD_SIZE": "the job's ranks on this machine",
    "MASTER_ADDR": "where the ranks meet",
    "MASTER_PORT": "the port there",
    "OMPI_COMM_WORLD_RANK": "started by mpirun or oshrun",
    "OMPI_COMM_WORLD_SIZE": "ranks that mpirun or oshrun has started",
    "OMP_NUM_THREADS": "threads of PyTorch in each rank",
    "CUDA_VISIBLE_DEVICES": "the GPUs that CUDA may use",
    "CUDA_DEVICE_ORDER": "how CUDA numbers GPUs",
    "CUDA_LAUNCH_BLOCKING": "1: a kernel's launch waits for its end: nothing overlaps",
    "CUDA_DEVICE_MAX_CONNECTIONS": "hardware queues; 1 keeps kernels of several streams apart",
    "GLOO_SOCKET_IFNAME": "the interface that Gloo uses",
    "UCX_TLS": "transports of UCX (OpenSHMEM)",
    "UCX_NET_DEVICES": "network devices of UCX (OpenSHMEM)",
    "SHMEM_SYMMETRIC_SIZE": "the symmetric heap of Open MPI's OpenSHMEM",
    "TRITON_CACHE_DIR": "where Triton keeps compiled kernels",
    "TRITON_INTERPRET": "1: other Triton kernels than tricoll's are interpreted",
    "NVSHMEM_SYMMETRIC_SIZE": "NVSHMEM's symmetric heap (default 1 GiB)",
    "NVSHMEM_BOOTSTRAP": "how NVSHMEM's ranks meet; tricoll uses UID",
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "the interface over which NVSHMEM's ranks meet",
    "NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY": "AF_INET or AF_INET6 for that",
    "NVSHMEM_DEBUG": "WARN, INFO or TRACE: what NVSHMEM logs",
    "NVSHMEM_DISABLE_CUDA_VMM": "1: no NVLS (multimem)",
    "NVSHMEM_DISABLE_NVLS": "1: no NVLS (multimem)",
    "NVSHMEM_DISABLE_P2P": "1: no mapped peers, so put links only",
    "NVSHMEM_HCA_LIST": "the NICs that NVSHMEM uses",
    "NVSHMEM_HCA_PE_MAPPING": "which rank uses which NIC",
    "NVSHMEM_ENABLE_NIC_PE_MAPPING": "1: NICs are shared out by the rank's number",
    "NVSHMEM_IB_ENABLE_IBGDA": "1: the GPU drives the NIC itself",
    "NVSHMEM_IB_GID_INDEX": "the GID of RoCE",
    "NVSHMEM_REMOTE_TRANSPORT": "how NVSHMEM reaches other nodes",
}
EFFECTS = {**TRICOLL, **OTHERS}
PREFIXES = ("TRICOLL_", "NVSHMEM_")  # whose other variables are named, without their values


def variables(root: Path = ROOT) -> Iterator[Finding]:
    relevant = [name for name in sorted(os.environ) if name in EFFECTS or name.startswith(PREFIXES)]
    if not relevant:
        yield Finding("variables", "none that matters is set", data={})
    for name in relevant:
        yield _variable(name, os.environ[name], root)
    missing = [name for name in RENDEZVOUS if name not in os.environ]
    if missing and ("RANK" in os.environ or "WORLD_SIZE" in os.environ):
        hint = f"set {', '.join(missing)} too, or start the ranks with torchrun or tricoll.launch"
        yield Finding("rendezvous", "tricoll.init() without a process group will fail", "problem", hint, missing)


def settings() -> Iterator[Finding]:
    """What becomes of the variables: the shape of the links, or why there is none."""
    try:
        s, tiles = settings_for(), cpu.tiles()
    except ValueError as error:
        yield Finding("settings", str(error), "problem", "tricoll.init() and tricoll.simulate() fail until it is right")
        return
    text = (
        f"{'mapped' if s.mapped else 'put'} links of {s.slots} slots of {show_bytes(s.slot_bytes)}, "
        f"{s.channels} channel{'s' * (s.channels > 1)}, window {s.window}, blocks of {s.block}, tiles by {tiles}"
    )
    text += f", {s.node_size} ranks a node" * bool(s.node_size) + ", reproducible" * s.reproducible
    yield Finding("settings", text, data={**dataclasses.asdict(s), "tiles": tiles})


def _variable(name: str, value: str, root: Path) -> Finding:
    if name not in EFFECTS:
        if not name.startswith("TRICOLL_"):
            return Finding(name, "set; tricoll does not know it, NVSHMEM may")
        near = difflib.get_close_matches(name, TRICOLL, 1, 0.0)
        return Finding(name, "set, and there is no such variable", "problem", f"do you mean {near[0]}?")
    wrong = CHECKS[name](value, root) if name in CHECKS else ""
    return Finding(name, f"{value}  ({EFFECTS[name]})", "problem" if wrong else "ok", wrong, {"value": value})


# What is wrong with a value; empty if nothing.


def _profile(value: str, root: Path) -> str:
    try:
        cost.load_profile(value)
    except (ValueError, OSError) as error:
        return str(error)
    return ""


def _there(value: str, root: Path) -> str:
    return "" if Path(value).expanduser().exists() else "there is no such file or folder"


def _interface(value: str, root: Path) -> str:
    known = {folder.name for folder in (root / "sys/class/net").glob("*")}
    # Lists; NVSHMEM's may begin with ^ (all but these) or = (exactly these), and a name stands for all that start so.
    asked = [each for each in value.lstrip("=").split(",") if each and not value.startswith("^")]
    lost = [each for each in asked if not any(interface.startswith(each) for interface in known)]
    return f"no interface is named {', '.join(lost)}; there are {', '.join(sorted(known)) or 'none'}" if lost else ""


def _blocking(value: str, root: Path) -> str:
    return "unset it for anything but finding a fault" if value not in ("", "0") else ""


CHECKS: dict[str, Callable[[str, Path], str]] = {
    "TRICOLL_PROFILE": _profile,
    "TRICOLL_NVSHMEM_BITCODE": _there,
    "GLOO_SOCKET_IFNAME": _interface,
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": _interface,
    "CUDA_LAUNCH_BLOCKING": _blocking,
}
