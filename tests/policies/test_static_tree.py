"""Irregular static trees: the shape that was named, whatever places stay empty."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft import ConfigError
from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.policies.static_tree import TREES, StaticTreePolicy
from foredraft.protocols import DraftLimits
from foredraft.tree import DraftTree, Proposal
from tests.drafters.contexts import DEEP, context

VOCAB_SIZE = 5


def places(tree: DraftTree) -> list[tuple[int, ...]]:
    """The ranks on the way to each draft token."""
    return [_place(tree, node) for node in range(1, len(tree))]


def _place(tree: DraftTree, node: int) -> tuple[int, ...]:
    path = tree.path(node)
    return tuple(tree.children[a].index(b) for a, b in pairwise(path))


def grown(
    policy: StaticTreePolicy,
    *,
    limits: DraftLimits = DEEP,
    vocab_size: int = VOCAB_SIZE,
    **options: Any,
) -> DraftTree:
    model = TableModel.random(vocab_size, 2, seed=3)
    state = DraftModelDrafter(model, Proposal.DETERMINISTIC).start(100)
    return state.draft(
        context([1, 0], vocab_size=vocab_size, limits=limits, **options), policy.start()
    )


@st.composite
def tree_paths(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Random trees: each new node is the next child of a node drawn at random."""
    paths: list[tuple[int, ...]] = [()]
    for _ in range(draw(st.integers(1, 20))):
        parent = draw(st.sampled_from(paths))
        rank = sum(path[:-1] == parent for path in paths if path)
        if rank < VOCAB_SIZE:
            paths.append((*parent, rank))
    return paths[1:]


@given(tree_paths())
def test_any_shape_comes_out_as_it_was_named(paths: list[tuple[int, ...]]) -> None:
    policy = StaticTreePolicy(paths)
    tree = grown(policy)
    assert sorted(places(tree)) == sorted(paths)
    assert tree.depth == policy.depth
    assert policy.max_nodes == len(paths)
    assert policy.branches is (not tree.is_chain)


def test_eagle_1s_tree() -> None:
    """4 + 8 + 8 + 3 + 2 draft tokens (methods, section 4.3)."""
    tree = grown(StaticTreePolicy())
    assert tree.widths == (1, 4, 8, 8, 3, 2)
    assert set(places(tree)) == set(TREES["mc_sim_7b_63"])


@given(tree_paths())
def test_places_under_missing_children_stay_empty(paths: list[tuple[int, ...]]) -> None:
    """A vocabulary of two has no third child; the others keep their places."""
    tree = grown(StaticTreePolicy(paths), vocab_size=2)
    assert sorted(places(tree)) == sorted(path for path in paths if max(path) < 2)


@given(tree_paths(), st.integers(0, 4))
def test_an_end_token_empties_the_places_under_it(paths: list[tuple[int, ...]], end: int) -> None:
    tree, whole = (
        grown(StaticTreePolicy(paths), eos_token_ids=[end]),
        grown(StaticTreePolicy(paths)),
    )
    ended = [
        place
        for place, node in zip(places(whole), range(1, len(whole)), strict=True)
        if end in whole.path_tokens(node)[:-1]
    ]
    assert sorted(places(tree)) == sorted(set(paths) - set(ended))


def test_a_draft_with_less_room_is_cut_in_draw_order() -> None:
    tree = grown(StaticTreePolicy(), limits=DraftLimits(9, max_nodes=6))
    assert places(tree) == [(0,), (1,), (2,), (3,), (0, 0), (0, 1)]
    assert grown(StaticTreePolicy(), limits=DraftLimits(2)).widths == (1, 4, 8)
    assert grown(StaticTreePolicy(), limits=DraftLimits(9, chains_only=True)).widths == (1,) * 6


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        ("mc_sim_7b_64", "did you mean 'mc_sim_7b_63'"),
        ([], "at least one path"),
        ([[]], "at least one rank"),
        ([[0], [1, 0]], r"path \[1, 0\] .* needs path \[1\]"),
        ([[1]], r"path \[1\] .* needs path \[0\]"),
        ([[0], [0, 0], [0, 2]], r"needs path \[0, 1\]"),
        ([[-1]], "ranks of 0 or more"),
        ([[0], [0.5]], "ranks of 0 or more"),
        ([["a"], [0]], r"a list of paths such as .*, not \[\['a'\], \[0\]\]"),
        ([0, 1], "a list of paths such as"),
        (25, "a list of paths such as .* not 25"),
        ([[i] for i in range(512)], "the limit is 511"),
    ],
)
def test_what_is_no_tree(paths: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        StaticTreePolicy(paths)
