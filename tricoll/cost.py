"""What a collective costs: the alpha-beta model, as pure functions of plain numbers (seconds, bytes, bytes a second).

A message of m bytes takes ``alpha + m / beta`` seconds; an algorithm takes its steps' alphas and the bytes that its
busiest link carries; where a rank is busy for each message, as on CPUs, its messages too. The model knows two kinds of
links, inside a node and between nodes, and two protocols: data with a separate flag (``signal``), and a flag in every
word (``packed``: less latency, half the bandwidth). It has no congestion, no stragglers and no cost of adding:
docs/cost-model.md says what that leaves out.

``python -m tricoll.cost`` prints the ring's times for the gradients of 8 billion parameters.

Sizes follow nccl-tests: of the tensor for all_reduce, broadcast, reduce and send_recv, and of the whole buffer (all
ranks' parts together) for the other collectives.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import units
from .fabric.base import LinkProfile as Link

# How much of the data crosses a rank's link, as a share of the size: what nccl-tests multiplies algbw with.
BUSBW_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "send_recv": lambda n: 1.0,
}
COLLECTIVES = tuple(BUSBW_FACTORS)
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")  # the collectives that add, so that the order matters


def algbw(nbytes: float, seconds: float) -> float:
    """Bytes a second: the size by the time. Infinite for a time of 0, and 0 if there was nothing to move.

    Args:
        nbytes: size as nccl-tests counts it: the tensor, or the whole buffer.
        seconds: what it took.
    """
    if not nbytes:
        return 0.0
    return nbytes / seconds if seconds else math.inf


def busbw(collective: str, nbytes: float, seconds: float, world_size: int) -> float:
    """algbw times nccl-tests' factor, a convention for every algorithm: comparable with a link's rate.

    0 for one rank alone where others' data would be needed: nothing crosses a link.

    Args:
        collective: its name, one of ``COLLECTIVES``.
        nbytes: size as nccl-tests counts it: the tensor, or the whole buffer.
        seconds: what it took.
        world_size: ranks.
    """
    factor = BUSBW_FACTORS[check_collective(collective)](world_size)
    return factor * algbw(nbytes, seconds) if factor else 0.0


def check_collective(collective: str) -> str:
    """The name itself. Raises ValueError, listing those that there are, if it is not one."""
    if collective not in BUSBW_FACTORS:
        raise ValueError(f"{collective!r} is not one of {', '.join(COLLECTIVES)}")
    return collective


# One kind of link, and the two textbook formulas: what the questions "how long" and "which is better" start from.


def ring_seconds(n: int, nbytes: float, alpha: float, beta: float) -> float:
    """All-reduce by a ring: 2(n-1) steps, each of ``nbytes / n``. Patarasuk and Yuan, 2009.

    Args:
        n: ranks.
        nbytes: of the tensor.
        alpha: seconds a message.
        beta: bytes a second.
    """
    return 2 * (n - 1) * (alpha + nbytes / n / beta)


def tree_seconds(n: int, nbytes: float, alpha: float, beta: float) -> float:
    """All-reduce by a tree that is not pipelined: up and down log2(n) levels with the whole message at each.

    Args:
        n: ranks.
        nbytes: of the tensor.
        alpha: seconds a message.
        beta: bytes a second.
    """
    return 2 * math.log2(n) * (alpha + nbytes / beta)


def balanced_bytes(n: int, alpha: float, beta: float) -> float:
    """The size at which a ring's latency and bandwidth terms are equal: alpha = M / (n beta).

    Args:
        n: ranks.
        alpha: seconds a message.
        beta: bytes a second.
    """
    return n * alpha * beta


def tree_below(n: int, alpha: float, beta: float) -> float:
    """The size below which :func:`tree_seconds` is less than :func:`ring_seconds`; 0 if it never is.

    From log2(n) (alpha + M/beta) = (n-1) (alpha + M/(n beta)).

    Args:
        n: ranks.
        alpha: seconds a message.
        beta: bytes a second.
    """
    saved, paid = n - 1 - math.log2(n), math.log2(n) - (n - 1) / n
    return alpha * beta * saved / paid if paid > 0 and saved > 0 else 0.0


# Machines.


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

    ``provenance`` says how a measured profile came about, and for which machine: see :mod:`tricoll.tune`.
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
    version: int = 1
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


VERSION = 1  # of the profile files


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


# Algorithms. Each is a function from a call to its Terms, or to the reason why it cannot serve the call.

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


Model = Callable[[Call], Terms | str]
ALGORITHMS: dict[str, tuple[tuple[str, ...], tuple[str, ...], Model]] = {}  # collectives, protocols, function


def algorithm(name: str, collectives: str, protocols: str = "signal") -> Callable[[Model], Model]:
    """Adds a function to ALGORITHMS."""

    def add(model: Model) -> Model:
        ALGORITHMS[name] = (tuple(collectives.split()), tuple(protocols.split()), model)
        return model

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


# Candidates.


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
    for name, (collectives, _, _) in ALGORITHMS.items():
        if collective not in collectives:
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
    protocols = ALGORITHMS[name][1]
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
    terms = ALGORITHMS[name][2](call) if n > 1 else Terms(0.0, 0.0, 0, 0.0, 1)
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
    crowded = collective in ALGORITHMS["two_shot"][0] and name in DIRECT and topology.nodes > 1
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


@dataclass(frozen=True)
class Explanation:
    """Why an algorithm is chosen for a call: all candidates, and a sentence."""

    collective: str
    nbytes: float
    topology: Topology
    profile: str
    reproducible: bool
    candidates: list[Candidate]
    reason: str

    @property
    def winner(self) -> Candidate:
        """The candidate that is taken."""
        return self.candidates[0]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: seconds, bytes, bytes a second; an infinite rate is None."""
        plain = dataclasses.asdict(self) | {"winner": self.winner.algorithm}
        for row in plain["candidates"]:
            row |= {key: None for key, value in row.items() if value == math.inf}
        return plain


def explain(
    collective: str,
    nbytes: float,
    topology: Topology,
    profile: Profile,
    *,
    reproducible: bool = False,
    available: Collection[str] | None = None,
) -> Explanation:
    """:func:`candidates`, and a sentence why the first one won and by how much. Raises as :func:`best` does.

    Args:
        collective: its name, one of ``COLLECTIVES``.
        nbytes: size as nccl-tests counts it: the tensor, or the whole buffer.
        topology: the ranks.
        profile: the machine's constants.
    """
    options: dict[str, Any] = {"reproducible": reproducible, "available": available}
    best(collective, nbytes, topology, profile, **options)  # raises if nothing is left
    found = candidates(collective, nbytes, topology, profile, **options)
    left = [c for c in found if not c.excluded]
    reason = _reason(left[0], left[1] if len(left) > 1 else None)
    return Explanation(collective, nbytes, topology, profile.name, reproducible, found, reason)


def _reason(first: Candidate, second: Candidate | None) -> str:
    took = f"{first.algorithm} is predicted to take {units.show_seconds(first.time)}"
    if second is None:
        return f"{took}, and nothing else is left to choose from."
    if first.time == second.time:
        return f"{took}, as {second.algorithm} is: the choice is between equals."
    ratio = second.time / first.time
    ahead = f"{ratio - 1:.2%} faster than" if ratio < 1.095 else f"{ratio:.3g} times as fast as"
    said = f"{took}, {ahead} {second.algorithm} ({units.show_seconds(second.time)}): "
    if second.latency - first.latency > second.bandwidth - first.bandwidth:
        steps = f"{first.steps} step" + ("s" if first.steps != 1 else "")
        return said + (
            f"its latency is {units.show_seconds(first.latency)} in {steps}, "
            f"and that of {second.algorithm} {units.show_seconds(second.latency)} in {second.steps}."
        )
    return said + (
        f"its data take {units.show_seconds(first.bandwidth)} on the busiest link, "
        f"and those of {second.algorithm} {units.show_seconds(second.bandwidth)}."
    )


def main() -> None:
    """Print how long a ring all-reduces the BF16 gradients of 8 billion parameters, and 1 MB, by the model."""
    from rich.console import Console
    from rich.table import Table

    alpha, console = 5e-6, Console(highlight=False)
    for title, beta in (("NVLink-class 450 GB/s", 450e9), ("400 Gb/s NIC (50 GB/s)", 50e9)):
        table = Table("n", "time (ms)", "latency part (ms)", title=f"16 GB, {title}", title_justify="left")
        for n in (8, 64, 512, 4096):
            seconds, latency = ring_seconds(n, 16e9, alpha, beta), ring_seconds(n, 0, alpha, beta)
            table.add_row(str(n), f"{seconds * 1e3:.1f}", f"{latency * 1e3:.1f}")
        _right(console, table)
    table = Table("n", "time (ms)", "bus bw (GB/s)", title="1 MB, 50 GB/s", title_justify="left")
    for n in (8, 512, 4096):
        seconds = ring_seconds(n, 1e6, alpha, 50e9)
        table.add_row(str(n), f"{seconds * 1e3:.2f}", f"{busbw('all_reduce', 1e6, seconds, n) / 1e9:.1f}")
    _right(console, table)


def _right(console: Any, table: Any) -> None:
    for column in table.columns:
        column.justify = "right"
    console.print(table)


if __name__ == "__main__":
    main()
