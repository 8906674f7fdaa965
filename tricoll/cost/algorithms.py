"""The algorithms' costs: each is a function from a call to its Terms, or to the reason why it cannot serve the call."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from .machines import Link
from .rates import REDUCTIONS

WORTH = 16384  # bytes: smaller pieces are not worth a message each
PIPELINE = 16  # pieces that a path through many ranks is worth, if they are large enough


@dataclass(frozen=True)
class Call:
    """A collective of ``nbytes`` on ``n`` ranks, L to a node, N nodes, over an ``inner`` and an ``outer`` link."""

    collective: str
    nbytes: float
    n: int
    L: int
    N: int
    inner: Link
    outer: Link  # the inner link if there is one node
    piece: int
    mapped: bool
    multicast: bool
    slot_bytes: float = 0.0
    window: int = 1
    channels: int = 1

    def pieces(self, chunk: float, links: int, window: int = 0) -> int:
        """Into how many messages a channel cuts its part of ``chunk`` bytes, if a rank has ``links`` links that share
        its slots: as ``dispatch.plan``, at least a window of them if they are worth it. 1 without ``slot_bytes``."""
        if not self.slot_bytes:
            return 1
        part, slot = chunk / self.channels, max(128, self.slot_bytes // links // 128 * 128)
        return max(1, math.ceil(part / slot), min(window or self.window, int(part // WORTH)))

    def pipeline(self, chunk: float, links: int) -> tuple[int, float]:
        """The same for algorithms that send piece after piece down a path: how many, and the bytes of one."""
        if self.slot_bytes:
            pieces = self.pieces(chunk, links, PIPELINE)
            return pieces, chunk / pieces
        return max(1, math.ceil(chunk / self.piece)), min(self.piece, chunk)

    @property
    def slower(self) -> Link:
        """What the slower of the two gives: the highest alpha and the lowest beta of the links in use."""
        if self.L == 1:
            return self.outer
        return Link(max(self.inner.alpha, self.outer.alpha), min(self.inner.beta, self.outer.beta))

    def fan(self, nbytes: float) -> float:
        """Seconds to send ``nbytes`` to each other rank: to those of the node and to the others at the same time."""
        return max((self.L - 1) * nbytes / self.inner.beta, (self.n - self.L) * nbytes / self.outer.beta)


@dataclass(frozen=True)
class Terms:
    """Seconds of latency and of bandwidth; dependent steps; bytes that a rank sends at most; how often a value is
    rounded to the wire dtype, at most, between the ranks' inputs and a result (for a wire narrower than both);
    messages that a channel of the busiest rank sends; what all ranks send, by their number, as a share of what the
    busiest one does."""

    latency: float
    bandwidth: float
    steps: int
    sent: float
    roundings: int
    messages: float = 0.0
    mean: float = 1.0


class Algorithm(NamedTuple):
    """What is known of an algorithm: its collectives, the protocols that it can use, and its cost."""

    collectives: tuple[str, ...]
    protocols: tuple[str, ...]
    terms: Callable[[Call], Terms | str]


ALGORITHMS: dict[str, Algorithm] = {}


def algorithm(
    name: str, collectives: str, protocols: str = "signal"
) -> Callable[[Callable[[Call], Terms | str]], Callable[[Call], Terms | str]]:
    """Adds a function to ALGORITHMS."""

    def add(terms: Callable[[Call], Terms | str]) -> Callable[[Call], Terms | str]:
        ALGORITHMS[name] = Algorithm(tuple(collectives.split()), tuple(protocols.split()), terms)
        return terms

    return add


@algorithm("ring", "all_reduce reduce_scatter all_gather broadcast reduce")
def ring(call: Call) -> Terms | str:
    """2(n-1) steps of M/n; half of them for reduce_scatter and all_gather. Broadcast and reduce are chains of pieces.

    Two chains of events can be the longest: the way of the part that crosses nodes most often (of 2(n-1) links in a
    row, a ring misses two, which are inside of a node if nodes have more than two ranks), and all messages of the
    slowest link, one after the other. With one kind of link it is the first: 2(n-1) (alpha + M / (n beta)). If w pieces
    of a chunk go round together, the first one is on its way for M / (n w beta) a step, and the others follow it.
    """
    n, N, rounds = call.n, call.N, 2 if call.collective == "all_reduce" else 1
    hops = rounds * (n - 1)
    far = 0 if N == 1 else rounds * N - max(0, rounds + 1 - call.L)
    near = hops - far
    latency = near * call.inner.alpha + far * call.outer.alpha
    if call.collective in ("broadcast", "reduce"):
        pieces, piece = call.pipeline(call.nbytes, n)
        way = piece * (near / call.inner.beta + far / call.outer.beta)
        roundings = n if call.collective == "reduce" else 1
        return Terms(
            latency, way + (call.nbytes - piece) / call.slower.beta, hops, call.nbytes, roundings, pieces, (n - 1) / n
        )
    chunk = call.nbytes / n
    pieces = call.pieces(chunk, 1)
    first = chunk / min(pieces, call.window)
    way = first * (near / call.inner.beta + far / call.outer.beta) + (chunk - first) / call.slower.beta
    queue = hops * chunk / call.slower.beta + call.slower.alpha
    roundings = {"all_reduce": n, "reduce_scatter": n - 1, "all_gather": 1}[call.collective]
    return Terms(latency, max(way, queue - latency), hops, hops * chunk, roundings, hops * pieces)


@algorithm("tree", "all_reduce broadcast reduce")
def tree(call: Call) -> Terms | str:
    """The double binary tree, pipelined: M/2 a tree in k pieces, 2 ceil(log2 n) levels. Sanders, Speck, Traeff, 2009.

    An inner node takes from, or sends to, its (two) children in turn. The first pieces fill the levels, two pieces'
    time at each; the others follow at the pace of the busiest rank, which sends four: up in both trees, down to two
    children. With one piece this is :func:`tree_seconds`, with many 2 M / beta. Broadcast and reduce use one tree, in
    one way. In tricoll's kernel (with ``slot_bytes``) results come down while others still go up: until the first piece
    has come up, pieces follow it at twice that pace, for they need no sends down yet.
    """
    n = call.n
    children = 1 if n < 4 else 2
    if call.collective == "all_reduce":
        ways, trees, busiest = 2, 2, {2: 2, 3: 3}.get(n, 4)
    else:
        ways, trees, busiest = 1, 1, children
    depth = (n - 1).bit_length()
    # Ranks half a node from the next one have their parents there, so one level more crosses than nodes alone ask for.
    # Nodes that are no power of two do not fit the tree: all of its levels may cross.
    far = min(depth, (call.N - 1).bit_length() + (call.N > 1))
    if call.N > 1 and call.L & (call.L - 1):
        far = depth
    near = depth - far
    share = call.nbytes / trees
    pieces, piece = call.pipeline(share, 6 if call.collective == "all_reduce" else n)
    fill = ways * children * piece * (near / call.inner.beta + far / call.outer.beta)
    latency = ways * (near * call.inner.alpha + far * call.outer.alpha)
    rest = busiest * (share - piece) / call.slower.beta
    if call.slot_bytes and ways == 2:
        rest -= min(rest, latency + fill) / 2
    bandwidth = fill + rest
    sent = share if call.collective == "reduce" else busiest * share
    roundings = 1 if call.collective == "broadcast" else depth + 1
    messages = pieces * (1 if call.collective == "reduce" else busiest)
    # In a tree, n - 1 ranks send up, or are sent to: once in all for each way.
    mean = ways * trees * (n - 1) / n * pieces / messages
    return Terms(latency, bandwidth, ways * depth, sent, roundings, messages, mean)


@algorithm("one_shot", "all_reduce broadcast reduce all_to_all gather scatter send_recv", "signal packed")
def one_shot(call: Call) -> Terms | str:
    """One step: everybody sends to everybody who needs it. An all-reduce sends (n-1) M and rounds M once."""
    n, alpha = call.n, call.slower.alpha
    part = call.nbytes / n if call.collective in ("all_to_all", "gather", "scatter") else call.nbytes
    window = {"all_reduce": call.window, "broadcast": PIPELINE, "reduce": PIPELINE}.get(call.collective, 1)
    pieces = call.pieces(part, n, window)
    if call.collective == "send_recv":
        return Terms(alpha, part / call.slower.beta, 1, part, 1, pieces)
    peers = 1 if call.collective in ("reduce", "gather") else n - 1
    roundings = 2 if call.collective in REDUCTIONS else 1
    alone = call.collective in ("broadcast", "scatter")  # the root sends, and nobody else
    mean = 1 / n if alone else 1.0 if call.collective in ("all_reduce", "all_to_all") else (n - 1) / n
    return Terms(alpha, call.fan(part), 1, peers * part, roundings, peers * pieces, mean)


@algorithm("two_shot", "all_reduce reduce_scatter all_gather reduce")
def two_shot(call: Call) -> Terms | str:
    """Direct reduce-scatter, then direct all-gather: 2 steps and 2(n-1)/n M; one of them alone is half of it.

    Reduce: the second step brings the parts to the root. If parts go in w pieces, the second step of the first one
    begins when that has arrived, behind those that are still being sent.
    """
    steps = 2 if call.collective in ("all_reduce", "reduce") else 1
    part = call.nbytes / call.n
    parts = call.n if call.collective == "reduce" else steps * (call.n - 1)
    pieces = call.pieces(part, call.n, {"reduce": PIPELINE, "all_gather": 1}.get(call.collective, 0))
    alpha, step = call.slower.alpha, call.fan(part)
    bandwidth = step if steps == 1 else max(step + step / min(pieces, call.window), 2 * step - alpha)
    return Terms(steps * alpha, bandwidth, steps, part * parts, steps, pieces * parts)


@algorithm("hierarchical", "all_reduce reduce_scatter all_gather")
def hierarchical(call: Call) -> Terms | str:
    """Direct reduce-scatter in the node, a ring across nodes for each rank of a node (a rail) with M/L, all-gather.

    Pieces of a rail's data follow each other, so that both levels work at once: the slower one takes all of its
    time, and the other one adds that of one piece.
    """
    n, L, N = call.n, call.L, call.N
    if N == 1 or L == 1:
        return "it needs several nodes of several ranks"
    rounds = 2 if call.collective == "all_reduce" else 1
    local = rounds * (L - 1) / L * call.nbytes / call.inner.beta
    across = rounds * (N - 1) / N * (call.nbytes / L) / call.outer.beta
    messages = call.pieces(call.nbytes / n, L + 1)
    pieces = messages if call.slot_bytes else max(1.0, call.nbytes / n / call.piece)  # of that size, across nodes
    latency = rounds * (call.inner.alpha + (N - 1) * call.outer.alpha)
    roundings = {"all_reduce": N + 1, "reduce_scatter": N, "all_gather": 1}[call.collective]
    if pieces > call.window:
        bandwidth = max(local, across) + min(local, across) / pieces
    else:  # as in a ring: the first piece goes all the way, and the others follow it through the last step
        step = max(local / (rounds * N), across / (rounds * (N - 1)))
        way = (local + across) / pieces + (pieces - 1) / pieces * step
        bandwidth = max(way, max(local, across) - latency)
    sent = rounds * (n - 1) / n * call.nbytes
    return Terms(latency, bandwidth, rounds * N, sent, roundings, rounds * (N * L - 1) * messages)


@algorithm("multimem", "all_reduce")
def multimem(call: Call) -> Terms | str:
    """The switch adds: every rank reads the sum of its part (all send M), and writes it to all at once (M/n)."""
    if call.N > 1:
        return "the switch adds inside one node only"
    if not (call.multicast and call.mapped):
        return "it needs mapped peers and a switch with multicast"
    sent = call.nbytes + call.nbytes / call.n
    messages = 2 * call.n * call.pieces(call.nbytes / call.n, call.n)  # half of them are flags alone
    return Terms(2 * call.inner.alpha, sent / call.inner.beta, 2, sent, 2, messages)


DIRECT = ("one_shot", "two_shot")  # add in rank order with one rounding at the end: the same bits at every size
