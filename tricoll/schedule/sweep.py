"""An all-reduce on more and more ranks, without noise and with it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..cost import Profile, Topology
from .algorithms import simulate
from .network import Fabric, Noise

WORLDS = tuple(1 << i for i in range(3, 15))  # 8 to 16,384 ranks
SCALED = ("ring", "tree", "hierarchical")  # the algorithms for many nodes


@dataclass(frozen=True)
class Point:
    """A simulated all-reduce: seconds until the last of so many ranks has the result, with noise or without."""

    algorithm: str
    ranks: int
    noisy: bool
    seconds: float


def sweep(
    nbytes: float,
    node_size: int,
    profile: Profile,
    noise: Noise,
    worlds: Sequence[int] = WORLDS,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> list[Point]:
    """The algorithms of SCALED on each of ``worlds``, without and with noise. ``progress(what, share of all work)``.

    Raises ValueError if there is noise with more stragglers than ranks, or ranks do not fill nodes.
    """
    runs = [(name, n, noisy) for n in worlds for name in SCALED for noisy in (False, True)]
    runs = [run for run in runs if run[0] != "hierarchical" or (run[1] > node_size > 1)]
    # Work is messages in the order of n^2 for a ring; what a run has in steps of NumPy is small beside it.
    weights = {"ring": lambda n: n * n, "hierarchical": lambda n: n * n / node_size, "tree": lambda n: n}
    work = sum(weights[name](n) for name, n, _ in runs)
    points: list[Point] = []
    before = 0.0
    for name, n, noisy in runs:
        fabric = Fabric(
            Topology(n, node_size),
            profile.link("signal", "mapped"),
            profile.link("signal", "inter"),
            noise=noise if noisy else Noise(),
        )
        weight = weights[name](n)
        tell = functools.partial(_share, progress, f"{name}, {n:,} ranks", before / work, weight / work)
        points.append(Point(name, n, noisy, simulate(name, nbytes, fabric, profile.piece, tell).seconds))
        before += weight
    return points


def _share(
    progress: Callable[[str, float], None], what: str, before: float, weight: float, done: int, steps: int
) -> None:
    progress(what, before + weight * done / max(1, steps))
