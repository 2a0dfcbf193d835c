"""Drafts that are right for exactly as long as the test says: accepted lengths, stops, limits, caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from foredraft import Engine, GenerationOptions
from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.policies.fixed import FixedPolicy
from foredraft.results import Step
from foredraft.tree import Proposal
from foredraft.verifiers import verifier
from tests.laws.engine_laws import Reference, random_table, table_model
from tests.scripted import (
    Script,
    ScriptedDrafter,
    Watched,
    checked_rounds,
    cycle,
    empty,
    noise,
    perfect,
    repeat,
    right,
    with_siblings,
    wrong,
)

VOCAB_SIZE = 7
LAWS = random_table(VOCAB_SIZE, order=2, seed=1)
TARGET = table_model(LAWS)
PROMPT = (1, 2, 3)
LENGTH = 40
GREEDY = GenerationOptions(max_new_tokens=LENGTH, repetition_penalty=1.2, frequency_penalty=0.3)
SAMPLING = replace(GREEDY, temperature=0.9, seed=5)

both = pytest.mark.parametrize("options", [GREEDY, SAMPLING], ids=["greedy", "sampling"])
SWEEP = [(k, j) for k in range(1, 9) for j in range(k + 1)]


def plain_answer(
    options: GenerationOptions, prompt: Sequence[int] = PROMPT, target: TableModel = TARGET
) -> tuple[int, ...]:
    return Engine(target).generate(prompt, options).token_ids


def rounds_of(
    script: Script,
    options: GenerationOptions,
    prompt: Sequence[int] = PROMPT,
    target: TableModel = TARGET,
    max_nodes: int = 40,
) -> list[Step]:
    """All rounds of an answer that must be plain decoding's."""
    drafter = Watched(ScriptedDrafter(script, max_nodes, branches=True))
    steps = list(checked_rounds(Engine(target, drafter), prompt, options))
    assert ids_of(steps) == plain_answer(options, prompt, target)
    assert drafter.states[-1].closed
    return steps


def ids_of(steps: Sequence[Step]) -> tuple[int, ...]:
    return tuple(token for step in steps for token in step.token_ids)


# --- how much is accepted ---------------------------------------------------------------------------


@both
@pytest.mark.parametrize(("k", "j"), SWEEP)
def test_a_draft_is_accepted_for_as_long_as_it_is_right(
    k: int, j: int, options: GenerationOptions
) -> None:
    """Case 44: the first j draft tokens and one more, in every round with room for k."""
    text = [*PROMPT, *plain_answer(options)]
    steps = rounds_of(right(text, j, k, VOCAB_SIZE), options)
    whole = [step for step in steps if step.num_drafted == k]
    assert whole
    assert all(step.num_accepted == j for step in whole)
    assert all(len(step.token_ids) == j + 1 for step in whole)


@both
@pytest.mark.parametrize("prompt", [(1,), PROMPT], ids=["one token", "three tokens"])
@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize(("k", "j"), [(1, 1), (2, 1), (3, 0), (4, 4)])
def test_the_right_child_may_be_any_sibling(
    k: int, j: int, index: int, prompt: Sequence[int], options: GenerationOptions
) -> None:
    text = [*prompt, *plain_answer(options, prompt)]
    script = with_siblings(right(text, j, k, VOCAB_SIZE), 3, index, VOCAB_SIZE)
    steps = rounds_of(script, options, prompt)
    whole = [step for step in steps if step.num_drafted == 3 * k]
    assert whole
    assert min(step.num_accepted for step in whole) >= j  # a wrong one's sibling may be right


@both
@pytest.mark.parametrize("k", range(1, 9))
def test_scripts_of_every_kind(k: int, options: GenerationOptions) -> None:
    text = [*PROMPT, *plain_answer(options)]
    for script in (
        perfect(text, k),
        wrong(text, k, VOCAB_SIZE),
        noise(k, k, VOCAB_SIZE),
        repeat(3, k),
        cycle(text, k),
    ):
        rounds_of(script, options)


@pytest.mark.parametrize("kind", list(Proposal))
@both
def test_a_drafter_that_is_the_target_is_never_rejected_when_it_chooses_alike(
    kind: Proposal, options: GenerationOptions
) -> None:
    """Greedy or coupled, without penalties: the draft cache never lags and never holds a wrong row."""
    options = replace(options, repetition_penalty=1.0, frequency_penalty=0.0)
    drafter = Watched(DraftModelDrafter(TARGET, kind))
    steps = list(checked_rounds(Engine(TARGET, drafter, FixedPolicy("1,1,1")), PROMPT, options))
    assert ids_of(steps) == plain_answer(options)
    if options.temperature == 0 or kind is Proposal.COUPLED:
        assert all(step.num_accepted == step.num_drafted for step in steps)


@pytest.mark.parametrize("name", ["rejection", "block", "traversal"])
def test_sampling_verifiers_never_reject_a_drafter_that_is_the_target(name: str) -> None:
    options = GenerationOptions(max_new_tokens=LENGTH, temperature=0.9, seed=1)
    drafter = Watched(DraftModelDrafter(TARGET, Proposal.SAMPLED))
    engine = Engine(TARGET, drafter, FixedPolicy("1,1,1"), verifier(name))
    steps = list(checked_rounds(engine, PROMPT, options))
    assert all(step.num_accepted == step.num_drafted for step in steps)


# --- end tokens -------------------------------------------------------------------------------------


def first_end(answer: Sequence[int], ends: Sequence[int]) -> int:
    """Tokens up to the first end token, that one included."""
    return next((i + 1 for i, t in enumerate(answer) if t in ends), len(answer))


@both
@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("ends", [(0,), (3,), (6,), (0, 5, 6), (2, 3, 4)], ids=str)
def test_the_first_end_token_of_a_block_ends_the_answer(
    ends: tuple[int, ...], k: int, options: GenerationOptions
) -> None:
    """Cases 21 and 22: several ends in one block too, nothing after it, the id is reported."""
    options = replace(options, eos_token_ids=ends)
    endless = plain_answer(replace(options, ignore_eos=True))
    steps = rounds_of(perfect([*PROMPT, *endless], k), options)
    expected = endless[: first_end(endless, ends)]
    assert ids_of(steps) == expected
    assert steps[-1].finish_reason == "stop"
    assert steps[-1].stopped_by == expected[-1]


@both
def test_an_end_token_on_the_last_place_is_a_stop(options: GenerationOptions) -> None:
    """Case 21, when the cap lands exactly there."""
    endless = plain_answer(options)
    length = first_end(endless, (endless[5],))
    options = replace(options, eos_token_ids=[endless[5]], max_new_tokens=length)
    steps = rounds_of(perfect([*PROMPT, *endless], 8), options)
    assert len(ids_of(steps)) == length
    assert steps[-1].finish_reason == "stop"


@both
def test_a_drafted_end_that_the_target_rejects_ends_nothing(options: GenerationOptions) -> None:
    """Case 20."""
    options = replace(options, eos_token_ids=[6], logit_bias={6: -100.0})
    steps = rounds_of(repeat(6, 4), options)
    assert all(step.num_accepted == 0 for step in steps)
    assert steps[-1].finish_reason == "length"


@pytest.mark.parametrize("kind", list(Proposal))
def test_nothing_is_drafted_behind_an_end_token(kind: Proposal) -> None:
    """Case 20: branches end at it."""
    drafter = Watched(DraftModelDrafter(TARGET, kind))
    engine = Engine(TARGET, drafter, FixedPolicy("3,2,2"))
    list(checked_rounds(engine, PROMPT, replace(SAMPLING, eos_token_ids=[6])))
    ends = [
        (tree, node)
        for tree in drafter.drafts
        for node in range(1, len(tree))
        if tree.token_ids[node] == 6
    ]
    assert ends
    assert all(not tree.children[node] for tree, node in ends)


def test_minimum_and_penalties_count_tokens_and_not_rounds() -> None:
    """Case 29: the end token is the likeliest from the start, and comes with the eleventh token."""
    table = random_table(VOCAB_SIZE, 1, seed=3)
    table[:, 6] = 5.0
    table /= table.sum(-1, keepdims=True)
    options = GenerationOptions(
        max_new_tokens=20, min_new_tokens=10, frequency_penalty=1.0, eos_token_ids=[6]
    )
    reference = Reference(table, replace(options, temperature=1.0), PROMPT)
    expected: list[int] = []
    while not expected or expected[-1] != 6:
        law = reference.law(tuple(expected))
        law[6] *= len(expected) >= 10
        expected.append(int(law.argmax()))
    steps = rounds_of(perfect([*PROMPT, *expected], 7), options, target=table_model(table))
    assert list(ids_of(steps)) == expected
    assert len(expected) == 11
    assert len(steps) == 2


# --- limits and empty drafts ------------------------------------------------------------------------


@both
def test_empty_drafts_are_plain_rounds(options: GenerationOptions) -> None:
    """Case 56: one token a round, nothing drafted, no acceptance figure."""
    steps = rounds_of(empty(), options)
    assert all(step.num_drafted == 0 and len(step.token_ids) == 1 for step in steps)
    result = Engine(TARGET, ScriptedDrafter(empty(), max_nodes=4)).generate(PROMPT, options)
    assert result.stats.drafted_tokens == 0
    assert result.stats.acceptance_rate is None


@both
@pytest.mark.parametrize("room", range(1, 10))
def test_drafts_are_cut_to_the_room_that_is_left(room: int, options: GenerationOptions) -> None:
    """Cases 55 and 56: a drafter with 16 tokens to offer, at the end of the target's context."""
    target = TableModel(torch.from_numpy(LAWS), context_length=len(PROMPT) + room)
    text = [*PROMPT, *plain_answer(options)]
    for script in (perfect(text, 16), wrong(text, 16, VOCAB_SIZE), repeat(0, 16)):
        steps = rounds_of(script, options, target=target)
        assert len(ids_of(steps)) == room
        assert steps[-1].finish_reason == "length"
        left = room
        for step in steps:
            assert step.num_drafted <= left - 1
            left -= len(step.token_ids)


@both
def test_the_last_token_is_a_plain_round(options: GenerationOptions) -> None:
    steps = rounds_of(wrong([*PROMPT, *plain_answer(options)], 4, VOCAB_SIZE), options)
    assert [step.num_drafted for step in steps[-3:]] == [2, 1, 0]


# --- what drafts are made of ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in Proposal if kind is not Proposal.RESAMPLED])
def test_siblings_differ(kind: Proposal) -> None:
    """A repeated sibling would keep the law, and waste a node."""
    drafter = Watched(DraftModelDrafter(TARGET, kind))
    list(checked_rounds(Engine(TARGET, drafter, FixedPolicy("3,2")), PROMPT, SAMPLING))
    for tree in drafter.drafts:
        for children in tree.children:
            assert len({tree.token_ids[child] for child in children}) == len(children)


@pytest.mark.parametrize("kind", list(Proposal))
@both
def test_the_draft_cache_keeps_what_was_accepted(
    kind: Proposal, options: GenerationOptions
) -> None:
    """Case 7: it lacks the new root and, when all was accepted, the last draft token; no more."""
    drafter = Watched(DraftModelDrafter(TARGET, kind))
    engine = Engine(TARGET, drafter, FixedPolicy("2,2,1"))
    length = len(PROMPT)
    for step in checked_rounds(engine, PROMPT, options):
        length += len(step.token_ids)
        if step.num_drafted:
            assert drafter.states[-1].length >= length - 2
