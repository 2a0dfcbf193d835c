"""The same seed gives the same text as plain decoding, whatever is drafted and however.

Equality is exact: plain decoding and every draft read the same rows of the same table, so there is no
rounding to allow for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from transformers.generation import logits_process as hf

from foredraft import Engine, GenerationOptions
from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.errors import NumericsError
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import Drafter
from foredraft.results import Step
from foredraft.tree import Proposal
from foredraft.verifiers import verifier
from tests.laws.engine_laws import Reference, random_table, table_model
from tests.scripted import (
    Branches,
    Script,
    ScriptedDrafter,
    Watched,
    chain,
    checked_rounds,
    cycle,
    noise,
)

VOCAB_SIZE = 6
KINDS = list(Proposal)
PROMPT = (1, 2, 3, 1, 2)
LAWS = random_table(VOCAB_SIZE, order=2, seed=1)
DRAFT_LAWS = random_table(VOCAB_SIZE, order=1, seed=2)
TARGET, DRAFT = table_model(LAWS), table_model(DRAFT_LAWS)
SAMPLING = GenerationOptions(temperature=0.9, seed=3, max_new_tokens=24)


def answer(engine: Engine, prompt: Sequence[int], options: GenerationOptions) -> tuple[Any, ...]:
    """What must be equal: the ids, and why the answer ended."""
    result = engine.generate(prompt, options)
    return result.token_ids, result.finish_reason, result.stopped_by


def assert_identical(engine: Engine, prompt: Sequence[int], options: GenerationOptions) -> None:
    plain = answer(engine.without_drafts(), prompt, options)
    assert answer(engine, prompt, options) == plain
    tokens = [t for step in checked_rounds(engine, prompt, options) for t in step.token_ids]
    assert tuple(tokens) == plain[0]


def drafters(draft: TableModel = DRAFT) -> dict[str, Drafter]:
    models = {kind.value: DraftModelDrafter(draft, kind) for kind in KINDS}
    return {**models, "ngram": NgramDrafter(min_match=1, max_match=3)}


every_drafter = pytest.mark.parametrize("name", drafters())


# --- anything at all --------------------------------------------------------------------------------

tokens = st.integers(0, VOCAB_SIZE - 1)
prompts = st.lists(tokens, min_size=1, max_size=8)
tables = st.builds(
    TableModel.random,
    st.just(VOCAB_SIZE),
    st.integers(1, 2),
    seed=st.integers(0, 10_000),
    sharpness=st.sampled_from([0.5, 1.0, 4.0]),
)
requests = st.builds(
    GenerationOptions,
    max_new_tokens=st.integers(4, 24),
    min_new_tokens=st.integers(0, 4),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3]),
    top_p=st.sampled_from([1.0, 0.8, 0.4]),
    min_p=st.sampled_from([0.0, 0.2]),
    repetition_penalty=st.sampled_from([1.0, 1.05, 1.3, 0.9]),
    presence_penalty=st.sampled_from([0.0, 0.5, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -2.0, 2.0]),
    logit_bias=st.dictionaries(tokens, st.sampled_from([-1.0, 2.0]), max_size=2),
    bad_words=st.lists(st.lists(tokens, min_size=2, max_size=3), max_size=1),
    suppress_tokens=st.lists(tokens, max_size=1),
    eos_token_ids=st.lists(tokens, max_size=1),
    ignore_eos=st.booleans(),
    seed=st.integers(-(2**63), 2**64),
    choice=st.integers(0, 3),
)
k_configs = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@settings(max_examples=200, deadline=None)
@given(tables, tables, st.sampled_from(KINDS), k_configs, prompts, requests)
def test_any_draft_model(
    target: TableModel,
    draft: TableModel,
    kind: Proposal,
    widths: list[int],
    prompt: list[int],
    options: GenerationOptions,
) -> None:
    drafter = Watched(DraftModelDrafter(draft, kind))
    assert_identical(Engine(target, drafter, FixedPolicy(widths)), prompt, options)


@settings(max_examples=100, deadline=None)
@given(tables, st.integers(1, 3), st.integers(0, 3), k_configs, prompts, requests)
def test_any_ngram_drafter(
    target: TableModel,
    least: int,
    more: int,
    widths: list[int],
    prompt: list[int],
    options: GenerationOptions,
) -> None:
    drafter = Watched(NgramDrafter(least, least + more))
    assert_identical(Engine(target, drafter, FixedPolicy(widths)), prompt, options)


@settings(max_examples=60, deadline=None)
@given(prompts, requests, st.integers(1, 24), st.integers(2, 12))
def test_any_context_limit(
    prompt: list[int], options: GenerationOptions, room: int, draft_room: int
) -> None:
    """Of the target, and of a draft model whose own context is shorter."""
    generator = torch.Generator().manual_seed(room)
    laws = torch.rand((2, VOCAB_SIZE, VOCAB_SIZE), generator=generator).softmax(-1)
    target = TableModel(laws[0], context_length=len(prompt) + room)
    draft = TableModel(laws[1], context_length=draft_room)
    engine = Engine(target, Watched(DraftModelDrafter(draft)), FixedPolicy("2,2,1,1"))
    assert_identical(engine, prompt, options)


# --- trees of any shape -----------------------------------------------------------------------------


def random_tree(seed: int, num_nodes: int) -> Branches:
    """Parents in level order, tokens at random; siblings may repeat."""
    generator = random.Random(seed)
    parents = [0]
    while len(parents) < num_nodes:
        parents.append(generator.randint(parents[-1], len(parents)))
    return [(parent, generator.randrange(VOCAB_SIZE)) for parent in parents]


def siblings_reversed(branches: Branches) -> Branches:
    """The same tree, every node's children in the opposite order."""
    children: dict[int, list[int]] = {}
    for node, (parent, _) in enumerate(branches, start=1):
        children.setdefault(parent, []).insert(0, node)
    order = [0]
    for node in order:  # grows while it is read: level order
        order += children.get(node, [])
    return [(order.index(branches[n - 1][0]), branches[n - 1][1]) for n in order[1:]]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), prompts, requests)
def test_the_order_of_nodes_changes_nothing(
    seed: int, num_nodes: int, prompt: list[int], options: GenerationOptions
) -> None:
    """Case 9, but for the mask: nodes are scored by their path, wherever they stand."""

    def script(so_far: Sequence[int]) -> Branches:
        return random_tree(seed + len(so_far), num_nodes)

    def reversed_script(so_far: Sequence[int]) -> Branches:
        return siblings_reversed(script(so_far))

    for each in (script, reversed_script):
        drafter = Watched(ScriptedDrafter(each, max_nodes=num_nodes, branches=True))
        assert_identical(Engine(TARGET, drafter), prompt, options)


def test_reversing_siblings_keeps_the_paths() -> None:
    branches = [(0, 5), (0, 6), (1, 7), (2, 8), (2, 9)]
    assert siblings_reversed(branches) == [(0, 6), (0, 5), (1, 9), (1, 8), (2, 7)]


# --- seeds ------------------------------------------------------------------------------------------


@every_drafter
def test_a_seed_reproduces_and_another_differs(name: str) -> None:
    """Case 47."""
    engine = Engine(TARGET, drafters()[name])
    texts = [engine.generate(PROMPT, SAMPLING, seed=seed).token_ids for seed in (1, 1, 2)]
    choices = [engine.generate(PROMPT, SAMPLING, seed=1, choice=c).token_ids for c in (0, 1)]
    assert texts[0] == texts[1] == choices[0]
    assert texts[0] != texts[2]
    assert choices[0] != choices[1]


@every_drafter
def test_requests_side_by_side_do_not_disturb_each_other(name: str) -> None:
    """Cases 47 and 48: a greedy request and three seeded ones, round by round in turn."""
    engine = Engine(TARGET, drafters()[name])
    options = [replace(SAMPLING, temperature=0.0), *[replace(SAMPLING, seed=s) for s in (1, 2, 3)]]
    streams = [engine.stream(PROMPT, each) for each in options]
    waiting = list(streams)
    while waiting:
        waiting = [stream for stream in waiting if next(stream, None) is not None]
    together = [stream.result().token_ids for stream in streams]
    assert together == [engine.generate(PROMPT, each).token_ids for each in options]


@every_drafter
def test_global_generators_are_left_alone(name: str) -> None:
    """Case 47."""
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    Engine(TARGET, drafters()[name]).generate(PROMPT, SAMPLING)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
    assert before[2] == random.getstate()


@pytest.mark.parametrize("seed", range(5))
def test_rounds_without_a_draft_use_no_noise_up(seed: int) -> None:
    """Case 49: drafts of 0 to 4 tokens in turn, right or at random."""
    options = replace(SAMPLING, seed=seed)
    plain = Engine(TARGET).generate(PROMPT, options).token_ids
    noisy = noise(seed, 4, VOCAB_SIZE)
    scripts: list[Script] = [
        cycle([*PROMPT, *plain], 4),
        lambda so_far: noisy(so_far) if len(so_far) % 2 else [],
    ]
    for script in scripts:
        assert_identical(Engine(TARGET, ScriptedDrafter(script, max_nodes=4)), PROMPT, options)


# --- processors -------------------------------------------------------------------------------------


class Recorder(hf.LogitsProcessor):
    """Keeps every context that it was called with."""

    def __init__(self) -> None:
        self.contexts: list[tuple[int, ...]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.contexts.append(tuple(input_ids[0].tolist()))
        return scores


@every_drafter
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_processors_see_true_texts_and_each_once(name: str, temperature: float) -> None:
    """Case 34: no rejected token, no gap, no repeat."""
    recorder = Recorder()
    engine = Engine(TARGET, drafters()[name], FixedPolicy("2,2,1"))
    options = replace(SAMPLING, temperature=temperature, logits_processors=[recorder])
    text = (*PROMPT, *engine.generate(PROMPT, options).token_ids)
    assert recorder.contexts[: SAMPLING.max_new_tokens] == [
        text[:end] for end in range(len(PROMPT), len(text))
    ]


@every_drafter
def test_penalties_count_every_token_once(name: str) -> None:
    """Case 32: greedy answers equal those of penalties written out by hand."""
    table = random_table(VOCAB_SIZE, 2, seed=5)
    options = GenerationOptions(max_new_tokens=24, repetition_penalty=1.3, frequency_penalty=0.4)
    reference = Reference(table, replace(options, temperature=1.0), PROMPT)
    expected: list[int] = []
    while len(expected) < options.max_new_tokens:
        expected.append(int(reference.law(tuple(expected)).argmax()))
    engine = Engine(table_model(table), drafters()[name], FixedPolicy("2,1,1"))
    assert list(engine.generate(PROMPT, options).token_ids) == expected


# --- forbidden tokens -------------------------------------------------------------------------------

FORBIDDING = [{"suppress_tokens": [3]}, {"bad_words": [[3]]}, {"bad_words": [[2, 3]]}]


@pytest.mark.parametrize("forbidding", FORBIDDING, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ngram_drafts_are_cut_before_a_forbidden_token(
    forbidding: dict[str, Any], temperature: float
) -> None:
    """Case 36: every copy of 1, 2, 3 stops before the 3."""
    drafter = Watched(NgramDrafter(min_match=1, max_match=3))
    engine = Engine(TARGET, drafter)
    prompt = [1, 2, 3, 4, 1, 2, 3, 5, 1]
    options = replace(SAMPLING, temperature=temperature, **forbidding)
    assert_identical(engine, prompt, options)
    assert any(tree.num_drafted for tree in drafter.drafts)
    for tree in drafter.drafts:
        paths = [(tree.token_ids[0], *tree.path_tokens(node)) for node in range(1, len(tree))]
        assert not any(path[-2:] == (2, 3) for path in paths)


@pytest.mark.parametrize("kind", [Proposal.SAMPLED, Proposal.RESAMPLED])
@pytest.mark.parametrize("forbidding", FORBIDDING[:2], ids=str)
def test_sampled_drafts_have_no_mass_on_a_forbidden_token(
    forbidding: dict[str, Any], kind: Proposal
) -> None:
    """Case 36: masked before the draw, so the reported law is the one drawn from."""
    drafter = Watched(DraftModelDrafter(DRAFT, kind))
    engine = Engine(TARGET, drafter, FixedPolicy("2,2"), verifier("rejection"))
    result = engine.generate(PROMPT, replace(SAMPLING, **forbidding))
    laws = [law for tree in drafter.drafts for law in tree.laws.values()]
    assert laws
    for law in laws:
        assert law[3] == 0
        assert float(law.sum()) == pytest.approx(1, abs=1e-12)  # a sum of six float64 quotients
    assert 3 not in result.token_ids


# --- rows that are not finite -----------------------------------------------------------------------


class PoisonedModel(TableModel):
    """Gives rows that are not finite after some texts."""

    def __init__(
        self, laws: np.ndarray, poisons: Callable[[Sequence[int]], bool], values: list[float]
    ) -> None:
        super().__init__(torch.from_numpy(laws))
        self._poisons, self._values = poisons, values

    def logits_after(self, token_ids: Sequence[int]) -> Tensor:
        row = super().logits_after(token_ids)
        if self._poisons(token_ids):
            row = row.clone()
            row[: len(self._values)] = torch.tensor(self._values, dtype=row.dtype)
        return row


POISONS = {
    "one NaN": [math.nan],
    "all NaN": [math.nan] * VOCAB_SIZE,
    "one inf": [math.inf],
    "all -inf": [-math.inf] * VOCAB_SIZE,
    "inf and -inf": [math.inf, -math.inf],
}
every_poison = pytest.mark.parametrize("values", POISONS.values(), ids=POISONS)
every_temperature = pytest.mark.parametrize("temperature", [0.0, 1.0])


@every_poison
@every_temperature
@pytest.mark.parametrize("kind", KINDS)
def test_draft_rows_that_are_not_finite_are_discarded(
    kind: Proposal, temperature: float, values: list[float]
) -> None:
    """Case 45 (b)."""
    draft = PoisonedModel(DRAFT_LAWS, lambda text: len(text) % 3 == 0, values)
    engine = Engine(TARGET, Watched(DraftModelDrafter(draft, kind)), FixedPolicy("2,2,1"))
    for top_p in (1.0, 0.7):
        assert_identical(engine, PROMPT, replace(SAMPLING, temperature=temperature, top_p=top_p))


@every_poison
@pytest.mark.parametrize("name", ["rejection", "traversal"])
def test_sampling_verifiers_survive_such_draft_rows(name: str, values: list[float]) -> None:
    draft = PoisonedModel(DRAFT_LAWS, lambda text: len(text) % 3 == 0, values)
    drafter = DraftModelDrafter(draft, Proposal.SAMPLED)
    engine = Engine(TARGET, drafter, FixedPolicy("2,2,1"), verifier(name))
    result = engine.generate(PROMPT, SAMPLING)
    assert len(result.token_ids) == SAMPLING.max_new_tokens
    assert all(0 <= token < VOCAB_SIZE for token in result.token_ids)


def collect(rounds: Iterator[Step], emitted: list[int]) -> None:
    """Their tokens, as they come: what was there before an error stays."""
    for step in rounds:
        emitted += step.token_ids


@every_poison
@every_temperature
@pytest.mark.parametrize("poisoned_draft", [False, True])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.7}, {"top_k": 2, "min_p": 0.1}], ids=str)
def test_target_rows_that_are_not_finite_are_an_error(
    options: dict[str, Any], poisoned_draft: bool, temperature: float, values: list[float]
) -> None:
    """Case 45 (a) and (c): what came before is right, and the message says where it broke."""
    broken_at = len(PROMPT) + 7
    target = PoisonedModel(LAWS, lambda text: len(text) >= broken_at, values)
    draft = PoisonedModel(DRAFT_LAWS, lambda text: poisoned_draft and len(text) % 3 == 0, values)
    engine = Engine(target, Watched(DraftModelDrafter(draft)), FixedPolicy("2,1"))
    request = replace(SAMPLING, temperature=temperature, **options)
    emitted: list[int] = []
    with pytest.raises(NumericsError, match=f"position {broken_at}"):
        collect(checked_rounds(engine, PROMPT, request), emitted)
    right = Engine(TARGET).generate(PROMPT, request).token_ids
    assert tuple(emitted) == right[: len(emitted)]
    assert len(emitted) >= 7 - 2  # all rounds but the one that broke


@every_poison
@every_temperature
def test_such_a_row_behind_a_rejected_token_is_no_error(
    temperature: float, values: list[float]
) -> None:
    """Token 5 is only ever drafted, and no law behind it is read."""
    target = PoisonedModel(LAWS, lambda text: text[-1] == 5, values)
    engine = Engine(target, ScriptedDrafter(lambda so_far: chain([5, 5]), max_nodes=2))
    options = replace(SAMPLING, temperature=temperature, suppress_tokens=[5])
    expected = Engine(TARGET).generate(PROMPT, options).token_ids
    assert engine.generate(PROMPT, options).token_ids == expected


# --- one drafter, many texts ------------------------------------------------------------------------


def test_an_ngram_drafter_knows_nothing_of_earlier_texts() -> None:
    """Case 58: the text was cut, changed in the middle, or grew between two calls."""
    drafter = NgramDrafter(min_match=1, max_match=3)
    engine = Engine(TARGET, drafter)
    text = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
    for prompt in (text, text[:5], [*text[:3], 0, *text[4:]], text[:1], [*text, *text], text):
        used = engine.generate(prompt, SAMPLING)
        fresh = Engine(TARGET, NgramDrafter(min_match=1, max_match=3)).generate(prompt, SAMPLING)
        assert used.token_ids == fresh.token_ids
        assert used.stats.drafted_tokens == fresh.stats.drafted_tokens
