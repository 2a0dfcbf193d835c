"""Copies are scored by how much of the text agrees with their source, and by how copies have done in it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft import Engine
from foredraft.backends.table import TableModel
from foredraft.drafters import reliability
from foredraft.drafters.ngram import NgramDrafter, NgramState
from foredraft.drafters.reliability import (
    LONGEST_AGREEMENT,
    PROMPT_WEIGHT,
    Reliability,
    agreement,
)
from foredraft.policies.dynamic import BudgetPolicy, DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import Policy
from foredraft.tree import DraftTree
from tests.drafters.contexts import context

VOCAB_SIZE = 40
texts = st.lists(st.integers(0, 3), min_size=2, max_size=60)
lengths = st.integers(1, LONGEST_AGREEMENT)


def scored(
    text: Sequence[int], widths: str = "1,1,1,1", least: int = 1, most: int = 3
) -> tuple[DraftTree, list[float]]:
    """The copies after a text that came at once, and how likely each path is thought to be."""
    return scored_by(NgramDrafter(least, most).start(100), text, FixedPolicy(widths))


def scored_by(
    state: NgramState, text: Sequence[int], policy: Policy
) -> tuple[DraftTree, list[float]]:
    tree, scores = state.draft_scored(context(text, vocab_size=VOCAB_SIZE), policy.start())
    return tree, [math.exp(score) for score in scores]


# --- agreement --------------------------------------------------------------------------------------


@given(texts, st.data())
def test_agreement_is_the_longest_common_ending(text: list[int], data: st.DataObject) -> None:
    end = data.draw(st.integers(1, len(text)))
    source = data.draw(st.integers(0, end - 1))
    common = [n for n in range(source + 1) if text[source - n : source] == text[end - n : end]]
    assert agreement(text, source, end) == min(max(common), LONGEST_AGREEMENT)


def test_agreement_is_counted_up_to_a_limit() -> None:
    assert agreement([7] * 100, 99, 100) == LONGEST_AGREEMENT


# --- rates ------------------------------------------------------------------------------------------


def test_longer_agreement_is_more_reliable() -> None:
    rates = [Reliability()(length) for length in range(1, LONGEST_AGREEMENT + 1)]
    assert rates == sorted(rates)
    assert 0 < rates[0] < rates[-1] < 1


@given(st.lists(st.tuples(lengths, st.booleans()), max_size=60), st.integers(0, 3), lengths)
def test_rates_stay_between_0_and_1(seen: list[tuple[int, bool]], rank: int, length: int) -> None:
    rates = Reliability()
    for each, hit in seen:
        rates.note(each, hit, 1.0)
    assert 0 < rates(length, rank) < 1


@given(lengths)
def test_a_text_teaches_its_own_rate(length: int) -> None:
    """And no other: copies of other lengths stay as they were."""
    unread, lucky, unlucky = Reliability(), Reliability(), Reliability()
    for _ in range(20):
        lucky.note(length, True, 1.0)
        unlucky.note(length, False, 1.0)
    assert unlucky(length) < unread(length) < lucky(length)
    far = 1 if length > 5 else LONGEST_AGREEMENT
    assert lucky(far) == unlucky(far) == unread(far)


def test_the_prompt_counts_less_than_the_answer() -> None:
    weak, strong = Reliability(), Reliability()
    weak.note(2, True, PROMPT_WEIGHT)
    strong.note(2, True, 1.0)
    assert Reliability()(2) < weak(2) < strong(2)


def test_what_was_seen_last_counts_most() -> None:
    rising, falling = Reliability(), Reliability()
    for hit in (False, True):
        for _ in range(10):
            rising.note(4, hit, 1.0)
            falling.note(4, not hit, 1.0)
    assert rising(4) > falling(4)


# --- scores -----------------------------------------------------------------------------------------


def by_hand(text: Sequence[int], least: int, most: int, prompt_length: int = 0) -> Reliability:
    """Every token of the text compared with its copy, by brute force."""
    rates = Reliability()
    for end in range(1, len(text)):
        sources = [
            source
            for n in range(min(most, end), least - 1, -1)
            for source in range(end - 1, n - 1, -1)
            if text[source - n : source] == text[end - n : end]
        ]
        if sources:
            weight = PROMPT_WEIGHT if end < prompt_length else 1.0
            hit = text[sources[0]] == text[end]
            rates.note(agreement(text, sources[0], end), hit, weight)
    return rates


@given(texts, st.integers(1, 3), st.integers(0, 2), st.integers(0, 30))
def test_rates_are_those_of_every_token_against_its_copy(
    text: list[int], least: int, more: int, prompt_length: int
) -> None:
    state = NgramDrafter(least, least + more).start(100)
    state.prefill(text[:prompt_length])
    tree, scores = scored_by(state, text, FixedPolicy("1"))
    rates = by_hand(text, least, least + more, prompt_length)
    if len(tree) > 1:
        assert scores[1] in [pytest.approx(rates(n)) for n in range(1, LONGEST_AGREEMENT + 1)]


@given(texts, st.lists(st.integers(1, 5), max_size=12))
def test_scores_of_an_index_that_grew_equal_those_of_one_made_at_once(
    text: list[int], steps: list[int]
) -> None:
    state = NgramDrafter(1, 3).start(100)
    length = 1
    for step in steps:
        scored_by(state, text[:length], FixedPolicy("2,2"))
        length = min(length + step, len(text))
    assert scored_by(state, text, FixedPolicy("2,2")) == scored(text, "2,2")


@given(texts)
def test_scores_are_of_paths_and_siblings_share_one_law(text: list[int]) -> None:
    tree, scores = scored(text, "3,2,2")
    assert scores[0] == 1.0
    for node, children in enumerate(tree.children):
        assert sum(scores[child] for child in children) <= scores[node] + 1e-9


def test_going_on_along_a_copy_agrees_by_one_more_each_time() -> None:
    """1 2 again, with 9 and 8 before: 2, 3, 4 and 5 tokens agree."""
    text = [9, 1, 2, 3, 4, 5, 6, 8, 1, 2]
    tree, scores = scored(text, "1,1,1,1")
    rates = by_hand(text, 1, 3)
    assert tree.token_ids[1:] == (3, 4, 5, 6)
    shares = [scores[n] / scores[n - 1] for n in range(1, 5)]
    assert shares == pytest.approx([rates(2), rates(3), rates(4), rates(5)])


def test_agreement_counts_beyond_the_longest_match() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6]
    _, scores = scored(text, "1", most=2)
    assert scores[1] == pytest.approx(by_hand(text, 1, 2)(6))


def test_a_second_copy_gets_what_the_first_leaves() -> None:
    """2 5 came last, after 1 2 6: one agrees by two tokens, the other by one."""
    text = [1, 2, 6, 3, 2, 5, 1, 2]
    tree, scores = scored(text, "2")
    rates = by_hand(text, 1, 3)
    assert tree.token_ids[1:] == (6, 5)
    assert scores[1:] == pytest.approx([rates(2), (1 - rates(2)) * rates(1, 1)])


# --- policies that read scores ----------------------------------------------------------------------


@given(texts, st.integers(1, 8))
def test_a_dynamic_tree_of_copies_is_the_most_likely_ones(text: list[int], nodes: int) -> None:
    """And the scores follow the nodes that were kept."""
    wide, worth = scored(text, "3,3,3")
    state = NgramDrafter(1, 3).start(100)
    tree, scores = scored_by(state, text, DynamicTreePolicy(3, nodes, 3))
    assert scores[1:] == pytest.approx(
        [worth[wide.follow(tree.path_tokens(node))[-1]] for node in range(1, len(tree))]
    )
    assert sorted(scores[1:], reverse=True) == pytest.approx(
        sorted(worth[1:], reverse=True)[: len(tree) - 1]
    )
    assert len(tree) == min(nodes, len(wide) - 1) + 1


@pytest.mark.parametrize(
    "policy",
    [DynamicTreePolicy(4, 6, 3), BudgetPolicy(8, 4, reads_laws=False)],
    ids=["dynamic", "budget"],
)
def test_answers_are_plain_decodings_whatever_copies_are_chosen(policy: Policy) -> None:
    target = TableModel.random(4, sharpness=4.0, seed=1)
    prompt = [1, 2, 3, 1, 2]
    engine = Engine(target, NgramDrafter(1, 3), policy)
    for temperature in (0.0, 1.0):
        options = {"max_new_tokens": 60, "temperature": temperature, "seed": 5}
        result = engine.generate(prompt, **options)
        assert result.token_ids == engine.without_drafts().generate(prompt, **options).token_ids
        assert result.stats.acceptance_rate


def test_measured_rates_belong_to_their_lengths() -> None:
    assert len(reliability.FIRST) == len(reliability.LENGTHS)
    assert len(reliability.SECOND) == len(reliability.LATER) == len(reliability.OTHER_LENGTHS)
