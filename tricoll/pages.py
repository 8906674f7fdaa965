"""Pages of the documentation that commands write a part of: what stands between two lines."""

from __future__ import annotations

from pathlib import Path


def around(path: Path, begin: str, end: str) -> tuple[str, str]:
    """What a page has up to the line ``begin`` and from the line ``end`` on, both included.

    Raises ValueError, saying what to add, if it does not have them.
    """
    text = path.read_text() if path.exists() else ""
    before, opened, rest = text.partition(begin + "\n")
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise ValueError(f"{path} must have these two lines; the tables go between them:\n{begin}\n{end}")
    return before + opened, closed + after
