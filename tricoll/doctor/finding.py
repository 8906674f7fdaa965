"""What a probe of ``tricoll doctor`` found, and how probes are kept from each other's trouble."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# ok: as it should be, or a plain fact. absent: not here, which is all right unless it is wanted. problem: something
# will not work, or not well. failed: a probe or a self-test did.
STATES = ("ok", "absent", "problem", "failed")


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Args:
        name: what it is about; the same on all machines, but for what there may be several of (GPU 0, GPU 1).
        text: for people.
        state: one of STATES.
        hint: what to do, if anything.
        data: for programs, anything that JSON has.
    """

    name: str
    text: str
    state: str = "ok"
    hint: str = ""
    data: Any = None


Probe = Callable[[], Iterable[Finding]]


def collect(name: str, probe: Probe) -> list[Finding]:
    """What a probe finds. One that raises has found what it had up to then, and a line with the error."""
    found: list[Finding] = []
    try:
        found.extend(one for one in probe())
    except Exception as error:
        found.append(broken(name, error))
    return found


def broken(name: str, error: BaseException) -> Finding:
    """The line for what raised an error that nobody expected."""
    text = f"could not be found out: {type(error).__name__}: {error}"
    return Finding(name, text, "failed", "a mistake in tricoll doctor, or something unusual here: please report it")


def public(value: Any) -> Any:
    """What a report may show: texts, alone or inside of lists and dicts, without the place of the user's folder."""
    if isinstance(value, str):
        home = str(Path.home()).rstrip("/")
        return value.replace(home + "/", "~/") if home else value
    if isinstance(value, dict):
        return {name: public(each) for name, each in value.items()}
    return [public(each) for each in value] if isinstance(value, list | tuple) else value


def read(path: Path) -> str:
    """The text of a file of /proc or /sys, stripped; empty if there is none or it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
