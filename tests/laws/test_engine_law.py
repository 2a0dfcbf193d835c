"""The engine is lossless: over all its randomness, answers follow the target's own law.

Every legal triple of proposals, policy and verifier, over several rounds, with the options that are
easiest to get wrong: a filter, and penalties that depend on the path to each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from foredraft import ConfigError, Engine, GenerationOptions
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import Drafter, Frontier, Policy, PolicyKind, RoundOutcome
from foredraft.tree import Proposal
from foredraft.verifiers import VERIFIERS, verifier
from tests.laws.engine_laws import (
    LAW_ATOL,
    PROMPT,
    ExactNoise,
    Reference,
    Rule,
    answer_law,
    error_between,
    error_of,
    random_table,
    table_model,
)
from tests.scripted import ScriptedDrafter, tree_of_paths

DETERMINISTIC, COUPLED = Proposal.DETERMINISTIC, Proposal.COUPLED
SAMPLED, RESAMPLED = Proposal.SAMPLED, Proposal.RESAMPLED

TARGET = random_table(vocab_size=3, order=2, seed=1)
MARKOV = random_table(vocab_size=3, order=1, seed=5)
"""Its law depends on the last token alone, which keeps exact noise small at later positions."""
DRAFT = random_table(vocab_size=3, order=1, seed=2)

REQUESTS = {
    "plain": GenerationOptions(temperature=1.0, max_new_tokens=3),
    "filtered": GenerationOptions(temperature=0.7, top_p=0.8, max_new_tokens=4),
    "penalised": GenerationOptions(
        temperature=0.7, repetition_penalty=1.5, frequency_penalty=0.8, max_new_tokens=3
    ),
}

PAIRS = [
    *[("exact", kind) for kind in (DETERMINISTIC, COUPLED, SAMPLED, RESAMPLED)],
    *[("rejection", kind) for kind in (DETERMINISTIC, SAMPLED, RESAMPLED)],
    *[("block", kind) for kind in (SAMPLED, RESAMPLED)],
    *[("traversal", kind) for kind in (SAMPLED, RESAMPLED)],
]
TREE_PAIRS = [(name, kind) for name, kind in PAIRS if name != "block"]

any_pair = pytest.mark.parametrize(("name", "kind"), PAIRS)
any_tree_pair = pytest.mark.parametrize(("name", "kind"), TREE_PAIRS)
any_request = pytest.mark.parametrize("request_name", REQUESTS)


def draft_model(kind: Proposal, table: np.ndarray = DRAFT) -> Drafter:
    return DraftModelDrafter(table_model(table), kind)


def engine_of(name: str, drafter: Drafter, policy: Policy, table: np.ndarray = TARGET) -> Engine:
    return Engine(table_model(table), drafter, policy, verifier(name))


def reference(request_name: str, table: np.ndarray = TARGET) -> Reference:
    return Reference(table, REQUESTS[request_name])


def test_the_pairs_are_all_that_the_verifiers_call_legal() -> None:
    legal = {(name, kind) for name in VERIFIERS for kind in verifier(name).proposals}
    assert legal == set(PAIRS)


# --- the yardstick itself ---------------------------------------------------------------------------


@any_request
def test_plain_decoding_follows_the_law_under_the_finite_noise(request_name: str) -> None:
    """The quadrature is exact, and the processors are what the reference says."""
    assert error_of(Engine(table_model(TARGET)), reference(request_name)) < LAW_ATOL


@pytest.mark.parametrize("request_name", ["filtered", "penalised"])
def test_the_options_matter(request_name: str) -> None:
    """Else the tests below would not see an option that is ignored."""
    options = REQUESTS[request_name]
    free = GenerationOptions(temperature=1.0, max_new_tokens=options.max_new_tokens)
    law = Reference(TARGET, options).answers()
    assert error_between(law, Reference(TARGET, free).answers()) > 0.02


# --- every legal triple -----------------------------------------------------------------------------


@any_request
@any_pair
def test_chains(name: str, kind: Proposal, request_name: str) -> None:
    engine = engine_of(name, draft_model(kind), FixedPolicy("1,1"))
    options = replace(REQUESTS[request_name], max_new_tokens=3)
    assert error_of(engine, Reference(TARGET, options)) < LAW_ATOL


@any_tree_pair
def test_trees_with_a_filter(name: str, kind: Proposal) -> None:
    engine = engine_of(name, draft_model(kind), FixedPolicy("2,1"))
    options = replace(REQUESTS["filtered"], max_new_tokens=3)
    assert error_of(engine, Reference(TARGET, options)) < LAW_ATOL


@pytest.mark.parametrize(
    ("name", "kind"),
    [pair for pair in TREE_PAIRS if pair not in (("exact", SAMPLED), ("exact", RESAMPLED))],
)
def test_trees_with_penalties(name: str, kind: Proposal) -> None:
    """Exact verification of sampled trees multiplies two large enumerations; the next test has it."""
    engine = engine_of(name, draft_model(kind), FixedPolicy("2,1"))
    assert error_of(engine, reference("penalised")) < LAW_ATOL


@pytest.mark.parametrize("kind", [SAMPLED, RESAMPLED])
def test_exact_verification_of_sampled_siblings_with_penalties(kind: Proposal) -> None:
    engine = engine_of("exact", draft_model(kind), FixedPolicy("2"))
    assert error_of(engine, reference("penalised")) < LAW_ATOL


@pytest.mark.parametrize(
    ("name", "kind", "widths"),
    [
        ("exact", DETERMINISTIC, "3,2,1"),
        ("exact", COUPLED, "3,2,1"),
        ("rejection", DETERMINISTIC, "3,2,1"),
        ("rejection", SAMPLED, "1,1,1"),
        ("rejection", SAMPLED, "3,1"),
        ("block", SAMPLED, "1,1,1"),
        ("traversal", SAMPLED, "1,1,1"),
        ("traversal", SAMPLED, "3,1"),
        ("traversal", RESAMPLED, "1,1,1"),
    ],
)
def test_deep_and_wide_trees(name: str, kind: Proposal, widths: str) -> None:
    engine = engine_of(name, draft_model(kind), FixedPolicy(widths), MARKOV)
    options = replace(REQUESTS["filtered"], top_p=0.95)
    assert error_of(engine, Reference(MARKOV, options)) < LAW_ATOL


@any_pair
def test_a_vocabulary_of_five(name: str, kind: Proposal) -> None:
    target, draft = random_table(5, 1, seed=3), random_table(5, 1, seed=4)
    engine = engine_of(name, draft_model(kind, draft), FixedPolicy("1"), target)
    options = GenerationOptions(temperature=0.8, top_p=0.9, max_new_tokens=3)
    assert error_of(engine, Reference(target, options)) < LAW_ATOL


@any_request
@pytest.mark.parametrize("widths", ["1,1", "2,2"])
@pytest.mark.parametrize("name", ["exact", "rejection"])
def test_ngram_drafts(name: str, widths: str, request_name: str) -> None:
    engine = engine_of(name, NgramDrafter(min_match=1, max_match=2), FixedPolicy(widths))
    assert error_of(engine, reference(request_name)) < LAW_ATOL


@any_pair
def test_answers_that_end_early(name: str, kind: Proposal) -> None:
    """Answers of every length, each with its own probability."""
    options = replace(REQUESTS["penalised"], eos_token_ids=(2,))
    engine = engine_of(name, draft_model(kind), FixedPolicy("1,1"))
    answers = Reference(TARGET, options)
    assert {len(answer) for answer in answers.answers()} == {1, 2, 3}
    assert error_of(engine, answers) < LAW_ATOL


@pytest.mark.parametrize("kind", [SAMPLED, RESAMPLED])
@pytest.mark.parametrize("name", ["rejection", "block", "traversal"])
def test_without_merging_equal_texts(name: str, kind: Proposal) -> None:
    """Merging assumes that rounds depend on the text alone; here every outcome is followed."""
    engine = engine_of(name, draft_model(kind), FixedPolicy("1,1"))
    assert error_of(engine, reference("plain"), merge=False) < LAW_ATOL


# --- policies that look -----------------------------------------------------------------------------


def confident(frontier: Frontier) -> Sequence[int]:
    """None after token 1, one child where the drafter is sure, else two."""
    laws = frontier.log_probs().exp()
    return [
        0 if follows_draft_of_1(frontier, token) else 1 if law.max() > 0.5 else 2
        for token, law in zip(frontier.token_ids, laws, strict=True)
    ]


def confident_chain(frontier: Frontier) -> Sequence[int]:
    return [min(1, count) for count in confident(frontier)]


def follows_draft_of_1(frontier: Frontier, token: int) -> bool:
    """Whether a draft token (not the root, which is text) is token 1."""
    return frontier.depth > 0 and token == 1


@any_pair
def test_policies_that_look_at_tokens_and_laws(name: str, kind: Proposal) -> None:
    engine = engine_of(name, draft_model(kind), Rule(confident_chain, branches=False))
    assert error_of(engine, reference("filtered")) < LAW_ATOL


@any_tree_pair
def test_tree_policies_that_look_at_tokens_and_laws(name: str, kind: Proposal) -> None:
    engine = engine_of(name, draft_model(kind), Rule(confident))
    options = replace(REQUESTS["filtered"], max_new_tokens=3)
    assert error_of(engine, Reference(TARGET, options)) < LAW_ATOL


def cousins(frontier: Frontier) -> Sequence[int]:
    """Two children; the first is extended only if the second has token 1."""
    if frontier.depth == 0:
        return [2]
    extend = frontier.depth == 1 and frontier.token_ids[-1] == 1
    return [int(extend), *[0] * (len(frontier.nodes) - 1)]


@any_tree_pair
def test_policies_that_look_across_branches(name: str, kind: Proposal) -> None:
    """Traversal too: a subtree is accepted with its root's weight on average, whatever its shape."""
    engine = engine_of(name, draft_model(kind), Rule(cousins), MARKOV)
    top_p = 0.8 if name == "exact" else 1.0  # with all tokens, exact noise has too many outcomes
    options = GenerationOptions(temperature=0.7, top_p=top_p, max_new_tokens=3)
    assert error_of(engine, Reference(MARKOV, options)) < LAW_ATOL


class Learner(Rule):
    """Drafts as deep as the last draft was accepted, and one more."""

    def __init__(self) -> None:
        super().__init__(self._counts, branches=False)
        self._depth = 1

    def start(self) -> Learner:
        return Learner()

    def observe(self, outcome: RoundOutcome) -> None:
        self._depth = outcome.num_accepted + 1

    def _counts(self, frontier: Frontier) -> Sequence[int]:
        return [int(frontier.depth < self._depth)]


@any_pair
def test_policies_that_learn_from_earlier_rounds(name: str, kind: Proposal) -> None:
    engine = engine_of(name, draft_model(kind), Learner())
    options = replace(REQUESTS["filtered"], max_new_tokens=3)
    assert error_of(engine, Reference(TARGET, options), merge=False) < LAW_ATOL


@pytest.mark.parametrize("name", ["rejection", "block", "traversal"])
def test_policies_that_select_are_for_exact_verification_only(name: str) -> None:
    policy = Rule(confident_chain, branches=False, kind=PolicyKind.SELECTS)
    with pytest.raises(ConfigError, match="selects among drawn tokens"):
        engine_of(name, draft_model(SAMPLED), policy)
    assert engine_of("exact", draft_model(SAMPLED), policy).keeps_seeds


# --- candidates that share a beginning --------------------------------------------------------------


def test_candidates_that_share_a_beginning_have_one_draw_between_them() -> None:
    """Case 43: drafts ab, ac, ad, ef with p(a) = p(e) = 1/2, tokens a..f = 0..5 (d is never next)."""
    table = np.zeros((6, 6))
    table[:] = [0.5, 0, 0, 0, 0.5, 0]
    table[0] = [0, 0.5, 0.3, 0.2, 0, 0]
    table[4] = [0, 0, 0, 0, 0.1, 0.9]
    answers = Reference(table, GenerationOptions(temperature=1.0, max_new_tokens=3), prompt=(5,))
    paths = [(0, 1), (0, 2), (0, 3), (4, 5)]
    drafter = ScriptedDrafter(tree_of_paths(paths), max_nodes=6, branches=True)
    for name in ("exact", "rejection"):
        engine = Engine(table_model(table), drafter, verifier=verifier(name))
        law = answer_law(engine, answers.options, (5,), noise=ExactNoise(answers))
        assert error_between(law, answers.answers()) < LAW_ATOL


def test_the_prompt_repeats_itself() -> None:
    """Else the n-gram drafts above would be empty."""
    engine = engine_of("rejection", NgramDrafter(1, 2), FixedPolicy("1,1"))
    result = engine.generate(PROMPT, REQUESTS["plain"], seed=0)
    assert result.stats.drafted_tokens > 0
