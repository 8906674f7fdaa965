"""Runs of the simulator as text, pictures and Chrome traces: ``tricoll trace``.

>>> import torch, tricoll
>>> from tricoll import trace
>>> run = tricoll.simulate(lambda comm: comm.all_reduce(torch.ones(64), algo="ring"), 2, delivery="prompt")
>>> print(trace.of(run).text())
2 ranks: 10.01 us, 4 messages of 128 B, 4 flags
        0                                                                      10.005 us
rank 0  >.......................................>......................................
rank 1  >.......................................>......................................
        > sends, . waits
     at us     arrives  rank -> rank
     0.000       5.003     0 -> 1     store 128 B
     0.000       5.003     1 -> 0     store 128 B
     5.003      10.005     0 -> 1     store 128 B
     5.003      10.005     1 -> 0     store 128 B

Where a run deadlocks, :func:`of` takes what :func:`tricoll.simulate` raises in its place, and the waits that never
ended are marked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from . import chrome, cost, dispatch, lanes, units, world
from .communicator import Communicator
from .cost.machines import LinkProfile
from .errors import CollectiveError
from .fabric.base import Event
from .fabric.sim import Simulation
from .recording import Recording
from .units import show_bytes, show_rate, show_seconds

WIDTH = 80  # columns of the text's lanes
MESSAGES = 40  # that the text lists
COLLECTIVES = tuple(name for name in cost.COLLECTIVES if name != "send_recv")
ITEMSIZE = 4  # bytes: FP32 is sent


class Trace(Recording):
    """What a run did, to be read, drawn, or opened in a viewer of Chrome traces."""

    def text(self, messages: int = MESSAGES) -> str:
        """The lanes in characters, and the first messages.

        Args:
            messages: how many of them.
        """
        factor, unit = self.unit
        at = lambda time: f"{time * factor:10.3f}"
        lines = [self.summary(), " " * 8 + "0" + f"{self.last * factor:.3f} {unit}".rjust(WIDTH - 1)]
        for rank in range(self.ranks):
            for channel in range(self.channels):
                label = f"rank {rank}" if channel == 0 else ""
                lines.append(f"{label:<8}{self._lane(rank, channel)}".rstrip())
        lines.append(" " * 8 + "> sends, . waits" + ", ! waits without end" * bool(self.stuck))
        lines += [f"{'at ' + unit:>10}  {'arrives':>10}  rank -> rank"] if self.messages else []
        for e in self.messages[:messages]:
            lines.append(f"{at(e.start)}  {at(e.arrival)}  {e.rank:>4} -> {e.peer:<4}  {e.kind} {show_bytes(e.nbytes)}")
        if len(self.messages) > messages:
            lines.append(f"{'':>24}and {len(self.messages) - messages:,} more: -o FILE.json has all")
        for e in self.stuck:
            where = f"rank {e.rank}" + f", channel {e.channel}" * (self.channels > 1)
            lines.append(f"{at(e.start)}  {'never ends':>10}  {where} {e.note}")
        return "\n".join(lines)

    def _lane(self, rank: int, channel: int) -> str:
        lane = [" "] * WIDTH
        column = lambda time: min(WIDTH - 1, int(time / self.last * WIDTH)) if self.last else 0
        mine = [e for e in self.events if (e.rank, e.channel) == (rank, channel)]
        for e in mine:
            if e.kind == "wait":
                lane[column(e.start) : column(e.end)] = "." * (column(e.end) - column(e.start))
        for e in mine:
            if e.nbytes:
                lane[column(e.start) : column(e.end) + 1] = ">" * (column(e.end) + 1 - column(e.start))
        for e in mine:
            if e.kind == "stuck":
                lane[column(e.start) :] = "!" * (WIDTH - column(e.start))
        return "".join(lane)

    def chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the run as JSON for chrome://tracing or https://ui.perfetto.dev, times in microseconds.

        Args:
            path: of the file.
        """
        records = []
        for rank in range(self.ranks):
            for channel in range(self.channels):
                for track, what in enumerate(("sends", "waits", "arrivals")):
                    records.append(chrome.name(rank, 3 * channel + track, f"channel {channel}, {what}"))
        for number, e in enumerate(self.events):
            details: dict[str, Any] = {"bytes": e.nbytes, "peer": e.peer}
            if e.kind == "wait":
                records.append(chrome.span(e.rank, 3 * e.channel + 1, f"waits for rank {e.peer}", e.start, e.end))
            elif e.kind == "stuck":
                records.append(chrome.span(e.rank, 3 * e.channel + 1, f"{e.note}, without end", e.start, self.last))
            else:
                what = f"{e.kind} {show_bytes(e.nbytes)} to rank {e.peer}" if e.nbytes else f"flag to rank {e.peer}"
                source, target = (e.rank, 3 * e.channel), (e.peer, 3 * e.channel + 2)
                records.append(chrome.span(*source, what, e.start, e.end, details))
                records.append(chrome.span(*target, f"from rank {e.rank}", e.arrival, e.arrival, details))
                records += chrome.arrow(number, what, source, e.start, target, e.arrival)
        chrome.write(path, records)

    def draw(self, path: str | os.PathLike[str], flags: bool | None = None) -> None:
        """Draw the run as lanes, a rank each, with arrows for messages. The format is that of the path's ending.

        ``flags``: draw those too; None: if a wait did not end, since a flag may be what it waits for.

        Args:
            path: of the picture.

        Raises:
            ImportError: Matplotlib is not installed.
            ValueError: there are too many ranks for a picture, or Matplotlib does not know the format.
        """
        lanes.draw(self, Path(path), flags)


def of(
    run: Simulation | BaseException | Sequence[Event],
    ranks: int = 0,
    title: str = "",
    node_size: int = 0,
    links: str = "",
) -> Trace:
    """The trace of a run, or of what :func:`tricoll.simulate` raised. ``ranks``: 0: as many as are in the events.

    Args:
        run: what :func:`tricoll.simulate` returned or raised, or the events of either.
        title: of the picture.
        node_size: ranks a node; 0: all are in one.
        links: what they are like, for people.

    Raises:
        TypeError: ``run`` has no trace.
    """
    error = run if isinstance(run, BaseException) else None
    events: Any = getattr(run, "trace", run)
    if not isinstance(events, Sequence):
        raise TypeError(f"{type(run).__name__} has no trace: it does not come from tricoll.simulate")
    ranks = ranks or 1 + max((max(e.rank, e.peer) for e in events), default=0)
    return Trace(events, ranks, title, node_size, links, error)


def record(
    collective: str,
    algorithm: str = "auto",
    *,
    ranks: int = 4,
    nbytes: int = 1 << 16,
    link: str = "auto",
    delivery: str = "prompt",
    seed: int = 0,
    node_size: int = 0,
    root: int = 0,
    absent: Sequence[int] = (),
    profile: cost.Profile | None = None,
    **settings: Any,
) -> Trace:
    """Simulate one call, and keep what it did.

    Args:
        collective: its name.
        algorithm: its name, or "auto".
        ranks: how many take part.
        nbytes: of the whole buffer, as in nccl-tests; FP32 elements.
        link: "mapped", "put", or "auto" as in :func:`tricoll.init`.
        delivery: "prompt" or "adversarial", as in :func:`tricoll.simulate`.
        seed: of the scheduler.
        node_size: ranks a node; 0: all are in one.
        root: of the collectives that have one.
        absent: ranks that do not make the call, so that the others wait for them.
        profile: a machine's constants, of which the links' are used; None: those of "lesson".
        **settings: as in :func:`tricoll.simulate`.

    Returns:
        What was done. Trouble in the call itself is in its ``error``.

    Raises:
        ValueError: for arguments that a call would refuse.
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"{collective!r} is not one of {', '.join(COLLECTIVES)}")
    if strange := [rank for rank in (root, *absent) if not 0 <= rank < ranks]:
        raise ValueError(f"there is no rank {strange[0]} among {ranks}")
    profile = profile or cost.PROFILES["lesson"]
    links = {
        "intra": profile.link("signal", "mapped" if link == "auto" else link),
        "inter": profile.link("signal", "inter"),
    }
    options = {"algo": algorithm} if len(dispatch.having(collective)) > 1 else {}
    if not options and algorithm not in ("auto", *dispatch.having(collective)):
        raise ValueError(f"algo is {algorithm!r}; {collective} has only {dispatch.having(collective)[0]!r}")
    used: list[str] = []

    def call(comm: Communicator) -> None:
        used.append(_named(comm, collective, algorithm, nbytes))
        if comm.rank not in absent:
            _call(comm, collective, nbytes, root, options)

    title = lambda: f"{used[0] if used else algorithm} {collective} of {show_bytes(nbytes)} on {ranks} ranks"
    several = 0 < node_size < ranks
    shown = {name: f"{show_seconds(one.alpha)} and {show_rate(one.beta)}" for name, one in links.items()}
    said = f"in a node {shown['intra']}, between nodes {shown['inter']}" if several else shown["intra"]
    places: dict[str, Any] = {"ranks": ranks, "node_size": node_size if several else 0, "links": f"links: {said}"}
    try:
        run = world.simulate(
            call,
            ranks,
            seed=seed,
            delivery=delivery,
            node_size=node_size or None,
            profile={name: LinkProfile(one.alpha, one.beta) for name, one in links.items()},
            link=link,
            **settings,
        )
    except CollectiveError as error:
        return of(error, title=title(), **places)
    return of(run, title=title(), **places)


def _named(comm: Communicator, collective: str, algorithm: str, nbytes: int) -> str:
    if algorithm != "auto":
        return algorithm
    whole = ITEMSIZE * _elements(nbytes, comm.world_size)
    return dispatch.choose(collective, whole, comm.world_size, comm._settings, comm._profile)


def _elements(nbytes: int, n: int) -> int:
    """Of the whole buffer: as many for each rank."""
    return -(-nbytes // ITEMSIZE // n) * n


def _call(comm: Communicator, collective: str, nbytes: int, root: int, options: dict[str, Any]) -> None:
    n = comm.world_size
    whole = torch.zeros(_elements(nbytes, n))
    part = whole[: whole.numel() // n]
    if collective in ("broadcast", "reduce"):
        getattr(comm, collective)(whole, root, **options)
    elif collective == "gather":
        comm.gather(part, root)
    elif collective == "scatter":
        comm.scatter(whole, root, out=part.clone())
    else:
        getattr(comm, collective)(part if collective == "all_gather" else whole, **options)


def pictures() -> Iterator[tuple[str, Trace, bool | None]]:
    """Those of docs/algorithms.md: names, runs, and whether flags are drawn. On slow links, so that bytes take time."""
    # The very numbers of the commands there.
    link = lambda alpha, rate: cost.Link(units.seconds(alpha), units.rate(rate))
    slow, fast = link("5us", "5GB/s"), link("2us", "20GB/s")
    one, two = cost.two_levels(slow, slow, "slow"), cost.two_levels(fast, slow, "slow")
    shared: dict[str, Any] = {"ranks": 4, "nbytes": 1 << 16, "profile": one}
    drawn: dict[str, dict[str, Any]] = {
        "ring": shared,
        "tree": {**shared, "ranks": 8},
        "one_shot": {**shared, "nbytes": 1 << 13},
        "two_shot": shared,
        "hierarchical": {**shared, "ranks": 6, "node_size": 2, "profile": two},
        "multimem": shared,
    }
    for name, options in drawn.items():
        yield name, record("all_reduce", name, **options), True if name == "multimem" else None
    yield "stuck", record("all_reduce", "ring", absent=[2], **shared), None
