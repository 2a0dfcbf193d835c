"""EAGLE-2's dynamic tree against a brute-force reading of it, over toy laws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.policies.dynamic import DynamicTreePolicy
from foredraft.tree import DraftTree
from tests.drafters.contexts import context
from tests.eagle_reference import (
    Step,
    best_tokens,
    eagle2_tree,
    static_tree,
    tree_paths,
)

VOCAB_SIZE = 5


def toy_law(path: tuple[int, ...], seed: int = 0, vocab_size: int = VOCAB_SIZE) -> Tensor:
    """A log-law, float32 [V], of its own after every path."""
    generator = torch.Generator().manual_seed(hash((seed, path)) % 2**31)
    return (2 * torch.randn(vocab_size, generator=generator)).log_softmax(-1)


def certain_law(path: tuple[int, ...]) -> Tensor:
    """Token 1 with probability 1, as low precision rounds it: every depth scores the same."""
    law = torch.full((VOCAB_SIZE,), -20.0)
    law[1] = 0.0
    return law


# --- the reading itself -----------------------------------------------------------------------------


@given(st.integers(0, 20), st.integers(1, VOCAB_SIZE), st.integers(1, 4), st.integers(1, 40))
def test_no_node_comes_without_its_parent(seed: int, top_k: int, levels: int, nodes: int) -> None:
    tokens, parents = eagle2_tree(lambda path: toy_law(path, seed), top_k, levels, nodes)
    paths = tree_paths(tokens, parents)
    created = top_k + (levels - 1) * top_k**2
    assert len(set(paths)) == len(paths) == min(nodes, created)
    assert all(path[:-1] in paths for path in paths if len(path) > 1)
    assert all(parent < node for node, parent in enumerate(parents))


@given(st.integers(0, 20), st.integers(1, VOCAB_SIZE + VOCAB_SIZE**2))
def test_a_tree_wide_enough_holds_the_likeliest_paths(seed: int, nodes: int) -> None:
    """With every token a child and two levels nothing is cut before the rerank."""

    def score(path: tuple[int, ...]) -> float:
        laws = [toy_law(path[:depth], seed) for depth in range(len(path))]
        return sum(float(law[token]) for law, token in zip(laws, path, strict=True))

    step = lambda path: toy_law(path, seed)  # noqa: E731
    everything = [path for n in (1, 2) for path in itertools.product(range(VOCAB_SIZE), repeat=n)]
    best = sorted(everything, key=score, reverse=True)[:nodes]
    assert set(tree_paths(*eagle2_tree(step, VOCAB_SIZE, 2, nodes))) == set(best)


def test_one_child_each_is_a_chain() -> None:
    tokens, parents = eagle2_tree(toy_law, 1, 6, 6)
    assert parents == [-1, 0, 1, 2, 3, 4]
    assert (tokens, parents) == static_tree(toy_law, [1] * 6)


def test_ties_keep_what_was_created_first() -> None:
    """A child as likely as its parent: 3 nodes are the first three of the certain chain."""
    for nodes in range(1, 6):
        paths = tree_paths(*eagle2_tree(certain_law, 3, 5, nodes))
        assert paths == [(1,) * depth for depth in range(1, nodes + 1)]


def test_best_tokens_leaves_out_what_is_impossible() -> None:
    law = torch.tensor([-1.0, -math.inf, -0.5, -1.0, -math.inf])
    assert best_tokens(law, 4) == [2, 0, 3]


# --- the policy over the laws of a table ------------------------------------------------------------


def shape(tree: DraftTree) -> set[tuple[int, ...]]:
    """A tree without its order."""
    paths = tree_paths(tree.token_ids[1:], [parent - 1 for parent in tree.parents[1:]])
    assert len(set(paths)) == len(paths)
    return set(paths)


def table_tree(model: TableModel, depth: int, nodes: int, top_k: int) -> DraftTree:
    """What the policy selects of a drafter that has these laws."""
    seen = context([0, 1], vocab_size=model.vocab_size)
    policy = DynamicTreePolicy(depth=depth, nodes=nodes, top_k=top_k)
    return DraftModelDrafter(model).start(100).draft(seen, policy.start())


def table_step(model: TableModel) -> Step:
    return lambda path: model.logits_after([0, 1, *path]).log_softmax(-1)


@given(st.integers(0, 50), st.integers(1, VOCAB_SIZE), st.integers(1, 4), st.integers(1, 40))
def test_the_policy_selects_the_papers_tree(seed: int, top_k: int, levels: int, nodes: int) -> None:
    """Levels that it does not expand since they cannot matter change nothing."""
    model = TableModel.random(VOCAB_SIZE, 2, seed=seed, sharpness=2.0)
    expected = eagle2_tree(table_step(model), top_k, levels, nodes)
    assert shape(table_tree(model, levels, nodes, top_k)) == set(tree_paths(*expected))


@given(st.permutations([0.5, 0.25, 0.125, 0.125, 0.0]), st.integers(1, 4), st.integers(1, 20))
def test_ties_cost_no_likelihood_and_no_parent(law: list[float], levels: int, nodes: int) -> None:
    """Equal paths and impossible tokens: one of equals may stand for another, never without its parent."""
    model = TableModel(torch.tensor([law] * VOCAB_SIZE, dtype=torch.float64))

    def scores(paths: Iterable[tuple[int, ...]]) -> list[float]:
        return sorted(math.prod(law[token] for token in path) for path in paths)

    tree = table_tree(model, levels, nodes, 3)
    expected = tree_paths(*eagle2_tree(table_step(model), 3, levels, nodes))
    assert scores(shape(tree)) == scores(expected)


@pytest.mark.parametrize("nodes", range(1, 6))
def test_the_policy_keeps_what_was_created_first(nodes: int) -> None:
    """A certain chain, whose every node is as likely as its parent."""
    model = TableModel(torch.tensor([[0.0, 1.0, 0.0]] * 3, dtype=torch.float64))
    assert shape(table_tree(model, 5, nodes, 3)) == {(1,) * n for n in range(1, nodes + 1)}
