"""Profiles that ``tricoll tune`` has measured: where they are kept, and whether one is for this machine.

See docs/tuning.md.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import os
import platform
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import torch

from . import cost, dispatch
from .cost import Profile, Topology

VERSION = 1  # of provenance, and of the files with samples


@dataclass(frozen=True)
class Target:
    """What a profile is for. ``link``: "mapped" or "put"."""

    fabric: str
    world_size: int
    node_size: int
    link: str

    def __str__(self) -> str:
        nodes = "" if self.node_size == self.world_size else f", {self.node_size} a node"
        return f"{self.world_size} ranks{nodes} on {self.fabric}, {self.link} links"

    @property
    def topology(self) -> Topology:
        """The ranks as the cost model sees them."""
        return Topology(self.world_size, self.node_size, self.link == "mapped")


def target(fabric: str, world_size: int, settings: dispatch.Settings) -> Target:
    """What a communicator with these settings needs a profile for. Nodes count where the model sees several."""
    topology = dispatch.topology_of(world_size, settings)
    return Target(fabric, world_size, topology.node_size, "mapped" if topology.mapped else "put")


def processor() -> str:
    """What processor this machine has, as Linux calls it."""
    with open("/proc/cpuinfo") as lines:
        models = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
        return next(models, platform.machine())


def machine(fabric: str) -> dict[str, Any]:
    """What tells one machine from another: profiles of other machines are refused.

    With "nvshmem" the GPU is what counts: a job does not get the same hosts each time.
    """
    if fabric == "nvshmem":
        return {"gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none"}
    name = hashlib.sha256(platform.node().encode()).hexdigest()[:12]
    return {"cpu": processor(), "cores": len(os.sched_getaffinity(0)), "hostname": name}


def folder() -> Path:
    """Where profiles are: TRICOLL_PROFILE_DIR, else in the user's configuration."""
    given = os.environ.get("TRICOLL_PROFILE_DIR")
    return Path(given) if given else platformdirs.user_config_path("tricoll") / "profiles"


def path_for(target: Target) -> Path:
    """The file of a target's profile."""
    return folder() / f"{target.fabric}-{target.world_size}x{target.node_size}-{target.link}.json"


def save(profile: Profile, path: Path) -> None:
    """Write a profile; whoever reads at the same time sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(profile.to_json() + "\n")
    os.replace(new, path)


def load(path: Path | str, target: Target) -> Profile:
    """A profile that was measured for this target, on this machine.

    Raises ValueError, with the reason, if the file is none, is of another version of tricoll, or is for something else.
    """
    if not Path(path).is_file():
        raise ValueError(f"{path} does not exist: run tricoll tune")
    profile = cost.load_profile(path)
    origin = profile.provenance
    if not origin:
        raise ValueError(f"{path} was not measured by tricoll tune (it has no provenance): give it as profile= instead")
    if (version := origin.get("version")) != VERSION:
        raise ValueError(
            f"{path}: its provenance has version {version}, and this tricoll reads {VERSION}: run tricoll tune again"
        )
    checks = [
        (
            "is old, measured with another tricoll",
            {"tricoll": origin.get("tricoll")},
            {"tricoll": importlib.metadata.version("tricoll")},
        ),
        ("is for something else", origin.get("target"), dataclasses.asdict(target)),
        ("is of another machine", origin.get("machine"), machine(target.fabric)),
    ]
    for what, found, expected in checks:
        there = found if isinstance(found, dict) else {}
        if differing := [name for name in expected if there.get(name) != expected[name]]:
            each = ", ".join(f"{name} was {there.get(name)}, is {expected[name]}" for name in differing)
            raise ValueError(f"{path} {what} ({each}): run tricoll tune here")
    return profile


def find(target: Target) -> Profile | None:
    """The stored profile for this machine, or None. Warns, with the reason, if there is one that cannot be used."""
    path = path_for(target)
    if not path.exists():
        return None
    try:
        return load(path, target)
    except ValueError as error:
        warnings.warn(f"a tuned profile is not used: {error}", RuntimeWarning, stacklevel=2)
        return None
