"""Multi-candidate speculative decoding: the target's law, and greedy decoding at temperature 0."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from foredraft import Engine, GenerationOptions
from foredraft.methods import parse_method
from foredraft.tree import Proposal
from tests.laws.engine_laws import (
    LAW_ATOL,
    Reference,
    error_between,
    error_of,
    random_table,
    table_model,
)
from tests.scripted import Watched

TARGET = random_table(vocab_size=3, order=2, seed=1)
DRAFT = random_table(vocab_size=3, order=1, seed=2)
FOUR, FOUR_DRAFT = random_table(4, order=1, seed=3), random_table(4, order=1, seed=4)
FILTERED = GenerationOptions(temperature=0.7, top_p=0.8, max_new_tokens=4)
PENALISED = GenerationOptions(
    temperature=0.7, repetition_penalty=1.5, frequency_penalty=0.8, max_new_tokens=3
)
any_replacement = pytest.mark.parametrize("proposal", ["sampled", "resampled"])


def engine(
    tree: str, proposal: str = "sampled", target: np.ndarray = TARGET, draft: np.ndarray = DRAFT
) -> Engine:
    parts = parse_method(f"mcsd:tree={tree}:proposal={proposal}").build(table_model(draft))
    return Engine(table_model(target), parts.drafter, parts.policy, parts.verifier)


# --- the law ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", ["2,1", "1,2", "2,2", "3,2"])
@any_replacement
def test_the_law_of_two_rounds_with_a_filter(tree: str, proposal: str) -> None:
    """Four tokens take two rounds of at most three."""
    made = engine(tree, proposal)
    assert made.lossless
    few = proposal == "resampled" and tree in ("2,2", "3,2")  # else there are too many outcomes
    options = FILTERED.replace(top_p=0.6) if few else FILTERED
    assert error_of(made, Reference(TARGET, options)) < LAW_ATOL


@pytest.mark.parametrize("tree", ["2", "1,1", "2,1"])
@any_replacement
def test_the_law_with_penalties(tree: str, proposal: str) -> None:
    assert error_of(engine(tree, proposal), Reference(TARGET, PENALISED)) < LAW_ATOL


@pytest.mark.parametrize("tree", ["2", "3"])
@any_replacement
def test_the_law_of_four_tokens(tree: str, proposal: str) -> None:
    options = GenerationOptions(temperature=0.8, max_new_tokens=3)
    made = engine(tree, proposal, FOUR, FOUR_DRAFT)
    assert error_of(made, Reference(FOUR, options)) < LAW_ATOL


@any_replacement
def test_the_law_of_answers_that_end_early(proposal: str) -> None:
    options = replace(PENALISED, eos_token_ids=(2,))
    assert error_of(engine("2,1", proposal), Reference(TARGET, options)) < LAW_ATOL


@any_replacement
def test_the_options_reach_the_draft(proposal: str) -> None:
    """Case 40: q is the law that was drawn from, after temperature and filters."""
    made = engine("2", proposal)
    drafter = Watched(made.drafter)  # type: ignore[arg-type]
    Engine(made.target, drafter, made.policy, made.verifier).generate([0, 1], FILTERED, seed=1)
    trees = [tree for tree in drafter.drafts if tree.num_drafted]
    assert trees
    for tree in trees:
        law = tree.laws[0]
        expected = Reference(DRAFT, FILTERED, (tree.token_ids[0],)).law(())
        torch.testing.assert_close(law, torch.from_numpy(expected), atol=1e-6, rtol=0)
        assert {tree.proposals[node] for node in tree.children[0]} == {Proposal(proposal)}


def test_the_filters_matter() -> None:
    free = GenerationOptions(temperature=0.7, max_new_tokens=4)
    assert error_between(Reference(TARGET, FILTERED).answers(), Reference(TARGET, free).answers())


# --- temperature 0 ----------------------------------------------------------------------------------

WIDE = random_table(vocab_size=8, order=2, seed=7)
WIDE_DRAFT = random_table(vocab_size=8, order=1, seed=8)
GREEDY = GenerationOptions(temperature=0.0, max_new_tokens=40)
PENALISED_GREEDY = GREEDY.replace(repetition_penalty=1.3, frequency_penalty=0.3)


def wide(tree: str, proposal: str = "sampled") -> Engine:
    return engine(tree, proposal, WIDE, WIDE_DRAFT)


@pytest.mark.parametrize("options", [GREEDY, PENALISED_GREEDY], ids=["greedy", "penalised"])
@pytest.mark.parametrize("tree", ["1", "3,2", "4,2,2,1", "8,8"])
@any_replacement
def test_greedy_decoding(tree: str, proposal: str, options: GenerationOptions) -> None:
    plain = Engine(table_model(WIDE)).generate([0], options)
    assert wide(tree, proposal).generate([0], options).token_ids == plain.token_ids


def test_greedy_candidates_are_the_drafts_best() -> None:
    made = wide("3,2")
    drafter = Watched(made.drafter)  # type: ignore[arg-type]
    Engine(made.target, drafter, made.policy, made.verifier).generate([0], GREEDY)
    trees = [tree for tree in drafter.drafts if tree.depth == 2]
    assert len(trees) > 5
    for tree in trees:
        for node, children in enumerate(tree.children):
            best = np.argsort(-WIDE_DRAFT[tree.token_ids[node]])[: (3, 2, 0)[tree.depths[node]]]
            assert [tree.token_ids[child] for child in children] == best.tolist()


def test_greedy_candidates_with_replacement_are_the_best_one_again_and_again() -> None:
    """They add nothing to a chain (methods 1.2)."""
    made = wide("3,2", "resampled")
    drafter = Watched(made.drafter)  # type: ignore[arg-type]
    result = Engine(made.target, drafter, made.policy, made.verifier).generate([0], GREEDY)
    for tree in drafter.drafts:
        for node, children in enumerate(tree.children):
            best = int(WIDE_DRAFT[tree.token_ids[node]].argmax())
            assert all(tree.token_ids[child] == best for child in children)
    assert accepted(result) == accepted(wide("1,1", "resampled").generate([0], GREEDY))


def accepted(result: object) -> list[int]:
    return [r.num_accepted for r in result.stats.rounds]  # type: ignore[attr-defined]


def from_everywhere(tree: str) -> list[int]:
    """Accepted tokens of the round that starts after each beginning of greedy decoding's text."""
    text = [0, *Engine(table_model(WIDE)).generate([0], GREEDY).token_ids]
    made, counts = wide(tree), []
    for end in range(1, len(text)):
        counts.append(accepted(made.generate(text[:end], GREEDY.replace(max_new_tokens=5)))[0])
    return counts


def test_more_candidates_never_accept_less() -> None:
    trees = ["1,1,1", "2,1,1", "2,2,1", "4,2,2", "8,8,2"]
    counts = [from_everywhere(tree) for tree in trees]
    for fewer, more in pairwise(counts):
        assert all(a <= b for a, b in zip(fewer, more, strict=True))
    assert sum(counts[0]) < sum(counts[3]) < sum(counts[4])
    rounds = [len(accepted(wide(tree).generate([0], GREEDY))) for tree in trees]
    assert rounds == sorted(rounds, reverse=True)
