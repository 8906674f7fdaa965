"""Ranks, the ports between them, and messages that wait for both.

A message waits until its sender has the data and until the ports that it needs are free: the sender's way out, the
receiver's way in, and, between nodes, the uplinks of both nodes. It occupies a port for its bytes by the port's rate,
and arrives alpha later. Ports serve messages in the order of the sending program. Adding takes no time, and slots are
never short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..cost import Link, Topology
from ..units import show_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ranks = NDArray[np.int64]


@dataclass(frozen=True)
class Noise:
    """What makes real machines slower than uniform ones, drawn from ``seed``.

    ``jitter``: mean extra latency of a message, as a share of alpha (exponentially distributed).
    ``late``: mean seconds by which a rank enters late (exponentially distributed).
    ``stragglers`` ranks, chosen at random, have links that are ``slowdown`` times as slow.
    """

    jitter: float = 0.0
    late: float = 0.0
    stragglers: int = 0
    slowdown: float = 2.0
    seed: int = 0

    def __str__(self) -> str:
        parts = [f"latencies {self.jitter:.0%} longer on average"] if self.jitter else []
        parts += [f"ranks {show_seconds(self.late)} late on average"] if self.late else []
        parts += [f"{self.stragglers} of the ranks {self.slowdown:.3g} times as slow"] if self.stragglers else []
        return ", ".join(parts) or "none"

    def __post_init__(self) -> None:
        if min(self.jitter, self.late, self.stragglers) < 0 or self.slowdown < 1:
            raise ValueError("noise cannot be negative, and a slowdown is at least 1")


@dataclass(frozen=True)
class Fabric:
    """Ranks and what connects them.

    ``inner`` links inside a node, and one ``outer`` port a rank to the others. ``oversubscription`` is how many times
    as much the ports of a node can send as its uplink carries. In a ``rail`` fabric, the k-th ranks of all nodes are
    on one switch, and messages between them need no uplink.
    """

    topology: Topology
    inner: Link
    outer: Link
    rail: bool = True
    oversubscription: float = 1.0
    noise: Noise = Noise()

    def __post_init__(self) -> None:
        if self.oversubscription < 1:
            raise ValueError(f"oversubscription is {self.oversubscription}: at least 1")
        if self.noise.stragglers > self.topology.world_size:
            raise ValueError(f"{self.noise.stragglers} stragglers among {self.topology.world_size} ranks")


@dataclass(frozen=True)
class Outcome:
    """``finish``: seconds at which each rank has the result (float64, one a rank); ``messages`` sent in all; ``sent``:
    bytes a rank sent (float64, one a rank)."""

    finish: Floats
    messages: int
    sent: Floats

    @property
    def seconds(self) -> float:
        """Until the last rank has the result."""
        return float(self.finish.max())


@dataclass(frozen=True)
class Route:
    """Messages that are sent together: no rank is the source, or the target, of two. Arrays with one element each."""

    source: Ranks
    target: Ranks
    out: Ranks  # ports: rank r's is r inside a node, n + r between nodes
    into: Ranks
    alpha: Floats
    beta: Floats
    up: Queues | None  # None if no message needs an uplink that is short
    down: Queues | None


@dataclass(frozen=True)
class Queues:
    """Who needs the uplinks: a row of ``messages`` for each of ``nodes``, filled up with -1, and the ``last`` of each
    row, by its place."""

    nodes: Ranks
    messages: Ranks
    last: Ranks


class Network:
    """The state of all ports: when each is free again. Seconds."""

    def __init__(self, fabric: Fabric) -> None:
        n, noise = fabric.topology.world_size, fabric.noise
        self.fabric = fabric
        self.random = np.random.default_rng(noise.seed)
        self.start = self.random.exponential(noise.late, n) if noise.late else np.zeros(n)
        self.slowdown = np.ones(n)
        self.slowdown[self.random.choice(n, noise.stragglers, replace=False)] = noise.slowdown
        self.out, self.into = np.zeros(2 * n), np.zeros(2 * n)
        self.up, self.down = np.zeros(fabric.topology.nodes), np.zeros(fabric.topology.nodes)
        self.messages, self.sent = 0, np.zeros(n)

    def route(self, source: Ranks, target: Ranks) -> Route:
        """For messages from each of ``source`` to the ``target`` at the same place of the arrays."""
        fabric, n, L = self.fabric, self.fabric.topology.world_size, self.fabric.topology.node_size
        far = source // L != target // L
        slow = np.maximum(self.slowdown[source], self.slowdown[target])
        up = down = None
        if fabric.oversubscription > 1 and fabric.topology.nodes > 1:
            climbs = far & (source % L != target % L) if fabric.rail else far
            if climbs.any():
                up, down = self._queues(source, climbs), self._queues(target, climbs)
        return Route(
            source,
            target,
            source + n * far,
            target + n * far,
            np.where(far, fabric.outer.alpha, fabric.inner.alpha),
            np.where(far, fabric.outer.beta, fabric.inner.beta) / slow,
            up,
            down,
        )

    def _queues(self, ranks: Ranks, climbs: NDArray[np.bool_]) -> Queues:
        messages = np.flatnonzero(climbs)
        node = ranks[messages] // self.fabric.topology.node_size
        count = np.bincount(node)
        nodes = np.flatnonzero(count)
        count = count[nodes]
        table = np.full((len(nodes), count.max()), -1)
        table[np.arange(count.max()) < count[:, None]] = messages[np.argsort(node, kind="stable")]
        return Queues(nodes, table, count - 1)

    def send(self, route: Route, ready: Floats, nbytes: float) -> Floats:
        """Send a message of ``nbytes`` on each of a route, ready at these times; the times at which they arrive."""
        start = np.maximum(np.maximum(ready, self.out[route.out]), self.into[route.into])
        done = start + nbytes / route.beta
        if route.up is not None and route.down is not None:
            done = np.maximum(done, self._through(self.up, route.up, start, nbytes))
            done = np.maximum(done, self._through(self.down, route.down, start, nbytes))
        self.out[route.out] = done
        self.into[route.into] = done
        self.messages += len(done)
        self.sent[route.source] += nbytes
        arrive = done + route.alpha
        if jitter := self.fabric.noise.jitter:
            arrive += self.random.standard_exponential(len(done)) * (jitter * route.alpha)
        return arrive

    def _through(self, free: Floats, queues: Queues, start: Floats, nbytes: float) -> Floats:
        """When messages have passed the uplinks of their nodes, first come, first served; 0 for others."""
        each = nbytes / (self.fabric.topology.node_size * self.fabric.outer.beta / self.fabric.oversubscription)
        arrived = np.append(start, np.inf)[queues.messages]  # -1 never arrives
        order = np.argsort(arrived, axis=1)
        arrived = np.take_along_axis(arrived, order, 1)
        arrived[:, 0] = np.maximum(arrived[:, 0], free[queues.nodes])
        # done[i] = max over j <= i of arrived[j] + (i - j + 1) each
        place = np.arange(arrived.shape[1]) * each
        done = np.maximum.accumulate(arrived - place, axis=1) + (place + each)
        free[queues.nodes] = done[np.arange(len(done)), queues.last]
        passed = np.zeros(len(start) + 1)  # the last one is for -1
        passed[np.take_along_axis(queues.messages, order, 1)] = done
        return passed[:-1]
