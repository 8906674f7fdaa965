"""How the ranks of a fabric meet, in a ``torch.distributed`` store: everybody says something and hears the others."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tricoll.errors import CollectiveTimeout


def exchange(store: Any, rank: int, world_size: int, stage: str, mine: Any, timeout: float) -> list[Any]:
    """What each rank has given as ``mine``, in rank order. ``stage``: a name that is used once in this store.

    Raises CollectiveTimeout with the names of those missing after ``timeout`` seconds.
    """
    store.set(f"{stage}/{rank}", json.dumps(mine))
    deadline = time.monotonic() + timeout
    missing = list(range(world_size))
    while missing:
        missing = [r for r in missing if not store.check([f"{stage}/{r}"])]
        if missing and time.monotonic() > deadline:
            raise CollectiveTimeout(
                f"rank {rank}: ranks {missing} of {world_size} did not join within {timeout:g} s. "
                "Check that they have started; tricoll.init(timeout=...) sets how long to wait."
            )
        if missing:
            time.sleep(0.002)
    return [json.loads(store.get(f"{stage}/{r}")) for r in range(world_size)]


def check_same(agreed: Sequence[Mapping[str, Any]]) -> None:
    """ValueError unless all ranks have given the same settings."""
    if differing := [name for name in agreed[0] if any(a.get(name) != agreed[0][name] for a in agreed)]:
        each = "; ".join(f"{name} is {[a.get(name) for a in agreed]}" for name in differing)
        raise ValueError(
            f"the ranks do not have the same settings: {each} (of rank 0, 1, ...). Give tricoll.init the same "
            "arguments, and set the same TRICOLL_ environment variables, on all of them"
        )
