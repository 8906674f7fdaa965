"""Simulated all-reduces: every message of every rank, its dependencies and the ports that it shares; no formulas.

A message waits until its sender has the data and until the ports that it needs are free: the sender's way out, the
receiver's way in, and, between nodes, the uplinks of both nodes. It occupies a port for its bytes by the port's rate,
and arrives alpha later. Ports serve messages in the order of the sending program. Adding takes no time, and slots are
never short.

Ranks are vectorised (one NumPy operation is a step of all ranks), so that 16,384 of them take seconds. Random latency
and slow ranks are drawn from a seed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .cost import Profile, Topology
from .fabric.base import LinkProfile as Link
from .topology import NOBODY, Node, double_binary_tree
from .units import show_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ranks = NDArray[np.int64]


MOST_PIECES = 64  # of a pipelined algorithm: more of them would change the time by less than a 64th


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


def interleaved(steps: int, pieces: int, skew: int) -> Iterator[tuple[int, int]]:
    """(step, piece) in the order in which a program sends them: piece j takes step s in turn ``skew * s + j``.

    Each piece takes its steps in order. With a skew of 1 a piece takes its next step in the next turn; with a larger
    one, other pieces go first while its last message is on its way.
    """
    for turn in range(skew * (steps - 1) + pieces):
        for step in range(max(0, -(-(turn - pieces + 1) // skew)), min(steps, turn // skew + 1)):
            yield step, turn - skew * step


def _pieces(nbytes: float, piece: int) -> int:
    return max(1, min(MOST_PIECES, math.ceil(nbytes / piece)))


# All-reduces. Each takes a network and the bytes of the tensor, and calls ``progress(done, steps)`` now and then.

Progress = Callable[[int, int], None]


def quietly(done: int, steps: int) -> None:
    """No progress to show."""


def ring(net: Network, nbytes: float, piece: int, progress: Progress = quietly) -> Floats:
    """2(n-1) steps in each of which every rank sends a chunk to the next one, once it has what came in before."""
    n = net.fabric.topology.world_size
    ranks = np.arange(n)
    route = net.route(ranks, (ranks + 1) % n)
    have = net.start
    steps = 2 * (n - 1)
    for step in range(steps):
        have = np.maximum(have, np.roll(net.send(route, have, nbytes / n), 1))
        if step % 256 == 0:
            progress(step, steps)
    return have


def _fan(net: Network, ready: Floats, nbytes: float, width: int, progress: Progress, base: int, steps: int) -> Floats:
    """Each rank of a group of ``width`` ranks in a row sends ``nbytes`` to each other one, starting with the next."""
    n = net.fabric.topology.world_size
    ranks = np.arange(n)
    first = ranks // width * width
    have = ready
    for distance in range(1, width):
        target = first + (ranks - first + distance) % width
        arrived = np.empty(n)
        arrived[target] = net.send(net.route(ranks, target), ready, nbytes)
        have = np.maximum(have, arrived)
        if distance % 256 == 0:
            progress(base + distance, steps)
    return have


def one_shot(net: Network, nbytes: float, piece: int, progress: Progress = quietly) -> Floats:
    """Every rank sends everything to every other rank."""
    n = net.fabric.topology.world_size
    return _fan(net, net.start, nbytes, n, progress, 0, n - 1)


def two_shot(net: Network, nbytes: float, piece: int, progress: Progress = quietly) -> Floats:
    """Every rank sends to each other rank its part; then, when it has added its own, the sum."""
    n = net.fabric.topology.world_size
    sums = _fan(net, net.start, nbytes / n, n, progress, 0, 2 * (n - 1))
    return _fan(net, sums, nbytes / n, n, progress, n - 1, 2 * (n - 1))


def hierarchical(net: Network, nbytes: float, piece: int, progress: Progress = quietly) -> Floats:
    """Direct reduce-scatter in the node, a ring over the nodes for each of its ranks, all-gather; all in pieces."""
    t = net.fabric.topology
    n, L, N = t.world_size, t.node_size, t.nodes
    ranks = np.arange(n)
    pieces = _pieces(nbytes / n, piece)
    part = nbytes / L / pieces  # of a piece, that of one rail
    have = []
    ready = net.start
    for _ in range(pieces):
        have.append(_fan(net, ready, part, L, quietly, 0, 0))
    steps = 2 * (N - 1)
    if N > 1:
        outer = net.fabric.outer
        route = net.route(ranks, (ranks + L) % n)
        # If a message of every piece takes longer than a message's way, a piece can take its next step at once.
        busy = (pieces - 1) * part / N / outer.beta >= outer.alpha
        order = interleaved(steps, pieces, 1 if busy else pieces)
        for done, (_, j) in enumerate(order):
            have[j] = np.maximum(have[j], np.roll(net.send(route, have[j], part / N), L))
            if done % 256 == 0:
                progress(done, steps * pieces)
    finish = net.start
    for j in range(pieces):
        finish = np.maximum(finish, _fan(net, have[j], part, L, quietly, 0, 0))
    return finish


def tree(net: Network, nbytes: float, piece: int, progress: Progress = quietly) -> Floats:
    """The double binary tree, in pieces: all partial sums go up, and the results come down behind them.

    Nobody waits for its other tree: a rank sends as a leaf first, and takes its turn for a piece at a level when the
    level before has had time to send it.
    """
    n = net.fabric.topology.world_size
    pieces = _pieces(nbytes / 2, piece)
    part = nbytes / 2 / pieces
    nodes = np.array([double_binary_tree(rank, n) for rank in range(n)], dtype=object)
    trees = [_tree(net, [*nodes[:, t]]) for t in (0, 1)]
    link = net.fabric.outer if net.fabric.topology.nodes > 1 else net.fabric.inner
    # A rank sends two messages a turn. From level to level: one turn to send, one for a sibling's, and alpha.
    lag = min(pieces, 2 + int(link.alpha / (2 * part / link.beta)))
    levels = max(len(t.up) for t in trees)
    order = list(interleaved(levels, pieces, lag))
    have = np.tile(net.start, (2, pieces, 1))  # when a rank has the sum of what is below it, of each tree's pieces
    for turn, (height, j) in enumerate(order):
        for of, t in zip(have, trees):
            for route in t.up[height] if height < len(t.up) else ():
                of[j, route.target] = np.maximum(of[j, route.target], net.send(route, of[j, route.source], part))
        progress(turn, 2 * len(order))
    for turn, (depth, j) in enumerate(order):
        for of, t in zip(have, trees):
            for route in t.down[depth] if depth < len(t.down) else ():
                of[j, route.target] = net.send(route, of[j, route.source], part)
        progress(len(order) + turn, 2 * len(order))
    return have.max(axis=(0, 1))


@dataclass(frozen=True)
class Tree:
    """Routes of a tree: ``up[h]`` from all ranks of height h to their parents, ``down[d]`` from all ranks of depth d to
    their children; first children, then second ones."""

    up: list[list[Route]]
    down: list[list[Route]]


def _tree(net: Network, nodes: list[Node]) -> Tree:
    n = len(nodes)
    children = np.array([(node.first, node.second) for node in nodes])
    (level,) = np.nonzero(np.array([node.parent for node in nodes]) == NOBODY)
    levels = []
    while len(level):
        levels.append(level)
        below = children[level].ravel()
        level = below[below != NOBODY]
    height = np.zeros(n, np.int64)
    for level in reversed(levels[:-1]):
        for side in (0, 1):
            inner = level[children[level, side] != NOBODY]
            height[inner] = np.maximum(height[inner], height[children[inner, side]] + 1)

    def routes(parents: Ranks, upward: bool, of_height: int = -1) -> list[Route]:
        found = []
        for side in (0, 1):
            parent = parents[children[parents, side] != NOBODY]
            child = children[parent, side]
            if upward:
                parent, child = parent[height[child] == of_height], child[height[child] == of_height]
            if len(child):
                found.append(net.route(child, parent) if upward else net.route(parent, child))
        return found

    up = [routes(np.arange(n), True, h) for h in range(len(levels) - 1)]
    return Tree(up, [routes(level, False) for level in levels[:-1]])


ALGORITHMS: dict[str, Callable[[Network, float, int, Progress], Floats]] = {
    "ring": ring,
    "tree": tree,
    "one_shot": one_shot,
    "two_shot": two_shot,
    "hierarchical": hierarchical,
}


def simulate(
    algorithm: str, nbytes: float, fabric: Fabric, piece: int = 1 << 17, progress: Progress = quietly
) -> Outcome:
    """An all-reduce of ``nbytes``. ``piece``: bytes of a message where an algorithm sends in pieces (at most
    MOST_PIECES of them). Raises ValueError for an unknown algorithm or a size of 0."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"{algorithm!r} is not one of {', '.join(ALGORITHMS)}")
    if nbytes <= 0 or piece <= 0:
        raise ValueError(f"{nbytes} bytes in pieces of {piece}: both have to be more than 0")
    net = Network(fabric)
    finish = ALGORITHMS[algorithm](net, nbytes, piece, progress) if fabric.topology.world_size > 1 else net.start
    return Outcome(finish, net.messages, net.sent)


# Many worlds.

WORLDS = tuple(1 << i for i in range(3, 15))  # 8 to 16,384 ranks
SCALED = ("ring", "tree", "hierarchical")  # the algorithms for many nodes


@dataclass(frozen=True)
class Point:
    """A simulated all-reduce: seconds until the last of so many ranks has the result, with noise or without."""

    algorithm: str
    ranks: int
    noisy: bool
    seconds: float


def sweep(
    nbytes: float,
    node_size: int,
    profile: Profile,
    noise: Noise,
    worlds: Sequence[int] = WORLDS,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> list[Point]:
    """The algorithms of SCALED on each of ``worlds``, without and with noise. ``progress(what, share of all work)``.

    Raises ValueError if there is noise with more stragglers than ranks, or ranks do not fill nodes.
    """
    runs = [(name, n, noisy) for n in worlds for name in SCALED for noisy in (False, True)]
    runs = [run for run in runs if run[0] != "hierarchical" or (run[1] > node_size > 1)]
    # Work is messages in the order of n^2 for a ring; what a run has in steps of NumPy is small beside it.
    weights = {"ring": lambda n: n * n, "hierarchical": lambda n: n * n / node_size, "tree": lambda n: n}
    work = sum(weights[name](n) for name, n, _ in runs)
    points: list[Point] = []
    before = 0.0
    for name, n, noisy in runs:
        fabric = Fabric(
            Topology(n, node_size),
            profile.link("signal", "mapped"),
            profile.link("signal", "inter"),
            noise=noise if noisy else Noise(),
        )
        weight = weights[name](n)
        tell = functools.partial(_share, progress, f"{name}, {n:,} ranks", before / work, weight / work)
        points.append(Point(name, n, noisy, simulate(name, nbytes, fabric, profile.piece, tell).seconds))
        before += weight
    return points


def _share(
    progress: Callable[[str, float], None], what: str, before: float, weight: float, done: int, steps: int
) -> None:
    progress(what, before + weight * done / max(1, steps))
