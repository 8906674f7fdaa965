"""The double binary tree, for every rank of every world up to 130."""

import pytest

from tricoll.topology import NOBODY, double_binary_tree


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
