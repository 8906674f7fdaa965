"""Ask a collectives backend what it does: ``tricoll verify --backend gloo``.

Each probe (:mod:`tricoll.verify.probes`) runs in processes of its own, with a time limit, so that a crash or a hang of
what is tested is a result. Any backend of ``torch.distributed`` can be asked.
"""

from __future__ import annotations

from collections.abc import Callable

from .backends import Unavailable, check_available
from .outcome import Verdict
from .probe import Probe
from .probes import PROBES
from .report import LEGEND, as_json, defects, markdown, table
from .session import Session

__all__ = [
    "run",
    "chosen",
    "check_available",
    "Session",
    "Unavailable",
    "table",
    "markdown",
    "as_json",
    "defects",
    "LEGEND",
    "PROBES",
]


def run(
    session: Session, only: str = "", tell: Callable[[str], None] = lambda name: None
) -> list[tuple[Probe, Verdict]]:
    """All probes whose name contains ``only``, one after another, each in new processes; ``tell`` is told which."""
    found = []
    for probe in chosen(only):
        tell(probe.name)
        try:
            found.append((probe, probe.run(session)))
        finally:
            session.close()
    return found


def chosen(only: str) -> list[Probe]:
    """The probes whose name contains this."""
    return [probe for probe in PROBES if only.lower() in probe.name.lower()]
