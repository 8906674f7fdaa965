"""How the ranks of a fabric meet, in a ``torch.distributed`` store: everybody says something and hears the others."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from tricoll.errors import CollectiveTimeout


def once(store: Any, rank: int, size: int, timeout: float) -> str:
    """A name that only this group has, the same on all of its ranks.

    The store may have served a group of the same name before, with other ranks in it, and still hold what they wrote.
    So rank 0 says whom it has met, by what each has drawn for this group alone: who finds itself there knows that rank
    0's own is new, too.
    """
    mine = uuid.uuid4().hex
    store.set(f"met/{rank}", mine)
    read = lambda key: store.get(key).decode() if store.check([key]) else ""
    deadline = time.monotonic() + timeout
    missing = list(range(1, size)) if rank == 0 else [0]
    while missing:
        if rank == 0:
            store.set("seen", " ".join([mine, *(read(f"met/{r}") or "-" for r in range(1, size))]))
            missing = [r for r in missing if read(f"heard/{r}") != mine]
        else:
            seen = read("seen").split()
            if len(seen) == size and seen[rank] == mine:
                store.set(f"heard/{rank}", seen[0])
                return seen[0]
        if missing and time.monotonic() > deadline:
            raise CollectiveTimeout(
                f"rank {rank}: ranks {missing} of {size} did not come to make the group within {timeout:g} s; "
                "timeout of init_process_group or new_group sets how long to wait"
            )
        time.sleep(0.002 if missing else 0)
    return mine


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
