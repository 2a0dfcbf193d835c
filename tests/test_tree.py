"""Draft trees keep their invariants however they are grown; k-configs describe trees that fit."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from operator import mul

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft.config import MAX_TREE_NODES
from foredraft.errors import ConfigError
from foredraft.policies.fixed import FixedPolicy
from foredraft.tree import (
    NO_PARENT,
    DraftTree,
    Proposal,
    TreeBuilder,
    check_k_config,
    parse_k_config,
)


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """Any tree of up to 20 nodes, in level order."""
    builder = TreeBuilder(draw(st.integers(0, 50)))
    parent = 0
    for _ in range(draw(st.integers(0, 19))):
        parent = draw(st.integers(parent, len(builder) - 1))
        builder.add(parent, draw(st.integers(0, 50)), draw(st.sampled_from(Proposal)))
    return builder.build()


# --- the tree ---------------------------------------------------------------------------------------


@given(trees())
def test_levels_follow_one_another(tree: DraftTree) -> None:
    """So a prefix of whole levels is closed under ancestors."""
    assert list(tree.depths) == sorted(tree.depths)
    assert tree.depth == max(tree.depths)


@given(trees())
def test_a_path_leads_from_the_root_through_parents(tree: DraftTree) -> None:
    for node in range(len(tree)):
        path = tree.path(node)
        assert (path[0], path[-1]) == (0, node)
        assert len(path) == tree.depths[node] + 1
        assert [tree.parents[n] for n in path] == [NO_PARENT, *path[:-1]]


@given(trees())
def test_tokens_of_a_path_leave_the_root_out(tree: DraftTree) -> None:
    for node in range(len(tree)):
        assert tree.path_tokens(node) == tuple(tree.token_ids[n] for n in tree.path(node)[1:])


@given(trees())
def test_following_tokens_leads_along_their_path(tree: DraftTree) -> None:
    tree = replace(tree, token_ids=tuple(range(len(tree))))  # siblings differ
    for node in range(len(tree)):
        tokens = tree.path_tokens(node)
        assert tree.follow(tokens) == tree.path(node)
        assert tree.follow([*tokens, -1]) == tree.follow(tokens)


@given(trees(), st.data())
def test_a_part_keeps_the_paths_it_names(tree: DraftTree, data: st.DataObject) -> None:
    ends = data.draw(st.sets(st.integers(0, len(tree) - 1)))
    nodes = sorted({n for end in ends for n in tree.path(end)} - {0})
    part = tree.part(nodes)
    assert [part.path_tokens(i) for i in range(1, len(part))] == [
        tree.path_tokens(n) for n in nodes
    ]
    assert part.proposals[1:] == tuple(tree.proposals[n] for n in nodes)


@given(trees())
def test_every_node_but_the_root_is_one_child(tree: DraftTree) -> None:
    children = [child for siblings in tree.children for child in siblings]
    assert sorted(children) == list(range(1, len(tree)))
    assert all(tree.parents[c] == n for n, siblings in enumerate(tree.children) for c in siblings)


@given(trees())
def test_siblings_stand_in_the_order_in_which_they_were_drawn(tree: DraftTree) -> None:
    assert all(list(siblings) == sorted(siblings) for siblings in tree.children)


@given(trees())
def test_a_chain_is_a_tree_without_siblings(tree: DraftTree) -> None:
    assert tree.is_chain == all(len(siblings) <= 1 for siblings in tree.children)


@given(trees())
def test_the_root_is_not_drafted(tree: DraftTree) -> None:
    assert tree.num_drafted == len(tree) - 1


def test_a_root_alone_is_an_empty_draft() -> None:
    tree = DraftTree.root_only(7)
    assert (tree.token_ids, tree.num_drafted, tree.depth, tree.is_chain) == ((7,), 0, 0, True)


def test_a_built_tree_has_what_was_added() -> None:
    builder = TreeBuilder(9)
    left, right = (builder.add(0, token, Proposal.SAMPLED) for token in (4, 5))
    leaf = builder.add(right, 6, Proposal.DETERMINISTIC)
    law = torch.full((10,), 0.1, dtype=torch.float64)
    builder.set_law(0, law)
    tree = builder.build()
    assert tree.token_ids == (9, 4, 5, 6)
    assert tree.children == ((left, right), (), (leaf,), ())
    assert tree.proposals[1:] == (Proposal.SAMPLED, Proposal.SAMPLED, Proposal.DETERMINISTIC)
    assert tree.laws[0] is law
    assert builder.path_tokens(leaf) == list(tree.path_tokens(leaf)) == [5, 6]


@pytest.mark.parametrize(
    "parents",
    [(), (0,), (NO_PARENT, 1), (NO_PARENT, NO_PARENT), (NO_PARENT, 0, 1, 0)],
    ids=["nothing", "no-root", "own-parent", "two-roots", "levels-mixed"],
)
def test_what_is_no_tree_in_level_order_is_a_bug(parents: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        DraftTree((1,) * len(parents), parents, (Proposal.COUPLED,) * len(parents))


# --- k-configs --------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_k_config_is_read_as_it_is_written(widths: list[int]) -> None:
    assert parse_k_config(",".join(map(str, widths))) == tuple(widths)


def test_spaces_are_no_matter() -> None:
    assert parse_k_config(" 4, 2,2 ") == (4, 2, 2)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_a_k_config_is_refused_exactly_when_its_tree_is_too_large(widths: list[int]) -> None:
    num_nodes = 1 + sum(accumulate(widths, mul))
    if num_nodes <= MAX_TREE_NODES:
        assert check_k_config(widths) == tuple(widths)
        assert FixedPolicy(widths).max_nodes == num_nodes - 1
    else:
        with pytest.raises(ConfigError):
            check_k_config(widths)


def test_the_largest_chain_fits() -> None:
    policy = FixedPolicy.chain(MAX_TREE_NODES - 1)
    assert policy.max_nodes == MAX_TREE_NODES - 1
    assert not policy.branches


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        ("4,0,2", "every width must be 1 or more"),
        ("-1", "every width must be 1 or more"),
        ("a", "write it like 4,2,2,1"),
        ("", "write it like 4,2,2,1"),
        ("4,,2", "write it like 4,2,2,1"),
        ("4;2", "write it like 4,2,2,1"),
        ("1.5", "write it like 4,2,2,1"),
        ("600", "use smaller widths or fewer depths"),
        ("9,9,9,9", "use smaller widths or fewer depths"),
        (",".join(["1"] * MAX_TREE_NODES), "use smaller widths or fewer depths"),
    ],
)
def test_an_impossible_tree_is_named_with_the_way_out(text: str, way_out: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FixedPolicy(text)
    assert repr(text) in str(caught.value)
    assert way_out in str(caught.value)


def test_widths_given_as_numbers_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="every width must be 1 or more"):
        FixedPolicy(())


def test_a_huge_width_is_refused_without_counting_it_out() -> None:
    with pytest.raises(ConfigError, match="more than"):
        check_k_config([10**9] * 1000)
