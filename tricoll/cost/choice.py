"""Which algorithm is the fastest for a call, on which machine, and where that changes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from .algorithms import ALGORITHMS, DIRECT, Call, Terms
from .machines import Profile, Topology
from .rates import REDUCTIONS, algbw, busbw, check_collective


@dataclass(frozen=True)
class Candidate:
    """An algorithm's prediction for a call. Seconds, bytes, bytes a second; ``latency`` is all that is not bandwidth;
    ``excluded`` says why it may not be taken (the figures are 0 if it could not be predicted at all)."""

    algorithm: str
    protocol: str
    latency: float
    bandwidth: float
    time: float
    algbw: float
    busbw: float
    steps: int
    sent: float
    roundings: int
    excluded: str = ""


def candidates(
    collective: str,
    nbytes: float,
    topology: Topology,
    profile: Profile,
    *,
    reproducible: bool = False,
    available: Collection[str] | None = None,
) -> list[Candidate]:
    """All algorithms for a call, fastest first, those that are excluded last.

    ``reproducible`` allows only one_shot and two_shot, whose bits do not depend on sizes or places. Without it they
    are excluded across nodes, where n (n-1) messages at a time meet congestion that the model leaves out.
    ``available`` are the algorithms that can be run (default: all).

    Raises ValueError for an unknown collective or a negative size.

    Args:
        collective: its name, one of ``COLLECTIVES``.
        nbytes: size as nccl-tests counts it: the tensor, or the whole buffer.
        topology: the ranks.
        profile: the machine's constants.
    """
    check_collective(collective)
    if nbytes < 0:
        raise ValueError(f"a size of {nbytes} bytes")
    found = []
    for name, algorithm in ALGORITHMS.items():
        if collective not in algorithm.collectives:
            continue
        candidate = predict(name, collective, nbytes, topology, profile)
        if not candidate.excluded:
            excluded = _excluded(name, collective, topology, reproducible, available)
            candidate = dataclasses.replace(candidate, excluded=excluded)
        found.append(candidate)
    return sorted(found, key=lambda c: (bool(c.excluded), not c.steps, c.time))


def predict(name: str, collective: str, nbytes: float, topology: Topology, profile: Profile) -> Candidate:
    """One algorithm's prediction, with the protocol that is used: the faster one, or the one that tricoll would take.

    ``excluded`` says why, if the algorithm cannot serve the call at all.

    Args:
        name: of the algorithm.
        collective: its name, one of ``COLLECTIVES``.
        nbytes: size as nccl-tests counts it: the tensor, or the whole buffer.
        topology: the ranks.
        profile: the machine's constants.
    """
    protocols = ALGORITHMS[name].protocols
    # A flag in every word works by stores, so only between mapped peers.
    packed = "packed" in protocols and "packed" in profile.protocols and topology.mapped and topology.nodes == 1
    usable = ["signal"] + ["packed"] * packed
    if profile.slot_bytes:  # what tricoll sends: see dispatch.flagged
        usable = ["packed"] if packed and collective == "all_reduce" else ["signal"]
    possible = [_candidate(name, protocol, collective, nbytes, topology, profile) for protocol in usable]
    return min(possible, key=lambda c: c.time)


def _candidate(
    name: str, protocol: str, collective: str, nbytes: float, topology: Topology, profile: Profile
) -> Candidate:
    n = topology.world_size
    inner = profile.link(protocol, "mapped" if topology.mapped else "put")
    outer = profile.link(protocol, "inter") if topology.nodes > 1 else inner
    slot_bytes = profile.slot_bytes / (16 if protocol == "packed" else 1)  # see dispatch.slot_bytes
    call = Call(
        collective, nbytes, n, topology.node_size, topology.nodes, inner, outer, profile.piece, topology.mapped,
        profile.multicast, slot_bytes, profile.window, profile.channels,
    )  # fmt: skip
    terms = ALGORITHMS[name].terms(call) if n > 1 else Terms(0.0, 0.0, 0, 0.0, 1)
    if isinstance(terms, str):
        return Candidate(name, protocol, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0.0, 0, terms)
    fixed, mean = profile.protocols[protocol], terms.mean if profile.shared else 1.0
    once = fixed.base + profile.overheads.get(collective, {}).get(name, 0.0)
    latency = terms.latency + (once + fixed.message * terms.messages * mean if n > 1 else 0.0)
    bandwidth = terms.sent * mean / inner.beta if profile.shared else terms.bandwidth
    time = latency + bandwidth
    rates = algbw(nbytes, time), busbw(collective, nbytes, time, n)
    return Candidate(
        name, protocol, latency, bandwidth, time, *rates, terms.steps, terms.sent, terms.roundings
    )  # fmt: skip


def _excluded(
    name: str, collective: str, topology: Topology, reproducible: bool, available: Collection[str] | None
) -> str:
    if available is not None and name not in available:
        return "this version of tricoll does not have it"
    if collective in REDUCTIONS and reproducible and name not in DIRECT:
        return "not reproducible, the bits depend on the place in the data"
    crowded = collective in ALGORITHMS["two_shot"].collectives and name in DIRECT and topology.nodes > 1
    return (
        "all ranks send to all across nodes, and congestion is not in the model" if crowded and not reproducible else ""
    )


def best(collective: str, nbytes: float, topology: Topology, profile: Profile, **options: Any) -> Candidate:
    """The fastest of :func:`candidates`. Raises ValueError, with the reasons, if all are excluded.

    Args:
        collective: its name, one of ``COLLECTIVES``.
        nbytes: size as nccl-tests counts it: the tensor, or the whole buffer.
        topology: the ranks.
        profile: the machine's constants.
        **options: as for :func:`candidates`.
    """
    found = candidates(collective, nbytes, topology, profile, **options)
    if found[0].excluded:
        reasons = "; ".join(f"{c.algorithm}: {c.excluded}" for c in found)
        raise ValueError(f"no algorithm is left for {collective} on {topology}: {reasons}")
    return found[0]


@dataclass(frozen=True)
class Crossover:
    """From ``nbytes`` on, ``above`` is the fastest, and below it ``below`` is."""

    nbytes: float
    below: str
    above: str


SMALLEST, LARGEST = 2.0**3, 2.0**36  # bytes, where crossovers are looked for and curves are drawn


def crossovers(collective: str, topology: Topology, profile: Profile, **options: Any) -> list[Crossover]:
    """Where the fastest algorithm changes between 8 bytes and 64 GiB, to a part in a million.

    Args:
        collective: its name, one of ``COLLECTIVES``.
        topology: the ranks.
        profile: the machine's constants.
        **options: as for :func:`candidates`.
    """
    fastest = lambda nbytes: best(collective, nbytes, topology, profile, **options).algorithm
    sizes = [SMALLEST * 2 ** (i / 4) for i in range(4 * 33 + 1)]
    names = [fastest(size) for size in sizes]
    found = []
    for low, high, below, above in zip(sizes, sizes[1:], names, names[1:]):
        while below != above and high / low > 1 + 1e-6:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if fastest(middle) == below else (low, middle)
        if below != above:
            found.append(Crossover(high, below, above))
    return found
