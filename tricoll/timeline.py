"""What the gradient buckets of backward passes did when: how much of the communication the computation has hidden."""

from __future__ import annotations

import collections
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from . import chrome
from .work import Work

KEPT = 200  # backward passes


@dataclass(frozen=True)
class Bucket:
    """One bucket of one backward pass. Times are seconds of ``time.perf_counter()``."""

    index: int  # DDP's number of the bucket
    nbytes: int  # of gradients
    ready: float  # when its last gradient was there
    start: float  # when its all-reduce began
    end: float  # when it was averaged


@dataclass(frozen=True)
class Step:
    """One backward pass."""

    buckets: list[Bucket]  # in the order in which they were ready
    backward_end: float  # when the last gradient had been computed
    end: float  # when the last bucket was averaged

    @property
    def exposed(self) -> float:
        """Seconds for which the backward pass had ended, and buckets had not."""
        return max(0.0, self.end - self.backward_end)

    @property
    def hidden(self) -> float:
        """Seconds of communication that went on while gradients were being computed."""
        return sum(max(0.0, min(b.end, self.backward_end) - b.start) for b in self.buckets)


@dataclass
class Timeline:
    """The last backward passes of a rank, the oldest first."""

    rank: int
    steps: list[Step]

    @property
    def hidden(self) -> float:
        """Seconds of communication hidden behind computation, over all steps."""
        return sum(step.hidden for step in self.steps)

    @property
    def exposed(self) -> float:
        """Seconds of waiting for communication, over all steps."""
        return sum(step.exposed for step in self.steps)

    def __str__(self) -> str:
        if not self.steps:
            return f"rank {self.rank}: no backward pass with a tricoll hook yet"
        n, total = len(self.steps), self.hidden + self.exposed
        share = f", {100 * self.hidden / total:.0f}% hidden" if total else ""
        return (
            f"rank {self.rank}, {n} backward passes: communication hidden {1e3 * self.hidden / n:.2f} ms, exposed "
            f"{1e3 * self.exposed / n:.2f} ms a pass{share}"
        )

    def chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the steps as JSON for chrome://tracing or https://ui.perfetto.dev, times in microseconds.

        Args:
            path: of the file.
        """
        events = [chrome.name(self.rank, track, name) for track, name in enumerate(TRACKS)]
        for number, step in enumerate(self.steps):
            first = min((b.ready for b in step.buckets), default=step.backward_end)
            what = f"backward {number}, from its first bucket on"
            events.append(chrome.span(self.rank, 0, what, first, step.backward_end))
            for b in step.buckets:
                details = {"bytes": b.nbytes, "waited_us": round(1e6 * (b.start - b.ready), 1)}
                events.append(chrome.span(self.rank, 1, f"bucket {b.index}", b.start, b.end, details))
            if step.exposed:
                events.append(chrome.span(self.rank, 2, "exposed", step.backward_end, step.end))
        chrome.write(path, events)

    def plot(self, path: str | os.PathLike[str], step: int = -1) -> None:
        """Draw one step (the last by default) as a picture, in the format that the path's ending names.

        Args:
            path: of the file.
            step: its number, from the oldest; negative: from the latest.

        Raises:
            ImportError: matplotlib is not installed.
            IndexError: there is no such step.
        """
        from . import plots

        if not self.steps:
            raise IndexError(str(self))
        chosen = self.steps[step]
        zero = min(b.ready for b in chosen.buckets)
        figure, axes = plots.figure(9, 1.6 + 0.28 * len(chosen.buckets))
        ms = lambda t: 1e3 * (t - zero)
        for row, b in enumerate(chosen.buckets):
            axes.barh(row, ms(b.start) - ms(b.ready), left=ms(b.ready), color="#c8c8c8")
            axes.barh(row, ms(b.end) - ms(b.start), left=ms(b.start), color="#3b6fb6")
        axes.axvline(ms(chosen.backward_end), color="#c0392b", linestyle="--")
        axes.axvspan(ms(chosen.backward_end), max(ms(chosen.end), ms(chosen.backward_end)), color="#c0392b", alpha=0.12)
        axes.set_yticks(range(len(chosen.buckets)), [f"bucket {b.index}, {b.nbytes:,} B" for b in chosen.buckets])
        axes.invert_yaxis()
        axes.set_xlabel("ms since the first bucket was ready; grey: waits for its turn, red line: end of backward")
        hidden, exposed = 1e3 * chosen.hidden, 1e3 * chosen.exposed
        axes.set_title(f"rank {self.rank}: {hidden:.2f} ms of communication hidden, {exposed:.2f} ms exposed")
        plots.save(figure, Path(path))


TRACKS = ("backward", "communication", "exposed communication")


@dataclass
class _Open:
    """A backward pass that is going on."""

    graph: int
    works: list[tuple[int, int, Work]] = field(default_factory=list)


class Recorder:
    """Watches the buckets of one communicator."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._steps: collections.deque[Step] = collections.deque(maxlen=KEPT)
        self._open: _Open | None = None

    def timeline(self) -> Timeline:
        return Timeline(self.rank, list(self._steps))

    def add(self, index: int, buffer: torch.Tensor, work: Work) -> None:
        """A bucket is ready, and ``work`` averages it."""
        graph = torch._C._current_graph_task_id()
        if graph < 0:  # DDP's join() calls hooks outside of a backward pass
            return
        if self._open is None or self._open.graph != graph:
            self._open = _Open(graph)
            # Runs when all gradients are there, before DDP waits for its buckets: what is raised here comes out of
            # backward() with its type, which it would lose on its way through DDP.
            torch.autograd.Variable._execution_engine.queue_callback(self._close)
        nbytes = buffer._nnz() * buffer.element_size() if buffer.is_sparse else buffer.numel() * buffer.element_size()
        self._open.works.append((index, nbytes, work))

    def _close(self) -> None:
        backward_end = time.perf_counter()
        if self._open is None:
            return
        works, self._open = self._open.works, None
        for _, _, work in works:
            work.wait()
        buckets = [Bucket(index, nbytes, w.submitted, w.started, w.ended) for index, nbytes, w in works]
        self._steps.append(Step(buckets, backward_end, max(b.end for b in buckets)))
