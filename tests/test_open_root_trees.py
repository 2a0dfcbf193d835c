"""Trees with open roots keep the invariants of trees, and their roots are neither text nor draft."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft.tree import NO_PARENT, DraftTree, Proposal, TreeBuilder

TOKENS = st.integers(0, 50)


@st.composite
def builders(draw: st.DrawFn) -> TreeBuilder:
    """One to four open roots, and up to 20 nodes under them."""
    roots = draw(st.lists(TOKENS, min_size=1, max_size=4, unique=True))
    builder = TreeBuilder(*roots, open_roots=True)
    parent = 0
    for _ in range(draw(st.integers(0, 20))):
        parent = draw(st.integers(parent, len(builder) - 1))
        builder.add(parent, draw(TOKENS), draw(st.sampled_from(Proposal)))
    return builder


trees = builders().map(TreeBuilder.build)


@given(trees)
def test_levels_follow_one_another(tree: DraftTree) -> None:
    assert list(tree.depths) == sorted(tree.depths)
    assert tree.depth == max(tree.depths)
    assert tree.depths.count(0) == tree.num_roots == tree.parents.count(NO_PARENT)


@given(trees)
def test_roots_come_first_and_are_not_drafted(tree: DraftTree) -> None:
    assert set(tree.parents[: tree.num_roots]) == {NO_PARENT}
    assert NO_PARENT not in tree.parents[tree.num_roots :]
    assert tree.num_drafted == len(tree) - tree.num_roots


@given(trees)
def test_a_path_leads_from_one_of_the_roots(tree: DraftTree) -> None:
    for node in range(len(tree)):
        path = tree.path(node)
        assert path[0] < tree.num_roots
        assert path[-1] == node
        assert len(path) == tree.depths[node] + 1
        assert [tree.parents[n] for n in path] == [NO_PARENT, *path[:-1]]


@given(trees)
def test_tokens_of_a_path_include_the_root(tree: DraftTree) -> None:
    for node in range(len(tree)):
        assert tree.path_tokens(node) == tuple(tree.token_ids[n] for n in tree.path(node))


@given(builders())
def test_the_builder_names_the_same_tokens(builder: TreeBuilder) -> None:
    tree = builder.build()
    assert [tuple(builder.path_tokens(n)) for n in range(len(tree))] == [
        tree.path_tokens(n) for n in range(len(tree))
    ]
    assert builder.num_drafted == tree.num_drafted


@given(trees)
def test_widths_count_the_nodes_of_each_level(tree: DraftTree) -> None:
    assert tree.widths[0] == tree.num_roots
    assert sum(tree.widths) == len(tree)
    assert all(tree.widths)
    assert tree.widths == tuple(tree.depths.count(d) for d in range(tree.depth + 1))


@given(trees)
def test_every_node_but_the_roots_is_one_child(tree: DraftTree) -> None:
    children = [child for siblings in tree.children for child in siblings]
    assert sorted(children) == list(range(tree.num_roots, len(tree)))
    assert all(list(siblings) == sorted(siblings) for siblings in tree.children)
    assert all(tree.parents[c] == n for n, siblings in enumerate(tree.children) for c in siblings)


@given(trees)
def test_a_chain_has_one_root_and_no_siblings(tree: DraftTree) -> None:
    one_each = all(len(siblings) <= 1 for siblings in tree.children)
    assert tree.is_chain == (tree.num_roots == 1 and one_each)


@given(builders())
def test_ranks_count_siblings_from_0(builder: TreeBuilder) -> None:
    tree = builder.build()
    assert builder.ranks[: tree.num_roots] == list(range(tree.num_roots))
    for siblings in tree.children:
        assert [builder.ranks[child] for child in siblings] == list(range(len(siblings)))


@given(builders(), st.data())
def test_keeping_some_nodes_leaves_all_roots(builder: TreeBuilder, data: st.DataObject) -> None:
    before, roots = builder.build(), builder.num_roots
    for node in range(len(before)):
        builder.set_law(node, torch.full((2,), float(node)))
    ranks, kept = list(builder.ranks), set(range(roots))
    for node in range(roots, len(before)):
        if before.parents[node] in kept and data.draw(st.booleans()):
            kept.add(node)
    builder.keep(sorted(kept)[roots:])
    after, origins = builder.build(), builder.origins
    assert origins == sorted(kept)
    assert after.open_roots
    assert after.num_roots == roots
    for node, origin in enumerate(origins):
        assert after.path_tokens(node) == before.path_tokens(origin)
        assert tuple(origins[n] for n in after.path(node)) == before.path(origin)
        assert after.proposals[node] == before.proposals[origin]
        assert float(after.laws[node][0]) == origin
        assert builder.ranks[node] == ranks[origin]
    assert len(after.laws) == len(after)


@given(trees)
def test_a_root_that_is_text_is_another_tree(tree: DraftTree) -> None:
    if tree.num_roots == 1:
        text = DraftTree(tree.token_ids, tree.parents, tree.proposals)
        assert text != tree
        assert text.widths == tree.widths
        assert all(text.path_tokens(n) == tree.path_tokens(n)[1:] for n in range(len(tree)))


@pytest.mark.parametrize(
    ("parents", "open_roots"),
    [
        ((), True),
        ((NO_PARENT, NO_PARENT), False),
        ((NO_PARENT, 0, NO_PARENT), True),
        ((NO_PARENT, 1), True),
        ((0,), True),
    ],
    ids=["nothing", "two-texts", "root-after-a-draft", "own-parent", "no-root"],
)
def test_what_is_no_tree_in_level_order_is_a_bug(
    parents: tuple[int, ...], open_roots: bool
) -> None:
    with pytest.raises(AssertionError):
        DraftTree(
            tuple(range(len(parents))),
            parents,
            (Proposal.SAMPLED,) * len(parents),
            open_roots=open_roots,
        )
