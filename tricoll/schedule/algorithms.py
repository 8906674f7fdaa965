"""All-reduces, message by message, as the kernels send them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..topology import NOBODY, Node, double_binary_tree
from .network import Fabric, Network, Outcome, Route

if TYPE_CHECKING:
    from .network import Floats, Ranks

MOST_PIECES = 64  # of a pipelined algorithm: more of them would change the time by less than a 64th


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
