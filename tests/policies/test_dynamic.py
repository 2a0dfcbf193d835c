"""The dynamic tree keeps the most likely paths; the budget is spent where it is worth most."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft import ConfigError, Engine
from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.policies.dynamic import BudgetPolicy, DynamicTreePolicy
from foredraft.protocols import (
    Candidates,
    DraftLimits,
    Frontier,
    Policy,
    PolicyState,
    SelectingState,
)
from foredraft.tree import DraftTree, Proposal
from tests.drafters.contexts import DEEP, context

VOCAB_SIZE = 5
ROOT = [1, 2]
few = st.integers(1, 6)


def grown(
    model: TableModel,
    policy: Policy | PolicyState,
    *,
    limits: DraftLimits = DEEP,
    kind: Proposal = Proposal.DETERMINISTIC,
    **options: Any,
) -> DraftTree:
    state = policy.start() if isinstance(policy, Policy) else policy
    seen = context(ROOT, vocab_size=model.vocab_size, limits=limits, **options)
    return DraftModelDrafter(model, kind).start(100).draft(seen, state)


def score(model: TableModel, path: Sequence[int]) -> float:
    """log q of these draft tokens after the text."""
    text, total = list(ROOT), 0.0
    for token in path:
        total += float(model.logits_after(text).float().log_softmax(-1)[token])
        text.append(token)
    return total


def all_paths(depth: int) -> Iterator[tuple[int, ...]]:
    for length in range(1, depth + 1):
        yield from (
            tuple(p)
            for p in torch.cartesian_prod(*[torch.arange(VOCAB_SIZE)] * length)
            .reshape(-1, length)
            .tolist()
        )


# --- the dynamic tree -------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2, 7, 30, 60])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_wide_dynamic_tree_is_the_most_likely_paths_of_all(depth: int, nodes: int) -> None:
    """With room to expand everything, it is the best of all V + V^2 + .. paths."""
    model = TableModel.random(VOCAB_SIZE, 2, seed=3)
    tree = grown(model, DynamicTreePolicy(depth, nodes, top_k=VOCAB_SIZE**2))
    best = sorted(all_paths(depth), key=lambda path: -score(model, path))[:nodes]
    assert {tree.path_tokens(node) for node in range(1, len(tree))} == set(best)


@given(depth=few, nodes=st.integers(1, 40), top_k=few, seed=st.integers(0, 5))
def test_a_dynamic_tree_is_a_tree_within_its_numbers(
    depth: int, nodes: int, top_k: int, seed: int
) -> None:
    """Case 8: any depth, width and budget, also below one another."""
    model = TableModel.random(VOCAB_SIZE, 2, seed=seed)
    tree = grown(model, DynamicTreePolicy(depth, nodes, top_k))
    assert tree.depth <= depth
    width = min(top_k, VOCAB_SIZE)
    grown_at_least = min(nodes, width if depth == 1 else width + width)
    assert grown_at_least <= tree.num_drafted <= nodes
    assert max(map(len, tree.children)) <= top_k


@settings(max_examples=200)
@given(depth=few, nodes=st.integers(2, 15), top_k=few, seed=st.integers(0, 50))
def test_leaving_out_hopeless_nodes_changes_nothing(
    depth: int, nodes: int, top_k: int, seed: int
) -> None:
    """The tree of a policy that expands the best of every level to the end, as the paper does."""
    model = TableModel.random(VOCAB_SIZE, 2, sharpness=8.0, seed=seed)
    policy = DynamicTreePolicy(depth, nodes, top_k)
    saving = grown(model, policy)
    thorough = grown(model, Thorough(policy))
    assert (saving.token_ids, saving.parents) == (thorough.token_ids, thorough.parents)
    assert sum(saving.draft_rows) <= sum(thorough.draft_rows)


class Thorough:
    """Section 4.4 of the method: every level expands its best `top_k` nodes, whatever they are worth."""

    def __init__(self, policy: DynamicTreePolicy) -> None:
        self._policy, self._inner = policy, policy.start()
        self.max_candidates = policy.max_candidates

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        return self._inner.plan(limits, text)

    def grow(self, frontier: Frontier) -> Sequence[int]:
        scores, top_k = frontier.scores(), self._policy.top_k
        assert scores is not None
        best = sorted(range(len(scores)), key=lambda i: -scores[i])[:top_k]
        return [top_k * (i in best) for i in range(len(scores))]

    def select(self, candidates: Candidates, max_nodes: int) -> Sequence[int]:
        return self._inner.select(candidates, max_nodes)

    def observe(self, outcome: Any) -> None:
        raise AssertionError("growth is not a round")


def test_leaving_out_hopeless_nodes_saves_rows() -> None:
    """Else the comparison above would be of equals."""
    model = TableModel.random(VOCAB_SIZE, 2, sharpness=4.0, seed=1)
    policy = DynamicTreePolicy(depth=5, nodes=6, top_k=4)
    rows = [sum(grown(model, p).draft_rows) for p in (policy, Thorough(policy))]
    assert rows[0] < rows[1]


def test_ties_go_to_what_was_created_first() -> None:
    """Equal probabilities everywhere: level by level, in order."""
    model = TableModel(torch.full((4, 4), 0.25).double())
    tree = grown(model, DynamicTreePolicy(depth=3, nodes=6, top_k=4))
    assert tree.parents == (-1, 0, 0, 0, 0, 1, 1)


def test_a_certain_chain_goes_as_deep_as_it_may() -> None:
    """A child as likely as its parent (q rounds to 1) never comes without it."""
    table = torch.full((VOCAB_SIZE, VOCAB_SIZE), 1e-12).double()
    for token in range(VOCAB_SIZE):
        table[token, (token + 1) % VOCAB_SIZE] = 1.0
    tree = grown(TableModel(table), DynamicTreePolicy(depth=4, nodes=4, top_k=2))
    assert (tree.is_chain, tree.depth) == (True, 4)


def test_the_rounds_limits_hold() -> None:
    model, policy = TableModel.random(VOCAB_SIZE, 2, seed=2), DynamicTreePolicy(4, 20, 3)
    assert grown(model, policy, limits=DraftLimits(2)).depth == 2
    assert grown(model, policy, limits=DraftLimits(9, max_nodes=5)).num_drafted == 5
    chain = grown(model, policy, limits=DraftLimits(9, chains_only=True))
    assert (chain.is_chain, chain.depth) == (True, 4)
    assert grown(model, policy, limits=DraftLimits(9, max_nodes=0)).num_drafted == 0


def test_nothing_follows_an_end_token() -> None:
    model = TableModel.random(VOCAB_SIZE, 2, seed=2)
    tree = grown(model, DynamicTreePolicy(4, 30, 4), eos_token_ids=[2])
    ends = [node for node in range(1, len(tree)) if tree.token_ids[node] == 2]
    assert ends
    assert not any(tree.children[node] for node in ends)


def test_states_are_of_one_request_and_start_every_draft_anew() -> None:
    model, policy = TableModel.random(VOCAB_SIZE, 2, seed=4), DynamicTreePolicy(3, 8, 3)
    used = policy.start()
    assert isinstance(used, SelectingState)
    first = grown(model, used)
    assert grown(model, used) == first == grown(model, policy)


def test_a_budget_by_laws_needs_laws() -> None:
    """Copies have scores alone."""
    engine = Engine(TableModel.random(VOCAB_SIZE), NgramDrafter(1, 2), BudgetPolicy())
    with pytest.raises(ConfigError, match=r"reads the drafter's laws, .* use reads_laws=False"):
        engine.generate([1, 2, 1, 2, 1])


@pytest.mark.parametrize(
    ("policy", "arguments", "said"),
    [
        (DynamicTreePolicy, {"depth": 0}, "depth=0"),
        (DynamicTreePolicy, {"nodes": 0}, "nodes=0"),
        (DynamicTreePolicy, {"top_k": 2.5}, "top_k=2.5"),
        (DynamicTreePolicy, {"nodes": 512}, "the limit is 511"),
        (DynamicTreePolicy, {"depth": 10, "top_k": 50}, "22550 candidates"),
        (BudgetPolicy, {"nodes": 0}, "nodes=0"),
        (BudgetPolicy, {"depth": -1}, "depth=-1"),
        (BudgetPolicy, {"max_children": 0}, "max_children=0"),
        (BudgetPolicy, {"nodes": 600}, "the limit is 511"),
    ],
)
def test_numbers_out_of_range(policy: Any, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        policy(**arguments)


# --- the budget -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(Proposal), ids=lambda kind: kind.value)
@given(nodes=st.integers(1, 30), depth=few, children=few, reads=st.booleans())
def test_a_budget_is_kept(
    kind: Proposal, nodes: int, depth: int, children: int, reads: bool
) -> None:
    model = TableModel.random(VOCAB_SIZE, 2, seed=1)
    policy = BudgetPolicy(nodes, depth, max_children=children, reads_laws=reads)
    tree = grown(model, policy, kind=kind, temperature=1.0)
    assert 1 <= tree.num_drafted <= nodes
    assert tree.depth <= depth
    assert max(map(len, tree.children)) <= children


def test_a_sure_drafter_gets_depth_and_an_unsure_one_width() -> None:
    sure = torch.full((VOCAB_SIZE, VOCAB_SIZE), 0.005).double()
    sure.fill_diagonal_(0.98)
    unsure = torch.full((VOCAB_SIZE, VOCAB_SIZE), 0.2).double()
    trees = [grown(TableModel(t), BudgetPolicy(12, 8)) for t in (sure, unsure)]
    assert trees[0].depth == 8
    assert trees[1].depth < 4
    assert len(trees[0].children[0]) < len(trees[1].children[0]) == VOCAB_SIZE


def test_likelier_nodes_get_no_fewer_children() -> None:
    model = TableModel.random(VOCAB_SIZE, 2, seed=6)
    tree = grown(model, BudgetPolicy(20, 3, reads_laws=False))
    scores = {n: score(model, tree.path_tokens(n)) for n in range(len(tree))}
    for depth in range(1, tree.depth):
        level = [n for n in range(len(tree)) if tree.depths[n] == depth]
        level.sort(key=lambda n: scores[n])
        counts = [len(tree.children[n]) for n in level]
        assert all(a <= b for a, b in pairwise(counts)), counts


@pytest.mark.parametrize("reads", [True, False])
def test_a_level_that_gets_nothing_costs_no_pass(reads: bool) -> None:
    """All paths of the second level are worth less than 1 / nodes."""
    model = TableModel(torch.full((9, 9), 1 / 9).double())
    tree = grown(model, BudgetPolicy(4, 5, reads_laws=reads))
    assert tree.depth == len(tree.draft_rows) == 1


def test_a_budget_of_chains() -> None:
    model = TableModel.random(VOCAB_SIZE, 2, seed=1)
    limits = DraftLimits(9, chains_only=True)
    tree = grown(model, BudgetPolicy(30, 6), limits=limits)
    assert tree.is_chain
    assert tree.depth > 1
    assert score(model, tree.path_tokens(tree.num_drafted - 1)) >= math.log(1 / 30)
