"""The picture of a run of the simulator: a lane a rank (and channel), messages between them, time from left to right.

A message is a band: as wide as the time that its bytes take to leave, and slanted by its latency.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import plots
from .fabric.base import Event
from .recording import Recording

MOST = 16  # ranks
MANY = 45  # messages a rank: more are drawn without bands and heads, which would be a blot
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f6a00", "#555555")  # of rank % 8
WAIT, STUCK, FLAG = "#b8b8b8", "#c0392b", "#9a9a9a"
RED: dict[str, Any] = {"facecolor": "#f6d5d1", "edgecolor": STUCK, "hatch": "////"}
WIDTH, LANE, CHANNEL = 10.0, 0.56, 0.30  # inches: of the picture, from lane to lane, from channel to channel
LEFT, RIGHT, TOP, BOTTOM = 0.75, 0.35, 0.45, 0.8  # inches: around the lanes
BAR, THIN = 0.16, 0.07  # inches: how high sending and waiting are drawn
HEAD, HALF = 0.10, 0.035  # inches: an arrow's head


class Picture:
    """Where things are: x in units of time, y in inches from the top of the lanes."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.factor, self.unit = recording.unit
        self.pitch = LANE + CHANNEL * (recording.channels - 1)
        self.height = self.pitch * recording.ranks
        self.last = max(recording.last * self.factor, 1e-9)
        self.start, self.stop = -0.01 * self.last, 1.01 * self.last
        self.inches = (WIDTH - LEFT - RIGHT) / (self.stop - self.start)  # a unit of time

    def y(self, rank: int, channel: int) -> float:
        """The middle of a lane."""
        return self.pitch * rank + LANE / 2 + CHANNEL * channel

    def bar(self, e: Event, until: float, height: float) -> list[tuple[float, float]]:
        """A rectangle on the lane of an event, from its start."""
        y, a, b = self.y(e.rank, e.channel), e.start * self.factor, until
        return [(a, y - height / 2), (b, y - height / 2), (b, y + height / 2), (a, y + height / 2)]

    def band(self, e: Event) -> list[tuple[float, float]]:
        """First byte and last byte: where they leave, and where they arrive."""
        y, there = self.ends(e)
        a, b, c = (time * self.factor for time in (e.start, e.end, e.arrival))
        return [(a, y), (b, y), (c, there), (c - (b - a), there)]

    def ends(self, e: Event) -> tuple[float, float]:
        """The edges of the lanes that a message goes between."""
        y, there = self.y(e.rank, e.channel), self.y(e.peer, e.channel)
        down = 1 if there > y else -1
        return y + down * BAR / 2, there - down * BAR / 2

    def head(self, e: Event) -> list[tuple[float, float]]:
        """An arrow's head, where the last byte arrives."""
        y, there = self.ends(e)
        tip = e.arrival * self.factor
        dx, dy = (e.arrival - e.end) * self.factor * self.inches, there - y
        length = (dx * dx + dy * dy) ** 0.5 or 1.0
        dx, dy = dx / length, dy / length
        back = (tip - HEAD * dx / self.inches, there - HEAD * dy)
        aside = (HALF * dy / self.inches, HALF * dx)
        return [(tip, there), (back[0] - aside[0], back[1] + aside[1]), (back[0] + aside[0], back[1] - aside[1])]


def draw(recording: Recording, path: Path, flags: bool | None = None) -> None:
    """See :meth:`tricoll.trace.Trace.draw`."""
    if recording.ranks > MOST:
        raise ValueError(
            f"a picture shows up to {MOST} ranks, and these are {recording.ranks}: take text, or FILE.json"
        )
    picture = Picture(recording)
    fig, axis = plots.figure(WIDTH, picture.height + TOP + BOTTOM)
    known = sorted(fig.canvas.get_supported_filetypes())
    if path.suffix.removeprefix(".") not in known:
        raise ValueError(f"{path} is of no type that Matplotlib can write: one of {', '.join(known)}")
    fig.set_layout_engine("none")
    whole = picture.height + TOP + BOTTOM
    axis.set_position((LEFT / WIDTH, BOTTOM / whole, (WIDTH - LEFT - RIGHT) / WIDTH, picture.height / whole))
    _frame(axis, picture)
    shown = bool(recording.stuck) if flags is None else flags
    if shown:
        lines = [[(e.start * picture.factor, a), (e.arrival * picture.factor, b)] for e, a, b in _between(picture)]
        axis.add_collection(_lines(lines, color=FLAG, linewidth=0.7, linestyle=(0, (2, 2)), zorder=2))
    _messages(axis, picture)
    waits = [picture.bar(e, e.end * picture.factor, THIN) for e in recording.waits]
    axis.add_collection(_polygons(waits, facecolor=WAIT, zorder=3))
    _stuck(axis, picture)
    _legend(fig, shown and bool(recording.flags), recording)
    _save(fig, path, recording)


def _between(picture: Picture) -> list[tuple[Event, float, float]]:
    return [(e, *picture.ends(e)) for e in picture.recording.flags if e.peer != e.rank]


def _frame(axis: Any, picture: Picture) -> None:
    recording = picture.recording
    axis.set(xlim=(picture.start, picture.stop), ylim=(picture.height, 0.0))
    lanes = [(r, c) for r in range(recording.ranks) for c in range(recording.channels)]
    for rank, channel in lanes:
        axis.axhline(picture.y(rank, channel), color="#e2e2e2", linewidth=0.8, zorder=1)
    labels = [f"rank {r}" if recording.channels == 1 else f"{r}, ch. {c}" for r, c in lanes]
    axis.set_yticks([picture.y(*lane) for lane in lanes], labels)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", color="#eeeeee", linewidth=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.set_xlabel(
        f"virtual time ({picture.unit})" + f"; {recording.links}" * bool(recording.links), loc="left", fontsize=9
    )
    axis.set_title(recording.summary(), fontsize=10.5, loc="left")
    if recording.node_size:
        for node in range(-(-recording.ranks // recording.node_size)):
            top = node * recording.node_size * picture.pitch
            bottom = min(top + recording.node_size * picture.pitch, picture.height)
            axis.axhspan(top, bottom, color="#f4f6fa" if node % 2 else "#ffffff", zorder=0)
            axis.text(1.01, (top + bottom) / 2, f"node {node}", rotation=270, va="center", ha="left", fontsize=9,
                      transform=axis.get_yaxis_transform())  # fmt: skip


def _messages(axis: Any, picture: Picture) -> None:
    messages = picture.recording.messages
    few = len(messages) <= MANY * picture.recording.ranks
    for rank in range(picture.recording.ranks):
        mine, colour = [e for e in messages if e.rank == rank], COLOURS[rank % len(COLOURS)]
        others = [e for e in mine if e.peer != rank]
        bars = [picture.bar(e, e.end * picture.factor, BAR) for e in mine]
        axis.add_collection(_polygons(bars, facecolor=colour, edgecolor="white", linewidth=0.4, zorder=4))
        edges = [picture.band(e)[1:3] for e in others]
        axis.add_collection(_lines(edges, color=colour, linewidth=0.9 if few else 0.3, zorder=5))
        if few:
            bands = [picture.band(e) for e in others]
            axis.add_collection(_polygons(bands, facecolor=colour, alpha=0.16, zorder=2))
            axis.add_collection(_polygons([picture.head(e) for e in others], facecolor=colour, zorder=5))


def _stuck(axis: Any, picture: Picture) -> None:
    for e in picture.recording.stuck:
        y, start = picture.y(e.rank, e.channel), e.start * picture.factor
        bar = picture.bar(e, picture.last, BAR)
        axis.add_collection(_polygons([bar], **RED, linewidth=0.8, zorder=3))
        late = start > 0.55 * picture.last  # there is more room on the left, then
        at = picture.last if late else start
        axis.text(at, y - BAR / 2 - 0.03, e.note, color=STUCK, fontsize=8, va="bottom", ha="right" if late else "left",
                  zorder=6, bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.5})  # fmt: skip


def _legend(fig: Any, flags: bool, recording: Recording) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(color=COLOURS[0], label="sends, in the sender's colour"),
        Patch(color=COLOURS[0], alpha=0.25, label="a message on its way"),
    ]
    if recording.waits:
        handles.append(Line2D([], [], color=WAIT, linewidth=4, label="waits"))
    if flags:
        handles.append(Line2D([], [], color=FLAG, linewidth=0.9, linestyle=":", label="a flag without data"))
    if recording.stuck:
        handles.append(Patch(**RED, label="waits without end"))
    fig.legend(handles=handles, loc="lower right", ncols=len(handles), frameon=False, fontsize=8.5)


def _polygons(places: Sequence[Any], **style: Any) -> Any:
    from matplotlib.collections import PolyCollection

    return PolyCollection(places, **{"linewidth": 0, "snap": False, **style})


def _lines(places: Sequence[Any], **style: Any) -> Any:
    from matplotlib.collections import LineCollection

    return LineCollection(places, **style)


def digest(recording: Recording) -> str:
    """What a picture is of, in short: another run has another one."""
    shown = [(e.kind, e.rank, e.channel, e.peer, e.nbytes, f"{e.start:.6g} {e.end:.6g}") for e in recording.events]
    return hashlib.sha256(repr(shown).encode()).hexdigest()[:16]


def _save(fig: Any, path: Path, recording: Recording) -> None:
    from matplotlib import rc_context

    # Text stays text, and the same run makes the same file.
    metadata = {"Date": None, "Description": digest(recording)} if path.suffix == ".svg" else None
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tricoll"}):
        fig.savefig(path, dpi=130, metadata=metadata)
