"""A merged tree holds every path of both, once, and says where each node went."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft.tree import DraftTree, Proposal, TreeBuilder
from foredraft.tree_merging import merge

ROOT = 7
EMPTY = DraftTree.root_only(ROOT)


@st.composite
def trees(draw: st.DrawFn, repeats: bool = False) -> DraftTree:
    """Trees of few tokens, so that two of them overlap; siblings differ unless they may repeat."""
    builder = TreeBuilder(ROOT)
    parent = 0
    for _ in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(parent, len(builder) - 1))
        token = draw(st.integers(0, 3))
        siblings = {
            builder.token_ids[n] for n in range(len(builder)) if builder.parents[n] == parent
        }
        if repeats or token not in siblings:
            builder.add(parent, token, draw(st.sampled_from(Proposal)))
    return builder.build()


def paths_of(tree: DraftTree) -> set[tuple[int, ...]]:
    return {tree.path_tokens(node) for node in range(len(tree))}


def children_of(tree: DraftTree, path: tuple[int, ...]) -> list[int]:
    """Tokens of the children after these tokens, in order; none where the tree has no such path."""
    nodes = tree.follow(path)
    if len(nodes) <= len(path):
        return []
    return [tree.token_ids[child] for child in tree.children[nodes[-1]]]


@given(trees(repeats=True), trees(repeats=True))
def test_the_paths_are_those_of_both(first: DraftTree, second: DraftTree) -> None:
    """Each once; `DraftTree` itself refuses another order than level by level."""
    tree = merge(first, second).tree
    assert paths_of(tree) == paths_of(first) | paths_of(second)
    assert len(paths_of(tree)) == len(tree)


@given(trees(repeats=True), trees(repeats=True))
def test_maps_keep_paths(first: DraftTree, second: DraftTree) -> None:
    merged = merge(first, second)
    for tree, places in ((first, merged.of_first), (second, merged.of_second)):
        assert len(places) == len(tree)
        for node, place in enumerate(places):
            assert merged.tree.path_tokens(place) == tree.path_tokens(node)


@given(trees(), trees())
def test_the_first_trees_siblings_come_first(first: DraftTree, second: DraftTree) -> None:
    tree = merge(first, second).tree
    for path in paths_of(tree):
        own, other = children_of(first, path), children_of(second, path)
        assert children_of(tree, path) == [*own, *(t for t in other if t not in own)]


@given(trees(), trees())
def test_the_first_trees_proposals_count(first: DraftTree, second: DraftTree) -> None:
    merged = merge(first, second)
    for tree, places in ((second, merged.of_second), (first, merged.of_first)):
        for node in range(1, len(tree)):
            if tree is first or places[node] not in merged.of_first:
                assert merged.tree.proposals[places[node]] == tree.proposals[node]


@given(trees())
def test_an_empty_tree_adds_nothing(tree: DraftTree) -> None:
    nodes = tuple(range(len(tree)))
    after, before = merge(tree, EMPTY), merge(EMPTY, tree)
    assert after.tree == before.tree == tree
    assert after.of_first == before.of_second == nodes
    assert after.of_second == before.of_first == (0,)


@given(trees(), trees())
def test_merging_twice_is_merging_once(first: DraftTree, second: DraftTree) -> None:
    tree = merge(first, second).tree
    assert merge(tree, second).tree == merge(tree, first).tree == merge(tree, tree).tree == tree


def test_passes_and_laws_go_along() -> None:
    law, other = torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.75])
    builder = TreeBuilder(ROOT)
    node = builder.add(0, 1, Proposal.SAMPLED)
    builder.set_law(0, law)
    model = replace(builder.build(), draft_rows=(2, 1))
    copies = replace(model, laws={0: other, node: other}, draft_rows=(4,))
    merged = merge(model, copies).tree
    assert merged.draft_rows == (2, 1, 4)
    assert merged.laws == {0: law, node: other}


def test_other_roots_are_refused() -> None:
    with pytest.raises(ValueError, match="the same root"):
        merge(EMPTY, DraftTree.root_only(ROOT + 1))
