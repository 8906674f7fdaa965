"""Trees: the double binary one, for every rank of every world up to 130, and those from a root."""

import itertools

import pytest

from tricoll.topology import NOBODY, double_binary_tree, rooted


@pytest.mark.parametrize("tree", [0, 1])
def test_it_is_a_tree(tree):
    """One root; parents and children agree; every rank is reached; no deeper than log2 of the ranks."""
    for n in range(2, 131):
        nodes = [double_binary_tree(rank, n)[tree] for rank in range(n)]
        (root,) = [rank for rank, node in enumerate(nodes) if node.parent == NOBODY]
        assert (nodes[root].first, nodes[root].second != NOBODY) == (NOBODY, True)
        depth, level = 0, [root]
        reached = {root}
        while level:
            below = []
            for rank in level:
                for side, child in enumerate((nodes[rank].first, nodes[rank].second)):
                    if child != NOBODY:
                        assert (nodes[child].parent, nodes[child].side) == (rank, side)
                        below.append(child)
            assert not reached & set(below)
            reached |= set(below)
            depth, level = depth + bool(below), below
        assert reached == set(range(n)) and depth <= (n - 1).bit_length()


def test_nobody_is_busy_in_both():
    """No rank is an inner node of both trees for an even number of ranks, and exactly one for an odd one."""
    for n in range(2, 131):
        inner = [[node.first != NOBODY or node.second != NOBODY for node in double_binary_tree(r, n)] for r in range(n)]
        assert [all(both) for both in inner].count(True) == n % 2


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("algorithm", ["ring", "tree", "one_shot"])
def test_a_tree_from_any_root(algorithm, collective):
    """Parents and children agree, and every rank is reached: in a chain of all, in log2 n steps, or in one."""
    deepest = {"ring": lambda n: n - 1, "tree": lambda n: (n - 1).bit_length(), "one_shot": lambda n: 1}[algorithm]
    for n, shift in itertools.product(range(2, 18), (0, 1, -1)):
        root = shift % n
        places = [rooted(collective, algorithm, rank, n, root) for rank in range(n)]
        below = {rank: list(children[:count]) for rank, (_, count, *children) in enumerate(places)}
        assert all(places[child][0] == rank for rank, children in below.items() for child in children)
        assert all(len(place) >= 4 for place in places), "kernels look at two children at least"
        levels = [[root]]
        while following := [child for rank in levels[-1] for child in below[rank]]:
            levels.append(following)
        reached = [rank for level in levels for rank in level]
        assert places[root][0] == NOBODY and sorted(reached) == list(range(n))
        assert len(levels) - 1 <= deepest(n) and (algorithm == "tree" or len(levels) - 1 == deepest(n))
        if algorithm == "ring":  # a broadcast goes to the right, and a reduction comes from the left
            step = 1 if collective == "broadcast" else -1
            assert reached == [(root + step * k) % n for k in range(n)]
