"""EAGLE-2's dynamic tree against a brute-force reading of it, over toy laws."""

from __future__ import annotations

import itertools
import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.eagle_reference import best_tokens, eagle2_tree, static_tree, tree_paths

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
