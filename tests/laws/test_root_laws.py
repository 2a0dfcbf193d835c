"""Drafts from open roots: one root drawn from the law is lossless, more follow the paper's rule exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor

from foredraft import ConfigError, Engine, GenerationOptions
from foredraft.methods import parse_method
from foredraft.protocols import Verdict
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree, Proposal
from foredraft.verifiers.multi_root import MultiRootVerifier
from tests.laws.engine_laws import (
    BREAK,
    LAW_ATOL,
    Law,
    Reference,
    answer_law,
    error_between,
    error_of,
    random_table,
    table_model,
)
from tests.laws.root_model import RootModel

DETERMINISTIC, SAMPLED, RESAMPLED = Proposal.DETERMINISTIC, Proposal.SAMPLED, Proposal.RESAMPLED
KINDS = [DETERMINISTIC, SAMPLED, RESAMPLED]

TARGET = random_table(vocab_size=3, order=2, seed=1)
DRAFT = random_table(vocab_size=3, order=1, seed=2)
FOUR, FOUR_DRAFT = random_table(4, order=1, seed=3), random_table(4, order=1, seed=5)

REQUESTS = {
    "plain": GenerationOptions(temperature=1.0, max_new_tokens=3),
    "filtered": GenerationOptions(temperature=0.7, top_p=0.8, max_new_tokens=4),
    "penalised": GenerationOptions(
        temperature=0.7, repetition_penalty=1.5, frequency_penalty=0.8, max_new_tokens=3
    ),
}
any_request = pytest.mark.parametrize("options", REQUESTS.values(), ids=REQUESTS)
any_kind = pytest.mark.parametrize("kind", KINDS)


def engine(
    name: str, target: np.ndarray = TARGET, draft: np.ndarray = DRAFT, kind: Proposal = SAMPLED
) -> Engine:
    """The recipe with these options, over tables."""
    parts = parse_method(f"mcsd-improved-lossy:{name}:proposal={kind.value}").build(
        table_model(draft)
    )
    return Engine(table_model(target), parts.drafter, parts.policy, parts.verifier)


# --- one root ---------------------------------------------------------------------------------------


@any_request
@any_kind
@pytest.mark.parametrize("tree", ["1,1", "1,2", "1,1,1"])
def test_one_root_keeps_the_law(tree: str, kind: Proposal, options: GenerationOptions) -> None:
    made = engine(f"tree={tree}", kind=kind)
    assert made.lossless
    assert not made.keeps_seeds
    assert error_of(made, Reference(TARGET, options)) < LAW_ATOL


@pytest.mark.parametrize(
    ("tree", "kind"),
    [
        ("1,3", SAMPLED),
        ("1,3", DETERMINISTIC),
        ("1,1,2", SAMPLED),
        ("1,1,1,1", SAMPLED),
        ("1,3,2", DETERMINISTIC),
    ],
)
def test_one_root_of_wider_and_deeper_trees(tree: str, kind: Proposal) -> None:
    """Rejections at every depth of the first round leave what the second one starts from."""
    options = replace(REQUESTS["filtered"], top_p=0.9)
    assert error_of(engine(f"tree={tree}", kind=kind), Reference(TARGET, options)) < LAW_ATOL


@any_kind
@pytest.mark.parametrize("prompt", [(1,), (2, 0)])
def test_one_root_behind_short_prompts(prompt: tuple[int, ...], kind: Proposal) -> None:
    reference = Reference(TARGET, REQUESTS["penalised"], prompt)
    assert error_of(engine("tree=1,1", kind=kind), reference) < LAW_ATOL


@any_kind
def test_one_root_of_four_tokens(kind: Proposal) -> None:
    options = GenerationOptions(temperature=0.8, max_new_tokens=3)
    made = engine("tree=1,2", FOUR, FOUR_DRAFT, kind)
    assert error_of(made, Reference(FOUR, options)) < LAW_ATOL


@any_kind
def test_one_root_with_answers_that_end_early(kind: Proposal) -> None:
    options = replace(REQUESTS["penalised"], eos_token_ids=(2,))
    reference = Reference(TARGET, options)
    assert {len(answer) for answer in reference.answers()} == {1, 2, 3}
    assert error_of(engine("tree=1,2,1", kind=kind), reference) < LAW_ATOL


@any_kind
def test_without_merging_equal_ends_of_rounds(kind: Proposal) -> None:
    """Merging assumes that rounds depend on the text and on what is left of a law, and on nothing else."""
    made = engine("tree=1,1", kind=kind)
    assert error_of(made, Reference(TARGET, REQUESTS["plain"]), merge=False) < LAW_ATOL


@any_kind
def test_one_root_and_a_draft_that_is_nearly_always_right(kind: Proposal) -> None:
    """Case 46: what rejections leave is a law of rounding errors, drawn from hardly ever."""
    made = engine("tree=1,2", TARGET, TARGET, kind)
    assert error_of(made, Reference(TARGET, REQUESTS["penalised"])) < LAW_ATOL
    assert error_of(made, Reference(TARGET, REQUESTS["plain"])) < LAW_ATOL


def gappy(order: int, seed: int) -> np.ndarray:
    """Laws of two tokens out of three, now and then of one."""
    table = random_table(3, order, seed)
    table[table < 0.25] = 0
    return table / table.sum(-1, keepdims=True)


@any_kind
@pytest.mark.parametrize("seed", range(3))
def test_laws_with_tokens_that_are_never_next(seed: int, kind: Proposal) -> None:
    """Supports that are small, and disjoint for some contexts."""
    target, draft = gappy(2, seed), gappy(1, seed + 50)
    options = GenerationOptions(temperature=1.0, max_new_tokens=4)
    reference = Reference(target, options)
    assert error_of(engine("tree=1,2,1", target, draft, kind), reference) < LAW_ATOL
    rule = RootModel(target, draft, options, 2, (1,), kind=kind).answers
    emitted = answer_law(engine("tree=2,1", target, draft, kind), options)
    assert error_between(emitted, rule) < LAW_ATOL


def test_no_drafter_at_all() -> None:
    """Every round is one root."""
    options = REQUESTS["filtered"]
    made = Engine(table_model(TARGET), verifier=MultiRootVerifier(1))
    assert error_of(made, Reference(TARGET, options)) < LAW_ATOL


# --- faults of one root that these tests see --------------------------------------------------------


class Tampered(MultiRootVerifier):
    """Leaves something else behind than it should."""

    def __init__(self, fault: str) -> None:
        super().__init__(1)
        self._fault = fault

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        verdict = super().verify(tree, laws, random)
        if verdict.left is None:
            return verdict
        return Verdict(verdict.path, verdict.token_ids, self._left(tree, verdict, laws))

    def _left(self, tree: DraftTree, verdict: Verdict, laws: TargetLaws) -> Tensor | None:
        node = verdict.path[-1]
        if self._fault == "nothing":
            return verdict.left
        if self._fault == "unadjusted":  # methods 2.8: goes on from p as it was
            return None
        above = tree.parents[node] if node else node  # methods 2.8: the draft law one depth higher
        left = (laws.probs(node) - tree.laws[above]).clamp_min(0)
        return left / left.sum()


def tampered(fault: str, tree: str) -> float:
    made = engine(f"tree={tree}")
    made = Engine(made.target, made.drafter, made.policy, Tampered(fault))
    return error_of(made, Reference(TARGET, REQUESTS["filtered"]))


@pytest.mark.parametrize("tree", ["1,1", "1,1,1"])
def test_a_residual_that_is_forgotten_is_caught(tree: str) -> None:
    assert tampered("nothing", tree) < LAW_ATOL
    assert tampered("unadjusted", tree) > BREAK


def test_a_residual_of_the_wrong_depth_is_caught() -> None:
    assert tampered("depth", "1,1") < LAW_ATOL  # there is no depth to mistake
    assert tampered("depth", "1,1,1") > BREAK


# --- several roots ----------------------------------------------------------------------------------


def laws_of(
    num_roots: int,
    widths: str,
    options: GenerationOptions,
    kind: Proposal = SAMPLED,
    roots: str = "multinomial",
    top_p: float = 0.6,
    four: bool = False,
    merge: bool = True,
) -> tuple[Law, Law, Law]:
    """The law of the engine's answers, that of the paper's rule, and the target's own."""
    target, draft = (FOUR, FOUR_DRAFT) if four else (TARGET, DRAFT)
    name = f"tree={num_roots},{widths}:roots={roots}"
    if roots == "nucleus":
        name += f":root_top_p={top_p}"
    made = engine(name, target, draft, kind)
    assert made.lossless == (num_roots == 1 and roots == "multinomial")
    emitted = answer_law(made, options, merge=merge)
    model = RootModel(
        target,
        draft,
        options,
        num_roots,
        tuple(map(int, widths.split(","))),
        how=roots,
        top_p=top_p,
        kind=kind,
    )
    return emitted, model.answers, Reference(target, options).answers()


def first(law: Law) -> Law:
    """The law of the first token."""
    tokens: Law = {}
    for answer, weight in law.items():
        tokens[answer[:1]] = tokens.get(answer[:1], 0.0) + weight
    return tokens


def check_rule(laws: tuple[Law, Law, Law]) -> None:
    """The rule, and not the target's law: not even for the first token."""
    emitted, rule, target = laws
    assert abs(sum(rule.values()) - 1) < LAW_ATOL
    assert error_between(emitted, rule) < LAW_ATOL
    assert error_between(first(emitted), first(target)) > BREAK


@any_kind
def test_one_root_is_the_rule_and_the_targets_law(kind: Proposal) -> None:
    """So the rule's law, worked out in `root_model`, is the right yardstick."""
    emitted, rule, target = laws_of(1, "2,1", REQUESTS["penalised"], kind)
    assert error_between(emitted, rule) < LAW_ATOL
    assert error_between(rule, target) < LAW_ATOL


@any_request
@any_kind
def test_two_roots_with_chains(kind: Proposal, options: GenerationOptions) -> None:
    check_rule(laws_of(2, "1", replace(options, max_new_tokens=3), kind))


@pytest.mark.parametrize(
    ("widths", "kind", "name"),
    [
        ("1,1", SAMPLED, "filtered"),
        ("1,1", RESAMPLED, "filtered"),
        ("1,1", DETERMINISTIC, "penalised"),
        ("2", SAMPLED, "filtered"),
        ("2", RESAMPLED, "filtered"),
        ("2,1", DETERMINISTIC, "penalised"),
        ("2,2", DETERMINISTIC, "plain"),
        ("3,1", DETERMINISTIC, "penalised"),
    ],
)
def test_two_roots_with_trees(widths: str, kind: Proposal, name: str) -> None:
    check_rule(laws_of(2, widths, replace(REQUESTS[name], max_new_tokens=3), kind))


@pytest.mark.parametrize("name", ["plain", "penalised"])
@pytest.mark.parametrize(("widths", "kind"), [("1", SAMPLED), ("2,1", DETERMINISTIC)])
def test_three_roots(widths: str, kind: Proposal, name: str) -> None:
    """As many as there are tokens."""
    check_rule(laws_of(3, widths, replace(REQUESTS[name], max_new_tokens=2), kind))


def test_more_roots_than_tokens_are_all_tokens() -> None:
    options = replace(REQUESTS["plain"], max_new_tokens=2)
    five = laws_of(5, "1", options, DETERMINISTIC)
    check_rule(five)
    assert error_between(five[0], laws_of(3, "1", options, DETERMINISTIC)[0]) < LAW_ATOL


def test_roots_are_drawn_inside_the_filters() -> None:
    """At top_p=0.8 some laws have fewer tokens than there are roots; no answer has another token."""
    emitted, _, target = laws_of(3, "1", REQUESTS["filtered"])
    assert set(emitted) <= set(target)


@pytest.mark.parametrize("name", ["plain", "penalised"])
@pytest.mark.parametrize("kind", [SAMPLED, DETERMINISTIC])
def test_two_roots_of_four_tokens(kind: Proposal, name: str) -> None:
    options = replace(REQUESTS[name], max_new_tokens=2)
    check_rule(laws_of(2, "1", options, kind, four=True))


@any_kind
def test_several_rounds_without_merging(kind: Proposal) -> None:
    options = replace(REQUESTS["filtered"], max_new_tokens=3)
    check_rule(laws_of(2, "1", options, kind, merge=False))


@pytest.mark.parametrize("eos", [0, 2])
@any_kind
def test_roots_that_end_the_answer(kind: Proposal, eos: int) -> None:
    """Nothing is drafted behind them, so a root that is extended wins against them."""
    options = replace(REQUESTS["penalised"], eos_token_ids=(eos,))
    emitted, rule, target = laws_of(2, "1", options, kind)
    assert error_between(emitted, rule) < LAW_ATOL
    assert error_between(emitted, target) > BREAK


# --- other ways to choose roots ---------------------------------------------------------------------


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("num_roots", [1, 2])
@any_kind
def test_the_most_likely_tokens_as_roots(kind: Proposal, num_roots: int, name: str) -> None:
    options = replace(REQUESTS[name], max_new_tokens=3)
    check_rule(laws_of(num_roots, "1", options, kind, "topk"))


@pytest.mark.parametrize("name", ["plain", "penalised"])
@pytest.mark.parametrize("num_roots", [1, 2, 3])
@pytest.mark.parametrize("top_p", [0.45, 0.6, 0.7])
def test_roots_of_a_nucleus(top_p: float, num_roots: int, name: str) -> None:
    options = replace(REQUESTS[name], max_new_tokens=2)
    emitted, rule, target = laws_of(num_roots, "1", options, DETERMINISTIC, "nucleus", top_p)
    assert error_between(emitted, rule) < LAW_ATOL
    assert error_between(emitted, target) > BREAK


@pytest.mark.parametrize("kind", [SAMPLED, RESAMPLED])
def test_roots_of_a_nucleus_with_sampled_drafts(kind: Proposal) -> None:
    check_rule(laws_of(2, "1", REQUESTS["plain"], kind, "nucleus", 0.7))


def test_a_nucleus_of_all_mass_is_the_law() -> None:
    options = replace(REQUESTS["plain"], max_new_tokens=2)
    emitted, rule, _ = laws_of(2, "1", options, roots="nucleus", top_p=1.0)
    plain, _, _ = laws_of(2, "1", options)
    assert error_between(emitted, rule) < LAW_ATOL
    assert error_between(emitted, plain) < LAW_ATOL


# --- the yardstick sees another rule ---------------------------------------------------------------


class OtherWinner(MultiRootVerifier):
    """Of equal walks the last drawn wins."""

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        verdict = super().verify(tree, laws, random)
        if len(verdict.path) > 1:
            return verdict
        root = tree.num_roots - 1
        return Verdict((root,), (tree.token_ids[root],), verdict.left)


def test_another_winner_among_equals_is_caught() -> None:
    options = replace(REQUESTS["plain"], max_new_tokens=2)
    made = engine("tree=2,1")
    other = Engine(made.target, made.drafter, made.policy, OtherWinner(2))
    rule = RootModel(TARGET, DRAFT, options, 2, (1,)).answers
    assert error_between(answer_law(other, options), rule) > BREAK


class Reweighted(MultiRootVerifier):
    """Starts the next round from the law as it was, whatever was rejected."""

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        verdict = super().verify(tree, laws, random)
        return Verdict(verdict.path, verdict.token_ids)


def test_a_residual_that_is_forgotten_is_caught_with_two_roots() -> None:
    """Methods 2.8: the paper's code goes on from the unadjusted law when all is rejected."""
    options = replace(REQUESTS["filtered"], max_new_tokens=3)
    made = engine("tree=2,1")
    other = Engine(made.target, made.drafter, made.policy, Reweighted(2))
    rule = RootModel(TARGET, DRAFT, options, 2, (1,)).answers
    assert error_between(answer_law(other, options), rule) > BREAK


# --- what lossless means ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "roots", "lossless"),
    [
        ("1,2", "multinomial", True),
        ("1,2", "topk", False),
        ("1,2", "nucleus", False),
        ("2,2", "multinomial", False),
        ("2,2", "topk", False),
        ("2,2", "nucleus", False),
    ],
)
def test_an_engine_says_whether_it_is_lossless(tree: str, roots: str, lossless: bool) -> None:
    assert engine(f"tree={tree}:roots={roots}").lossless is lossless


def test_coupled_proposals_are_refused() -> None:
    with pytest.raises(ConfigError, match="coupled proposals"):
        engine("tree=1,1", kind=Proposal.COUPLED)
