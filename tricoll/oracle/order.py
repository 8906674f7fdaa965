"""Who is added to whom, and what travels on the way: a function an algorithm.

Shares are what each rank gives of one chunk. The result is the chunk's total where it is complete, at its owner: not
finished, and not rounded. :class:`Steps` says what happens to the numbers; nothing else is known of them here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch import Tensor

from .steps import Steps


def ring(steps: Steps, shares: list[Tensor], owner: int) -> Tensor:
    """x[owner + 1] + x[owner + 2] + ... + x[owner] (mod n); every partial result travels."""
    return _chain(steps, [steps.enter(share) for share in shares], owner)


def direct(steps: Steps, shares: list[Tensor], owner: int) -> Tensor:
    """x[0] + x[1] + ... + x[n - 1], whoever the owner is; every share travels, the owner's too."""
    return functools.reduce(steps.combine, [steps.travel(steps.enter(share)) for share in shares])


def hierarchical(steps: Steps, shares: list[Tensor], owner: int) -> Tensor:
    """Direct within each node, then a ring over the nodes that ends at the owner's."""
    size = steps.node_size
    nodes = [direct(steps, shares[first : first + size], owner) for first in range(0, steps.n, size)]
    return _chain(steps, nodes, owner // size)


def _chain(steps: Steps, terms: list[Tensor], last: int) -> Tensor:
    order = terms[last + 1 :] + terms[: last + 1]
    return functools.reduce(lambda partial, own: steps.combine(steps.travel(partial), own), order)


ORDERS: dict[str, Callable[[Steps, list[Tensor], int], Tensor]] = {
    "ring": ring,
    "two_shot": direct,
    "one_shot": direct,
    "multimem": direct,
    "hierarchical": hierarchical,
}


def total(steps: Steps, algorithm: str, shares: list[Tensor], owner: int) -> Tensor:
    """Of a chunk that belongs to rank ``owner``, by any algorithm but a tree. One rank alone sends nothing.

    Raises:
        ValueError: nothing says in which order this algorithm adds.
    """
    if algorithm not in ORDERS:
        raise ValueError(f"ORDERS in oracle/order.py has no {algorithm!r}, only {tuple(ORDERS)}")
    return steps.enter(shares[0]) if steps.n == 1 else ORDERS[algorithm](steps, shares, owner)


def tree(steps: Steps, shares: list[Tensor]) -> Tensor:
    """The total at the root. Shares are by their places in the tree, the root's at place 0.

    A rank adds its own share, what its first child sends and what its second child sends; what goes up travels. With
    ``bit`` the lowest set bit of a place, the parent is at ``(place ^ bit) | (bit << 1)``, or at ``place ^ bit`` if
    there is no such place.
    """
    children: dict[int, list[int]] = {place: [] for place in range(steps.n)}
    for place in range(1, steps.n):
        bit = place & -place
        parent = (place ^ bit) | (bit << 1)
        children[parent if parent < steps.n else place ^ bit].append(place)

    def up(place: int) -> Tensor:
        below = [steps.travel(up(child)) for child in children[place]]  # by number: the lower child is the first
        return functools.reduce(steps.combine, below, steps.enter(shares[place]))

    return up(0)


def second_tree(shares: list[Tensor]) -> list[Tensor]:
    """Shares by their places in the second of two trees, from those by rank.

    It is the first with the ranks in the opposite order if their number is even, and one further if it is odd.
    """
    return shares[::-1] if len(shares) % 2 == 0 else shares[1:] + shares[:1]
