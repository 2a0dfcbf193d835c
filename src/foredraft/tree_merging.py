"""Two draft trees as one: what hybrid drafting verifies in one pass."""

from __future__ import annotations

from dataclasses import dataclass

from foredraft.tree import DraftTree, TreeBuilder


@dataclass(frozen=True, slots=True)
class Merged:
    """Two trees as one.

    Attributes:
        tree: every path of tokens of either.
        of_first: [N1] for each node of the first tree, the merged node that stands for it.
        of_second: [N2] for each node of the second.
    """

    tree: DraftTree
    of_first: tuple[int, ...]
    of_second: tuple[int, ...]


def merge(first: DraftTree, second: DraftTree) -> Merged:
    """One tree of two that start from the same root: equal tokens after equal paths are one node.

    The first tree's siblings come first, and its proposals and laws count where both have a node. Siblings
    of one tree that carry the same token become one node too, so only exact verification takes the result.
    Draft passes of both are counted.

    Raises:
        ValueError: the trees start from different roots, or from several.
    """
    roots = (first.token_ids[0], first.open_roots), (second.token_ids[0], second.open_roots)
    if roots[0] != roots[1] or first.num_roots > 1 or second.num_roots > 1:
        raise ValueError("two trees are merged only if they start from the same root, and it alone")
    merging = _Merging((first, second))
    return Merged(merging.builder.build(), *map(tuple, merging.places))


class _Merging:
    """The merged tree as it grows, level by level, and the place of each node in it."""

    def __init__(self, trees: tuple[DraftTree, DraftTree]) -> None:
        self._trees = trees
        self.builder = TreeBuilder(trees[0].token_ids[0], open_roots=trees[0].open_roots)
        self.places: list[list[int]] = [[0] * len(tree) for tree in trees]
        level = [
            [(0, 0), (1, 0)]
        ]  # for each merged node of a level, whom it stands for: (tree, node)
        while level:
            level = [group for nodes in level for group in self._add_children(nodes)]
        for i in (1, 0):
            for node, law in trees[i].laws.items():
                self.builder.set_law(self.places[i][node], law)
        for tree in trees:
            for rows in tree.draft_rows:
                self.builder.count_pass(rows)

    def _add_children(self, nodes: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        """Add the children of the merged node that stands for these; for each, whom it stands for."""
        first_tree, first_node = nodes[0]
        parent = self.places[first_tree][first_node]
        merged: dict[int, int] = {}  # token -> node
        stands_for: dict[int, list[tuple[int, int]]] = {}
        for i, node in nodes:
            tree = self._trees[i]
            for child in tree.children[node]:
                token = tree.token_ids[child]
                if token not in merged:
                    merged[token] = self.builder.add(parent, token, tree.proposals[child])
                self.places[i][child] = merged[token]
                stands_for.setdefault(merged[token], []).append((i, child))
        return list(stands_for.values())
