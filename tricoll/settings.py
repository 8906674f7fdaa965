"""The shape of a communicator's links: what is given, else the environment's, else what suits the fabric; checked."""

from __future__ import annotations

import os

from . import dispatch
from .kernels.link import MAX_SLOTS

CPU = dispatch.Settings(mapped=True, channels=1, slots=4, slot_bytes=1 << 20, window=2, block=1 << 14)


def settings_for(
    link: str = "auto",
    channels: int | None = None,
    slots: int | None = None,
    slot_bytes: int | None = None,
    window: int | None = None,
    block: int | None = None,
    node_size: int | None = None,
    reproducible: bool | None = None,
    base: dispatch.Settings = CPU,
) -> dispatch.Settings:
    """The shape of the links: what is given, else the environment's ``TRICOLL_...``, else ``base``."""

    def choose(name: str, given: int | None, default: int) -> int:
        text = os.environ.get(f"TRICOLL_{name.upper()}")
        try:
            return given if given is not None else int(text) if text else default
        except ValueError:
            raise ValueError(f"TRICOLL_{name.upper()} is {text!r}, not a number") from None

    link = link if link != "auto" else os.environ.get("TRICOLL_LINK") or ("mapped" if base.mapped else "put")
    if link not in ("mapped", "put"):
        raise ValueError(f"link is {link!r}; it can be 'auto', 'mapped' or 'put'")
    result = dispatch.Settings(
        mapped=link == "mapped",
        channels=choose("channels", channels, base.channels),
        slots=choose("slots", slots, base.slots),
        slot_bytes=choose("slot_bytes", slot_bytes, base.slot_bytes),
        window=choose("window", window, base.window),
        block=choose("block", block, base.block),
        node_size=choose("node_size", node_size, base.node_size),
        reproducible=bool(only := choose("reproducible", reproducible, 0)),
    )
    if only not in (0, 1):
        raise ValueError(f"reproducible is {only}; it must be 0 or 1")
    check_settings(result)
    return result


def check_settings(s: dispatch.Settings) -> None:
    if s.channels < 1 or s.window < 1:
        raise ValueError(f"channels is {s.channels} and window is {s.window}; both must be at least 1")
    if not s.window < s.slots <= MAX_SLOTS:
        raise ValueError(f"slots is {s.slots}; it must be more than window ({s.window}) and at most {MAX_SLOTS}")
    if s.slot_bytes < 128 or s.slot_bytes % 128:
        raise ValueError(f"slot_bytes is {s.slot_bytes}; it must be a positive multiple of 128")
    if s.node_size < 0:
        raise ValueError(f"node_size is {s.node_size}; it must be positive, or 0 for one node")
    if s.block < 16 or s.block & (s.block - 1):
        raise ValueError(f"block is {s.block}; it must be a power of two, at least 16")
