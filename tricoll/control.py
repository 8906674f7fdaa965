"""What ranks tell each other outside of kernels: that they have entered a call, which one, and why it failed."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .calls import match
from .errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, PeerFailure
from .fabric.base import Fabric
from .kernels import link

ENTERED = (0, 1)  # board slots: a rank may post the next call while others still read this one, but not two ahead
FAILED = 2
MEETING = 3
LONGEST = 4000  # bytes of a post
GRACE = 1.0  # seconds in which ranks that gave up hear from each other


@dataclass(frozen=True)
class Failure:
    """A status block: what a channel saw when it gave up. See ``kernels/link.py``."""

    channel: int
    code: int
    peer: int
    message: int
    wanted: int
    seen: int
    waits_for: int
    cause: int

    def __str__(self) -> str:
        what = "data" if self.waits_for else "a free slot"
        return (
            f"channel {self.channel} waited for {what} from rank {self.peer} (message {self.message}, "
            f"wanted {self.wanted:#x}, saw {self.seen:#x})"
        )


class Control:
    """One rank's side of the conversation."""

    def __init__(self, fabric: Fabric, timeout: float, check: bool) -> None:
        self.fabric, self.timeout, self.check = fabric, timeout, check
        # Where launches return at once, a call must not talk to the others unless it is to be checked.
        self._tells = check or getattr(fabric, "streams", None) is None
        self.sequence = 0
        self._reading, self._closed = threading.Lock(), False
        self.meetings = 0
        self.ahead = False  # whether this rank has refused its last call, and not seen the others enter it

    def enter(self, call: str, detail: Any = None, refused: bool = False) -> None:
        """Say that this rank begins its next call. With ``check``, return when all ranks have begun the same one.

        ``detail`` is for :func:`tricoll.calls.match`. A rank that refuses the call says so and does not wait.
        """
        if self.ahead:
            # Its board would otherwise show the call after next to a rank that still looks for this one.
            self._gather(ENTERED[self.sequence % 2], self.sequence, f"call {self.sequence}")
        self.sequence += 1
        self.fabric.sequence = self.sequence
        self.ahead = self.check and refused and self.fabric.world_size > 1
        if self.fabric.world_size == 1 or not self._tells:
            return  # nobody to tell, or not now
        slot = ENTERED[self.sequence % 2]
        text = call + "\n" + json.dumps(detail)
        self.fabric.post(slot, self.sequence, text if len(text) < LONGEST else call + "\nnull")
        if self.check and not refused:
            posts = self._gather(slot, self.sequence, f"call {self.sequence}, {call}")
            calls, details = zip(*(post.rsplit("\n", 1) for post in posts), strict=True)
            if any(other != call for other in calls):
                raise CollectiveMismatch(self._differences(list(calls)))
            if wrong := match([json.loads(d) for d in details]):
                raise CollectiveMismatch(f"rank {self.fabric.rank}, call {self.sequence}, {call}: {wrong}")

    def late(self) -> list[int]:
        """The ranks that have not begun the call that this one is in. May be called from any thread, at any time."""
        with self._reading:
            sequence = self.sequence
            slot = ENTERED[sequence % 2]
            others = [] if self._closed else self._others()
            return [r for r in others if self.fabric.peek(r, slot)[0] < sequence]

    def close(self) -> None:
        """Before the board is taken away: return when nobody looks at it any more."""
        with self._reading:
            self._closed = True

    def meet(self) -> None:
        """Return when all ranks are here."""
        self.meetings += 1
        self.fabric.post(MEETING, self.meetings, "")
        self._gather(MEETING, self.meetings, f"a meeting of all ranks after call {self.sequence}")

    def explain(self, call: str, failures: Sequence[Failure], pair: bool = False) -> CollectiveError:
        """The error for a call in which this rank's kernel gave up, after hearing what the others saw.

        ``pair``: nobody but the other rank of a send or recv has anything to say.
        """
        mine = min(failures, key=lambda f: f.code == link.ABORTED)
        if pair:
            return self._explain_pair(call, mine)
        # The last failure that this rank outlived: a mismatch, after which the next call works.
        outlived = self.fabric.peek(self.fabric.rank, FAILED)[0]
        self.fabric.post(FAILED, self.sequence, json.dumps(asdict(mine)))
        silent = self._others()
        self.fabric.pause(lambda: not self._still(silent, FAILED, self.sequence), GRACE)
        heard = {r: self.fabric.peek(r, FAILED) for r in range(self.fabric.world_size)}
        seen = {r: Failure(**json.loads(text)) for r, (sequence, text) in heard.items() if sequence >= self.sequence}
        entered = [self.fabric.peek(r, ENTERED[self.sequence % 2]) for r in range(self.fabric.world_size)]
        entered = [(sequence, text.rsplit("\n", 1)[0]) for sequence, text in entered]
        late = [r for r, (sequence, _) in enumerate(entered) if sequence < self.sequence]
        calls = [text for sequence, text in entered if sequence == self.sequence]
        # Fingerprints meet only where the calls use the same links; the others are found here, after the timeout.
        if any(f.code == link.MISMATCH for f in seen.values()) or (len(seen) == len(calls) and len(set(calls)) > 1):
            return CollectiveMismatch(self._differences([text for _, text in entered]))
        # Whoever gave up in a call before, in which this rank had less to do, has told why, and may have left since.
        before = {r: Failure(**json.loads(heard[r][1])) for r in late if heard[r][0] > outlived}
        seen |= {r: f for r, f in before.items() if f.code != link.MISMATCH}
        reasons = "; ".join(f"rank {r}: {f}" for r, f in seen.items() if f.code != link.ABORTED)
        what = f"call {self.sequence}, {call}"
        silent = sorted(set(range(self.fabric.world_size)) - set(seen))
        if mine.code == link.ABORTED and not silent:
            first = (mine.cause & 0xFFFF) - 1
            return CollectiveTimeout(f"rank {self.fabric.rank}, {what}: rank {first} gave up waiting first ({reasons})")
        # Of the silent, some may have finished the call, where they only send, and have nothing to say.
        missing = [r for r in silent if r in late or r in self.fabric.dead()]
        return self._absence(missing or silent, what, reasons)

    def _explain_pair(self, call: str, mine: Failure) -> CollectiveError:
        what = f"after call {self.sequence}, {call}"
        if mine.code == link.MISMATCH:
            return CollectiveMismatch(
                f"rank {self.fabric.rank}, {what}: what rank {mine.peer} has sent is of another dtype or number of "
                f"elements, or belongs to another call ({mine})"
            )
        return self._absence([mine.peer], what, str(mine))

    def nobody(self, what: str) -> CollectiveError:
        """The error for a receive from any rank to which nothing has come."""
        return self._absence(self.fabric.dead() or self._others(), what, "")

    def _others(self) -> list[int]:
        return [r for r in range(self.fabric.world_size) if r != self.fabric.rank]

    def _still(self, missing: list[int], slot: int, sequence: int) -> list[int]:
        # Which of the missing are still missing. Looks at one of them a poll.
        while missing and self.fabric.peek(missing[-1], slot)[0] >= sequence:
            missing.pop()
        return missing

    def _gather(self, slot: int, sequence: int, what: str) -> list[str]:
        missing = self._others()
        if not self.fabric.pause(lambda: not self._still(missing, slot, sequence), self.timeout):
            absent = [r for r in missing if self.fabric.peek(r, slot)[0] < sequence]
            raise self._absence(sorted(absent), what, "")
        return [self.fabric.peek(r, slot)[1] for r in range(self.fabric.world_size)]

    def _absence(self, absent: list[int], what: str, reasons: str) -> CollectiveError:
        rank, dead = self.fabric.rank, [r for r in self.fabric.dead() if r in absent]
        detail = f" ({reasons})" if reasons else ""
        if dead:
            return PeerFailure(
                f"rank {rank}, {what}: ranks {dead} are gone: their processes have ended or left.{detail}"
            )
        if absent:
            return CollectiveTimeout(
                f"rank {rank}, {what}: ranks {absent} did not take part within the timeout of {self.timeout:g} s. They "
                f"are late or stuck; tricoll.init(timeout=...) sets how long to wait.{detail}"
            )
        return CollectiveTimeout(
            f"rank {rank}, {what}: all ranks took part, and none could go on within the timeout.{detail}"
        )

    def _differences(self, calls: list[str]) -> str:
        ranks: dict[str, list[int]] = {}
        for r, call in enumerate(calls):
            ranks.setdefault(call or "nothing", []).append(r)
        sides = "; ".join(f"{'rank' if len(rs) == 1 else 'ranks'} {rs}: {call}" for call, rs in ranks.items())
        return f"rank {self.fabric.rank}, call {self.sequence}: the ranks make different calls. {sides}"
