"""Which GPU a rank takes, which ranks share a machine, and what GPUs can do with each other's memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .cuda import check_driver

log = logging.getLogger("tricoll")

NATIVE_ATOMICS = 3  # CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
DEVICE_POINTER = 3  # CU_POINTER_ATTRIBUTE_DEVICE_POINTER


def choose_device(environ: Mapping[str, str], count: int, chosen: int) -> int:
    """Which GPU this process takes: the one that the program has chosen, else LOCAL_RANK's, else the only one.

    ``count``: how many it sees; ``chosen``: ``torch.cuda.current_device()``, 0 if the program has not chosen.
    """
    local = environ.get("LOCAL_RANK")
    if chosen or count == 1 or local is None:
        return chosen
    if not local.isdigit() or int(local) >= count:
        raise ValueError(
            f"LOCAL_RANK is {local!r}, and this process sees {count} GPUs: start no more ranks a machine than it has "
            "GPUs (torchrun --nproc-per-node), or look at CUDA_VISIBLE_DEVICES"
        )
    return int(local)


def device_of(index: int) -> torch.device:
    """The GPU that this process sees as ``index``."""
    return torch.device("cuda", index)


def node_size(hosts: Sequence[str]) -> int:
    """Ranks a node, by the hosts of ranks 0, 1, ...; 0 if all are on one, or nodes are not alike (with a warning)."""
    size = next((r for r, host in enumerate(hosts) if host != hosts[0]), 0)
    if not size:
        return 0
    nodes = [set(hosts[at : at + size]) for at in range(0, len(hosts), size)]
    if len(hosts) % size or any(len(node) > 1 for node in nodes) or len(set().union(*nodes)) != len(nodes):
        log.warning(
            "ranks 0, 1, ... are on hosts %s: not the same number on each, one after the other. algo='hierarchical' is "
            "not used; tricoll.init(node_size=...) says otherwise",
            list(hosts),
        )
        return 0
    return size


def pci_address(index: int) -> str:
    """The PCI address of a GPU that this process sees as ``index``: the same in every process of a machine."""
    from cuda.bindings import driver

    device = _answer(driver.cuDeviceGet(index), "cuDeviceGet")
    return str(_answer(driver.cuDeviceGetPCIBusId(16, device), "cuDeviceGetPCIBusId").decode().rstrip("\0"))


def atomics(index: int, other: str) -> bool:
    """Whether GPU ``index`` can do atomic operations on the memory of the one with that PCI address, as the flags of
    mapped links need; NVLink can, PCIe cannot. True if this process does not see the other one, and cannot ask."""
    from cuda.bindings import driver

    code, peer = driver.cuDeviceGetByPCIBusId(other.encode())
    if int(code):
        return True
    attribute = driver.CUdevice_P2PAttribute(NATIVE_ATOMICS)
    device = _answer(driver.cuDeviceGet(index), "cuDeviceGet")
    return bool(_answer(driver.cuDeviceGetP2PAttribute(attribute, device, peer), "cuDeviceGetP2PAttribute"))


def readable(address: int) -> bool:
    """Whether Triton will take an address as a kernel's argument: it asks the driver for it as a pointer."""
    if not address:
        return False
    from cuda.bindings import driver

    code, _ = driver.cuPointerGetAttribute(driver.CUpointer_attribute(DEVICE_POINTER), address)
    if int(code):
        log.warning(
            "the driver does not know the multicast address %#x (error %d): multimem is not used", address, code
        )
    return not int(code)


def _answer(result: Any, what: str) -> Any:
    code, *values = result
    check_driver(int(code), what)
    return values[0]
