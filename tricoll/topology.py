"""Who is whose neighbour: the double binary tree."""

from __future__ import annotations

from dataclasses import dataclass

NOBODY = -1


@dataclass(frozen=True)
class Node:
    """A rank's place in a tree: ranks, or NOBODY. ``side`` says which child of its parent it is: 0 first, 1 second."""

    parent: int
    side: int
    first: int
    second: int


def binary_tree(rank: int, world_size: int) -> Node:
    """The place of ``rank`` in a tree over 0 .. world_size - 1 in which every odd rank is a leaf.

    With ``bit`` the lowest set bit of the rank, the parent is ``(rank ^ bit) | (bit << 1)``, or ``rank ^ bit`` if there
    is no such rank; the children are ``bit / 2`` below and above, the latter nearer if that is out of range. Rank 0 is
    the root and has one child. Depth: at most ceil(log2(world_size)). Source: Sanders, Speck, Traeff, "Two-tree
    algorithms for full bandwidth broadcast, reduction and scan", 2009, in the form that NCCL uses.
    """
    bit = rank & -rank if rank else 1 << (world_size - 1).bit_length()
    parent, side = NOBODY, 0
    if rank:
        parent = (rank ^ bit) | (bit << 1)
        if parent >= world_size:
            parent = rank ^ bit
        side = 0 if rank < parent else 1
    half = bit >> 1
    first = rank - half if rank and half else NOBODY
    while half and rank + half >= world_size:
        half >>= 1
    return Node(parent, side, first, rank + half if half else NOBODY)


def double_binary_tree(rank: int, world_size: int) -> tuple[Node, Node]:
    """The places of ``rank`` in two trees, so that no rank (for an odd world size, one) is an inner node of both.

    The second is the first's mirror image for an even world size, and the first shifted by one for an odd one.
    """

    def elsewhere(node: Node) -> Node:
        move = lambda r: NOBODY if r == NOBODY else world_size - 1 - r if world_size % 2 == 0 else (r + 1) % world_size
        return Node(move(node.parent), node.side, move(node.first), move(node.second))

    place = world_size - 1 - rank if world_size % 2 == 0 else (rank - 1) % world_size
    return binary_tree(rank, world_size), elsewhere(binary_tree(place, world_size))
