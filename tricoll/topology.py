"""Who is whose neighbour: the double binary tree, and trees with a given root."""

from __future__ import annotations

from dataclasses import astuple, dataclass

NOBODY = -1


@dataclass(frozen=True)
class Node:
    """A rank's place in a tree: ranks, or NOBODY. ``side`` says which child of its parent it is: 0 first, 1 second."""

    parent: int
    side: int
    first: int
    second: int
    depth: int


def binary_tree(rank: int, world_size: int) -> Node:
    """The place of ``rank`` in a tree over 0 .. world_size - 1 in which every odd rank is a leaf.

    With ``bit`` the lowest set bit of the rank, the parent is ``(rank ^ bit) | (bit << 1)``, or ``rank ^ bit`` if there
    is no such rank; the children are ``bit / 2`` below and above, the latter nearer if that is out of range. Rank 0 is
    the root and has one child. Depth: at most ceil(log2(world_size)). Source: Sanders, Speck, Traeff, "Two-tree
    algorithms for full bandwidth broadcast, reduction and scan", 2009, in the form that NCCL uses.

    Args:
        world_size: ranks.
    """
    half = (rank & -rank if rank else 1 << (world_size - 1).bit_length()) >> 1
    first = rank - half if rank and half else NOBODY
    while half and rank + half >= world_size:
        half >>= 1
    depth, above = 0, rank
    while above:
        above = _parent(above, world_size)
        depth += 1
    parent = _parent(rank, world_size) if rank else NOBODY
    return Node(parent, int(rank > parent != NOBODY), first, rank + half if half else NOBODY, depth)


def _parent(rank: int, world_size: int) -> int:
    bit = rank & -rank
    parent = (rank ^ bit) | (bit << 1)
    return parent if parent < world_size else rank ^ bit


def double_binary_tree(rank: int, world_size: int) -> tuple[Node, Node]:
    """The places of ``rank`` in two trees, so that no rank (for an odd world size, one) is an inner node of both.

    The second is the first's mirror image for an even world size, and the first shifted by one for an odd one.

    Args:
        world_size: ranks.
    """

    def elsewhere(node: Node) -> Node:
        move = lambda r: NOBODY if r == NOBODY else world_size - 1 - r if world_size % 2 == 0 else (r + 1) % world_size
        return Node(move(node.parent), node.side, move(node.first), move(node.second), node.depth)

    place = world_size - 1 - rank if world_size % 2 == 0 else (rank - 1) % world_size
    return binary_tree(rank, world_size), elsewhere(binary_tree(place, world_size))


def double_tree_table(rank: int, world_size: int) -> tuple[int, ...]:
    """:func:`double_binary_tree` as kernels/tree.py looks it up: five numbers a tree, and a bound of the height."""
    nodes = double_binary_tree(rank, world_size)
    return (*(v for node in nodes for v in astuple(node)), (world_size - 1).bit_length())


def rooted(collective: str, algorithm: str, rank: int, world_size: int, root: int) -> tuple[int, ...]:
    """Parent, number of children, and children (at least two, filled up with 0) of a rank: see kernels/rooted.py.

    "ring" is a chain: a broadcast goes from the root to the right, a reduction begins right of the root and ends there.
    "tree" is a binary tree, "one_shot" a star. Ranks are counted from the root.
    """
    place, last = (rank - root) % world_size, world_size - 1
    if algorithm == "ring" and collective == "broadcast":
        parent, children = place - 1 if place else NOBODY, [place + 1] if place < last else []
    elif algorithm == "ring":
        parent, children = (
            (place + 1) % world_size if place else NOBODY,
            [] if place == 1 else [(place - 1) % world_size],
        )
    elif algorithm == "tree":
        node = binary_tree(place, world_size)
        parent, children = node.parent, [child for child in (node.first, node.second) if child != NOBODY]
    else:
        parent, children = 0 if place else NOBODY, [] if place else list(range(1, world_size))
    number = lambda p: (p + root) % world_size
    filled = [number(child) for child in children] + [0] * (2 - len(children))
    return (NOBODY if parent == NOBODY else number(parent), len(children), *filled)
