"""Machines: how ranks are placed, and the constants of the links between them, as built in or read from a file."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import units

VERSION = 1  # of the profile files


@dataclass(frozen=True)
class LinkProfile:
    """The alpha-beta model of a link: a message of m bytes takes ``alpha + m / beta`` seconds.

    The defaults are those of a 400 Gb/s NIC: 5 us, 50 GB/s.
    """

    alpha: float = 5e-6
    beta: float = 50e9


Link = LinkProfile


@dataclass(frozen=True)
class Topology:
    """``world_size`` ranks, ``node_size`` in a row to a node (default: all). ``mapped``: they can load and store
    each other's memory inside a node; otherwise they send puts there, too."""

    world_size: int
    node_size: int = 0
    mapped: bool = True

    def __post_init__(self) -> None:
        if self.world_size < 1 or self.node_size < 0:
            raise ValueError(f"{self.world_size} ranks in nodes of {self.node_size}: both have to be at least 1")
        object.__setattr__(self, "node_size", min(self.node_size or self.world_size, self.world_size))
        if self.world_size % self.node_size:
            raise ValueError(
                f"{self.world_size} ranks do not fill nodes of {self.node_size}: take a multiple of {self.node_size}"
            )

    @property
    def nodes(self) -> int:
        """How many there are."""
        return self.world_size // self.node_size

    def __str__(self) -> str:
        if self.nodes == 1 or self.node_size == 1:
            return f"{self.world_size} ranks" + ("" if self.nodes == 1 else ", one a node")
        return f"{self.world_size} ranks, {self.node_size} a node"


@dataclass(frozen=True)
class Protocol:
    """How messages are sent: ``base`` seconds once a call, ``message`` seconds for each message of a rank, and the
    links, by class.

    Alphas of messages that a rank sends at the same time pass together; ``message`` is what it is busy with, one after
    the other: the "overhead" of the LogP model (Culler et al., 1993), 0 where hardware sends.

    Classes: ``mapped`` (loads and stores inside a node), ``put`` (puts inside a node; as ``mapped`` if not given) and
    ``inter`` (between nodes; not for ``packed``). A link's beta is what is left for data, after flags.
    """

    base: float
    links: Mapping[str, Link]
    message: float = 0.0


@dataclass(frozen=True)
class Profile:
    """The constants of a machine, and where they are from.

    ``protocols`` has at least ``signal``. ``multicast``: the switch inside a node can add and copy. A channel moves at
    most ``channel_beta`` bytes a second. ``piece`` is the size of a message in pipelined algorithms, in bytes.

    With ``slot_bytes``, messages are cut as ``dispatch.plan`` cuts them for links of that size, and ``piece`` is not
    used: what is for one rank's links together, so all links of a rank share it. ``window`` is how many pieces go
    through a step together (see :meth:`Call.pieces`); with 1, each waits for the one before.

    ``shared``: all ranks share what sends, as processes do of which there are more than cores. Then what all ranks
    send counts, by the number of ranks, and not what the busiest one does; bytes take their time on a link inside.

    ``overheads``: seconds once a call on top of ``base``, by collective and algorithm: some have more to compute before
    and between messages.

    ``provenance`` says how a measured profile came about, and for which machine: see :mod:`tricoll.tuned`.
    """

    name: str
    source: str
    protocols: Mapping[str, Protocol]
    multicast: bool = False
    channels: int = 1
    channel_beta: float = math.inf
    piece: int = 1 << 17
    slot_bytes: int = 0
    window: int = 1
    shared: bool = False
    overheads: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    version: int = VERSION
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def link(self, protocol: str, kind: str) -> Link:
        """The link of a class, as fast as all channels together.

        Args:
            protocol: "signal" or "packed".
            kind: "mapped", "put" or "inter".
        """
        links = self.protocols[protocol].links
        link = links.get(kind) or links["mapped"]
        return Link(link.alpha, min(link.beta, self.channels * self.channel_beta))

    def to_json(self) -> str:
        """For a file that :func:`load_profile` reads."""
        plain = dataclasses.asdict(self)
        if math.isinf(self.channel_beta):
            del plain["channel_beta"]  # JSON has no infinity
        return json.dumps(plain, indent=2)


def two_levels(inner: Link, outer: Link, name: str = "given", source: str = "given", **settings: Any) -> Profile:
    """A profile with one kind of link inside nodes and another between them.

    Args:
        inner: the links inside nodes.
        outer: those between nodes.
        name: of the profile.
        source: where its constants are from.
        **settings: other fields of :class:`Profile`.
    """
    return Profile(name, source, {"signal": Protocol(0.0, {"mapped": inner, "inter": outer})}, **settings)


def uniform(alpha: float, beta: float, name: str = "given", source: str = "given", **settings: Any) -> Profile:
    """A profile in which all links are alike.

    Args:
        alpha: seconds a message.
        beta: bytes a second.
        name: of the profile.
        source: where its constants are from.
        **settings: other fields of :class:`Profile`.
    """
    return two_levels(Link(alpha, beta), Link(alpha, beta), name, source, **settings)


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "host",
            "processes of one machine: tricoll tune with 4 ranks on 2 cores, rounded; tune for your own",
            {
                "signal": Protocol(0.22e-3, {"mapped": Link(10e-6, 3.7e9), "inter": Link(10e-6, 3.7e9)}, 0.14e-3),
                "packed": Protocol(0.73e-3, {"mapped": Link(0.0, 430e6)}, 80e-6),
            },
            overheads={
                "all_reduce": {"tree": 0.6e-3, "two_shot": 0.7e-3},
                "reduce_scatter": {"ring": 0.2e-3, "two_shot": 0.6e-3},
                "all_gather": {"ring": 0.2e-3, "two_shot": 0.6e-3},
                "broadcast": {"ring": 0.3e-3, "tree": 0.4e-3, "one_shot": 0.4e-3},
            },
            slot_bytes=1 << 20,
            window=2,
            shared=True,
        ),
        uniform(5e-6, 50e9, "lesson", "one kind of link, 5 us and 50 GB/s: the usual textbook figures"),
        uniform(5e-6, 450e9, "nvlink", "NVLink class: 450 GB/s a direction, 5 us as in lesson", multicast=True),
        uniform(5e-6, 50e9, "nic-400g", "one 400 Gb/s NIC a GPU: 50 GB/s, 5 us as in lesson"),
        Profile(
            "h100",
            "rates: NVLink 450 GB/s a direction, one 400 Gb/s NIC a GPU; latencies: NCCL's tuning constants "
            "(src/graph/tuning.cc, ring): its Simple protocol for signal, its LL protocol for packed",
            {
                "signal": Protocol(8.4e-6, {"mapped": Link(3.4e-6, 450e9), "inter": Link(14e-6, 50e9)}),
                "packed": Protocol(6.6e-6, {"mapped": Link(0.6e-6, 225e9)}),
            },
            multicast=True,
        ),
    )
}


def load_profile(name: str | Path) -> Profile:
    """A built-in profile by its name, or one from a JSON file.

    The file has the fields of :class:`Profile`; numbers may be strings with units ("5us", "50GB/s"):
    ``{"version": 1, "name": "mine", "source": "measured with ...", "protocols": {"signal": {"base": 0, "links":
    {"mapped": {"alpha": "5us", "beta": "450GB/s"}, "inter": {"alpha": "5us", "beta": "50GB/s"}}}}}``.

    Raises ValueError, with what to change, if there is no such profile or the file is not one.
    """
    if str(name) in PROFILES:
        return PROFILES[str(name)]
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"{str(name)!r} is neither a file nor one of the profiles {', '.join(PROFILES)}")
    seconds = lambda value: units.seconds(value) if isinstance(value, str) else float(value)
    rate = lambda value: units.rate(value) if isinstance(value, str) else float(value)
    try:
        given = json.loads(path.read_text())
        if (version := given.pop("version")) != VERSION:
            raise ValueError(f"its version is {version}, and this tricoll reads {VERSION}")
        protocols = {}
        for protocol, fields in given.pop("protocols").items():
            links = {kind: Link(seconds(link["alpha"]), rate(link["beta"])) for kind, link in fields["links"].items()}
            protocols[protocol] = Protocol(seconds(fields.get("base", 0)), links, seconds(fields.get("message", 0)))
            if missing := {"mapped", *(["inter"] if protocol == "signal" else [])} - set(links):
                raise ValueError(f"{protocol} has no links of class {' and '.join(sorted(missing))}")
            if bad := [kind for kind, link in links.items() if link.alpha < 0 or link.beta <= 0]:
                raise ValueError(f"{protocol} has a negative alpha, or no beta, for {', '.join(bad)}")
        if "signal" not in protocols:
            raise ValueError("it has no protocol 'signal'")
        if "channel_beta" in given:
            given["channel_beta"] = rate(given["channel_beta"])
        for size in ("piece", "slot_bytes"):
            if isinstance(given.get(size), str):
                given[size] = units.nbytes(given[size])
        return Profile(protocols=protocols, **given)
    except KeyError as error:
        raise ValueError(f"{path}: the field {error} is missing") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from None
