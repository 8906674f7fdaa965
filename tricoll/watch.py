"""What becomes of calls that were only put on a stream: a thread looks, and says which rank is late or was wrong.

A kernel that gives up says so in its status block, in device memory, and nothing clears it: so it need not be read
after each kernel, and a graph that is replayed is watched like everything else. The thread reads the blocks every
:data:`TICK` seconds, beside the streams; a call counts as verified once the device has come past it and the blocks
read after that were clean.

On the board every rank says how many collectives it has begun and in which it is, every :data:`SAY` seconds at most. A
rank that finds a failure says what it saw, hears what the others saw, and gives the error to all calls that are not
verified, and to the next one. Then it has its own kernels give up, and they have their neighbours'.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import OrderedDict
from dataclasses import asdict
from typing import Any

import torch

from .completion import Pair, failures
from .control import FAILED, GRACE, LONGEST, Control, Failure
from .enqueue import Mark, StreamQueue
from .errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, PeerFailure
from .fabric.base import Streams
from .kernels import link

log = logging.getLogger("tricoll")

PROGRESS = 4  # the board slot in which a rank says where it is
TICK = 0.1  # seconds between two looks
SAY = 0.5  # seconds between two posts
SETTLE = 0.02  # seconds in which a kernel that has begun to fill its status block is certainly through
LATE = 10.0  # seconds after which a call that has not finished is worth a word, if the timeout is not shorter
CALLS = 1024  # whose names are remembered


class Watch:
    """One rank's completion (:class:`tricoll.completion.Completion`) where launches return at once."""

    def __init__(self, control: Control, streams: Streams, queue: StreamQueue, status: torch.Tensor) -> None:
        self._control, self._streams, self._queue = control, streams, queue
        self._rank, self._n = control.fabric.rank, control.fabric.world_size
        self._blocks: dict[Pair, torch.Tensor] = {None: status}
        self._names: OrderedDict[int, str] = OrderedDict()  # of calls, by fingerprint
        self._begun = (0, "")  # the last collective: its number and name
        self._posted, self._said = self._begun, 0.0
        self._reading = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned: set[int] = set()
        self.failure: CollectiveError | None = None
        queue.late, queue.look, queue.sequence = self.late, self.look, lambda: control.sequence

    # What a communicator does with it.

    def status(self, pair: Pair) -> torch.Tensor:
        if pair not in self._blocks:
            if self._streams.capturing():
                raise RuntimeError(
                    f"the first {pair[0]} with rank {pair[1]} is made while a CUDA graph is captured: make it once "  # type: ignore[index]
                    "before the capture"
                )
            self._blocks[pair] = torch.zeros_like(self._blocks[None])
        return self._blocks[pair]

    def launched(self, what: str, fingerprint: int, status: torch.Tensor, pair: Pair) -> CollectiveError | None:
        self._names[fingerprint] = what
        self._names.move_to_end(fingerprint)
        if len(self._names) > CALLS:
            self._names.popitem(last=False)
        if pair is None:
            self._begun = (self._control.sequence, what)
        return None

    def used(self, tensors: list[torch.Tensor]) -> None:
        self._streams.keep(tensors)
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._serve, daemon=True, name=f"tricoll watch {self._rank}")
            self._thread.start()

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            with self._queue.lock:
                given_up = any(mark.failure for mark in self._queue.pending)
            if not given_up:
                with contextlib.suppress(Exception):
                    self.look()  # an error that nobody has asked for is at least logged

    # What a call asks.

    def late(self) -> list[int]:
        """The ranks that have not begun the collective that this one is in."""
        begun = self._begun[0]
        return [r for r in range(self._n) if r != self._rank and self._progress(r)[0] < begun]

    def look(self) -> None:
        """Read the status blocks, and sort calls into those that went well, those that failed, and those pending."""
        with self._reading:
            if self.failure is not None:
                return
            with self._queue.lock:
                pending = list(self._queue.pending)
            done = [mark for mark in pending if self._queue.done(mark)]
            found = self._read()
            if not found:
                for mark in done:
                    mark.verified = True
                with self._queue.lock:
                    self._queue.pending = [mark for mark in self._queue.pending if not mark.verified]
                return
            time.sleep(SETTLE)
            pair, seen = next(iter((self._read() or found).items()))
            alike = [mark for mark in pending if not mark.verified and (mark.lane is None) == (pair is None)]
            self._fail(self._explain(seen, pair, alike))
        self._queue.stop()
        log.error("%s", self.failure)

    def _fail(self, failure: CollectiveError) -> None:
        self.failure = failure
        with self._queue.lock:
            for mark in self._queue.pending:
                mark.failure = mark.failure or failure
            self._queue.pending.clear()

    # The thread.

    def _serve(self) -> None:
        while not self._closed.wait(TICK):
            try:
                self.look()
            except Exception as error:  # nothing can be found out any more
                if not self._closed.is_set() and self.failure is None:
                    failure = CollectiveError(
                        f"rank {self._rank}: it could not be seen what calls have become: {error}"
                    )
                    failure.__cause__ = error
                    self._fail(failure)
            if self.failure is not None:
                return
            with contextlib.suppress(Exception):  # the store may end with another rank's process
                if time.monotonic() > self._said + SAY:
                    self._say_where()
                self._say_who_is_late()

    def _say_where(self) -> None:
        if self._begun != self._posted and self._n > 1:
            self._posted, self._said = self._begun, time.monotonic()
            self._control.fabric.post(PROGRESS, self._begun[0], self._begun[1])

    def _progress(self, rank: int) -> tuple[int, str]:
        return self._begun if rank == self._rank else self._control.fabric.peek(rank, PROGRESS)

    def _say_who_is_late(self) -> None:
        with self._queue.lock:
            oldest = self._queue.pending[0] if self._queue.pending else None
        after = min(LATE, self._control.timeout / 3)
        if oldest is None or id(oldest) in self._warned or time.perf_counter() - oldest.submitted < after:
            return
        self._warned = {id(oldest)}
        behind = {r: self._progress(r) for r in range(self._n) if self._progress(r)[0] < oldest.sequence}
        who = "; ".join(f"rank {r} is in its call {seq or 'none'} {text}" for r, (seq, text) in behind.items())
        log.warning(
            "%s, call %d, has waited for %.1f s. %s",
            oldest.what,
            oldest.sequence,
            time.perf_counter() - oldest.submitted,
            f"Late: {who}" if who else "All ranks have enqueued it: a GPU has other work before it, or is slow.",
        )

    def _read(self) -> dict[Pair, list[Failure]]:
        blocks = dict(self._blocks)
        states = self._streams.read(list(blocks.values()))
        return {pair: found for pair, state in zip(blocks, states, strict=True) if (found := failures(state))}

    # What it says.

    def _explain(self, seen: list[Failure], pair: Pair, pending: list[Mark]) -> CollectiveError:
        mine = min(seen, key=lambda f: f.code == link.ABORTED)
        # Most messages have the fingerprint of their call on them. Else it is the oldest that is not known to be over.
        name = self._name(mine.wanted) if mine.waits_for else None
        named = [mark for mark in pending if name and mark.what.endswith(name)]
        mark = next(iter(named or pending), None)
        sequence = mark.sequence if mark is not None else self._begun[0]
        what = name or (mark.what.partition(", ")[2] if mark is not None else "a call in a graph")
        if pair is not None:
            return self._control.explain(what, seen, pair=True)
        fabric = self._control.fabric
        self._say_where()
        post = {"call": what[: LONGEST // 4], "sequence": sequence, "failure": asdict(mine)}
        fabric.post(FAILED, 1, json.dumps(post))
        others = [r for r in range(self._n) if r != self._rank]
        fabric.pause(lambda: all(fabric.peek(r, FAILED)[0] for r in others), GRACE)
        heard = {r: json.loads(text) for r in others if (text := fabric.peek(r, FAILED)[1])} | {self._rank: post}
        reports = {r: Failure(**told["failure"]) for r, told in sorted(heard.items())}
        call = f"call {sequence}, {what}"
        if any(f.code == link.MISMATCH for f in reports.values()):
            return CollectiveMismatch(self._differences(call, heard, mine))
        reasons = "; ".join(f"rank {r}: {f}" for r, f in reports.items() if f.code != link.ABORTED)
        behind = [r for r in others if self._progress(r)[0] < sequence]
        gone = [r for r in fabric.dead() if r not in heard]  # whoever has told why may have left since
        if gone:
            return PeerFailure(
                f"rank {self._rank}, {call}: ranks {gone} are gone: their processes have ended or left. ({reasons})"
            )
        if behind:
            return CollectiveTimeout(
                f"rank {self._rank}, {call}: ranks {behind} did not take part within {self._control.timeout:g} s. They "
                f"are late or stuck; tricoll.init(timeout=...) sets how long to wait. ({reasons})"
            )
        return CollectiveTimeout(
            f"rank {self._rank}, {call}: all ranks have enqueued it, and their kernels could not go on within "
            f"{self._control.timeout:g} s: a GPU was busy with other work for so long, or replays a graph that the "
            f"others do not. tricoll.init(timeout=...) sets how long to wait. ({reasons})"
        )

    def _name(self, flag: int) -> str | None:
        """The call whose fingerprint is in a flag: 24 bits of it, or 16 where the flag is inside the data."""
        exact = self._names.get(flag & 0xFFFFFF)
        alike = (name for fingerprint, name in reversed(self._names.items()) if not (fingerprint ^ flag) & 0xFFFF)
        return exact or next(alike, None)

    def _differences(self, call: str, heard: dict[int, Any], mine: Failure) -> str:
        sides: dict[str, list[int]] = {}
        for r in range(self._n):
            told = heard.get(r)
            text = f"call {told['sequence']}, {told['call']}" if told else "call {}, {}".format(*self._progress(r))
            sides.setdefault(text, []).append(r)
        named = "; ".join(f"{'rank' if len(rs) == 1 else 'ranks'} {rs}: {text}" for text, rs in sides.items())
        other = self._name(mine.seen) or "another call"
        return (
            f"rank {self._rank}, {call}: the ranks make different calls, and the communicator cannot be used any more. "
            f"{named}. This rank was sent data of {other} by rank {mine.peer} ({mine})"
        )
