"""The request's processors compute what `transformers`' own `generate` computes."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as hf

from foredraft.config import GenerationOptions
from foredraft.errors import ConfigError
from foredraft.sampling.law import RequestLaw
from foredraft.sampling.processors import QuickTopPWarper, resolve_bad_words
from tests.tiny_models import VOCAB_SIZE, tiny_llama

END_TOKENS = (2, 40)


class Parity(hf.LogitsProcessor):
    """A user's processor that reads the context: favours tokens of the parity of the last one."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        even = torch.arange(scores.shape[-1], device=scores.device) % 2 == input_ids[:, -1:] % 2
        return scores + even * 0.75


class InPlace(hf.LogitsProcessor):
    """A user's processor that writes into its argument."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores[:, 7] += 3.0
        return scores


OWN: tuple[Any, ...] = (
    Parity(),
    InPlace(),
    hf.RepetitionPenaltyLogitsProcessor(1.7),
    hf.SequenceBiasLogitsProcessor({(3,): 2.0, (4, 5): -1.0}),
    hf.SuppressTokensLogitsProcessor([11, 12]),
)


@functools.cache
def llama() -> Any:
    return tiny_llama()


def hf_processors(prompt: Sequence[int], options: GenerationOptions) -> Any:
    """The list that `generate` makes of the same request; its own default of top_k=50 is off."""
    sampling = options.temperature > 0
    arguments: dict[str, Any] = {
        "repetition_penalty": float(options.repetition_penalty),
        "min_new_tokens": options.min_new_tokens,
        "bad_words_ids": [list(word) for word in options.bad_words] or None,
        "suppress_tokens": list(options.suppress_tokens) or None,
        "sequence_bias": {(t,): float(b) for t, b in options.logit_bias.items()} or None,
        "logits_processor": list(options.logits_processors),
        "eos_token_id": list(END_TOKENS),
        "do_sample": sampling,
    }
    if sampling:
        arguments |= {"temperature": float(options.temperature), "top_k": options.top_k}
        arguments |= {"top_p": options.top_p, "min_p": options.min_p or None}
    ids = torch.tensor([list(prompt)])
    grab = lambda model, input_ids, logits_processor, **rest: logits_processor  # noqa: E731
    return llama().generate(
        ids,
        attention_mask=torch.ones_like(ids),
        custom_generate=grab,
        max_new_tokens=99,
        **arguments,
    )


def our_law(prompt: Sequence[int], options: GenerationOptions) -> RequestLaw:
    return RequestLaw(
        options, prompt_length=len(prompt), eos_token_ids=END_TOKENS, vocab_size=VOCAB_SIZE
    )


def assert_parity(
    options: GenerationOptions, prompt: Sequence[int], answer: Sequence[int], row: Tensor
) -> None:
    """Every prefix of the answer in turn, by one list each, as in decoding."""
    theirs, ours = hf_processors(prompt, options), our_law(prompt, options)
    for length in range(len(answer) + 1):
        text = [*prompt, *answer[:length]]
        expected = theirs(torch.tensor([text]), row[None].clone())[0]
        before = row.clone()
        assert torch.equal(ours.scores(row, text), expected)
        assert torch.equal(row, before), "the model's logits were written to"


def logits(seed: int, grid: float = 0.0) -> Tensor:
    """Random logits [V]; with a grid, rounded to it, so that there are many ties."""
    row = 3 * torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))
    return (row / grid).round() * grid if grid else row


tokens = st.integers(0, VOCAB_SIZE - 1)
texts = st.lists(tokens, max_size=12)
words = st.lists(tokens, min_size=1, max_size=3).filter(lambda w: w[0] not in END_TOKENS)
biases = st.one_of(st.floats(-5, 5), st.just(-math.inf), st.integers(-3, 3))
requests = st.builds(
    GenerationOptions,
    temperature=st.sampled_from([0, 0.0, 1, 1.0, 0.3, 0.7, 2.5]),
    top_k=st.sampled_from([0, 0, 1, 5, 50, VOCAB_SIZE, 1000]),
    top_p=st.sampled_from([1.0, 1, 0.999, 0.9, 0.75, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0, 0.02, 0.25, 1.0, 1]),
    repetition_penalty=st.sampled_from([1.0, 0.9, 1.05, 1.3, 2]),
    min_new_tokens=st.integers(0, 8),
    logit_bias=st.dictionaries(tokens, biases, max_size=4),
    bad_words=st.lists(words, max_size=4),
    suppress_tokens=st.lists(tokens, max_size=4),
    logits_processors=st.lists(st.sampled_from(OWN), max_size=3),
)


@settings(max_examples=150, deadline=None)
@given(
    options=requests,
    prompt=st.lists(tokens, min_size=1, max_size=6),
    answer=texts,
    seed=st.integers(0, 9999),
    grid=st.sampled_from([0.0, 0.25, 1.0, 3.0]),
)
@example(GenerationOptions(temperature=1.0, top_p=0.75), [1], [], 0, 100.0)
def test_scores_equal_those_of_generate(
    options: GenerationOptions, prompt: list[int], answer: list[int], seed: int, grid: float
) -> None:
    assert_parity(options, prompt, answer, logits(seed, grid))


ALONE: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.7},
    "whole temperature": {"temperature": 2},
    "top-k": {"temperature": 1.0, "top_k": 50},
    "top-k over V": {"temperature": 1.0, "top_k": 10**9},
    "top-p": {"temperature": 1.0, "top_p": 0.6},
    "min-p": {"temperature": 1.0, "min_p": 0.1},
    "all filters": {"temperature": 0.7, "top_k": 50, "top_p": 0.8, "min_p": 0.05},
    "repetition": {"repetition_penalty": 1.3},
    "whole repetition": {"repetition_penalty": 2},
    "rewarded repetition": {"repetition_penalty": 0.9},
    "bias": {"logit_bias": {4: 5, 9: -2.5, 11: -math.inf}},
    "bad words": {"bad_words": [[5], [5, 6], [6, 7, 8]]},
    "suppressed": {"suppress_tokens": (1, 5, 96)},
    "first end": {"min_new_tokens": 3},
    "own": {"logits_processors": [Parity(), InPlace()]},
    "own for a built-in": {"repetition_penalty": 1.3, "logits_processors": [OWN[2]]},
    "own before a built-in": {
        "logit_bias": {4: 5.0},
        "repetition_penalty": 1.3,
        "logits_processors": [Parity(), OWN[3]],
    },
    "one object twice": {"logits_processors": [OWN[0], OWN[0]]},
}


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("grid", [0.0, 1.0])
def test_each_option_alone_equals_generate(name: str, grid: float) -> None:
    options = GenerationOptions(**ALONE[name])
    assert_parity(options, [5, 6, 5], [5, 6, 7, 8, 5, 4], logits(3, grid))


def test_an_own_processor_keeps_the_place_of_the_built_in_it_replaces() -> None:
    """After the repetition penalty, the bias would count in full."""
    own = hf.SequenceBiasLogitsProcessor({(5,): 8.0})
    options = GenerationOptions(
        logit_bias={5: 1.0}, repetition_penalty=2.0, logits_processors=[own]
    )
    row = torch.ones(VOCAB_SIZE)
    assert our_law([5], options).scores(row, [5])[5] == (1 + 8) / 2


def test_a_lone_end_token_is_no_bad_word() -> None:
    """`generate` drops it, and fails if no other word is left; here no other word is needed."""
    row = logits(0)
    alone = our_law([5], GenerationOptions(bad_words=[[END_TOKENS[0]]]))
    assert torch.equal(alone.scores(row, [5]), row)
    assert alone.draft.banned_after([5], []) == frozenset()
    assert_parity(GenerationOptions(bad_words=[[END_TOKENS[0]], [8]]), [5], [6, 8], row)


# --- the two penalties that transformers lacks --------------------------------------------------------


def penalised(row: Tensor, answer: Sequence[int], presence: float, frequency: float) -> Tensor:
    """OpenAI's definition: mu[j] - c[j] * frequency - (c[j] > 0) * presence."""
    row = row.clone()
    for token, count in Counter(answer).items():
        row[token] -= count * frequency + presence
    return row


@settings(max_examples=100, deadline=None)
@given(
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    prompt=st.lists(tokens, min_size=1, max_size=6),
    answer=st.lists(st.integers(0, 5), max_size=20),
    seed=st.integers(0, 999),
)
def test_answer_penalties_count_the_answer_alone(
    presence: float, frequency: float, prompt: list[int], answer: list[int], seed: int
) -> None:
    options = GenerationOptions(presence_penalty=presence, frequency_penalty=frequency)
    row = logits(seed)
    scores = our_law(prompt, options).scores(row, [*prompt, *answer])
    torch.testing.assert_close(scores, penalised(row, answer, presence, frequency))


def test_the_first_token_of_an_answer_is_not_penalised() -> None:
    options = GenerationOptions(presence_penalty=2.0, frequency_penalty=2.0)
    assert torch.equal(our_law([3, 3, 3], options).scores(logits(1), [3, 3, 3]), logits(1))


# --- top-p --------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    top_p=st.one_of(st.floats(0.001, 0.999), st.sampled_from([0.25, 0.5, 0.75])),
    seed=st.integers(0, 9999),
    grid=st.sampled_from([0.0, 0.5, 2.0, 50.0]),
    size=st.sampled_from([1, 2, 3, 97, 5000]),
    keep=st.sampled_from([0, 1, 2, 10]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_quick_top_p_equals_the_sorting_one(
    top_p: float, seed: int, grid: float, size: int, keep: int, dtype: torch.dtype
) -> None:
    scores = 3 * torch.randn(3, size, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    scores = (scores / grid).round() * grid if grid else scores
    if keep:
        scores = hf.TopKLogitsWarper(keep)(None, scores)
    expected = hf.TopPLogitsWarper(top_p)(None, scores)
    assert torch.equal(QuickTopPWarper(top_p)(None, scores), expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_quick_top_p_hides_no_broken_row(bad: float) -> None:
    scores = logits(0)[None].clone()
    scores[0, 9] = bad
    assert not abs(float(QuickTopPWarper(0.5)(None, scores).max())) < math.inf


# --- words --------------------------------------------------------------------------------------------


def test_bad_words_as_text_are_spelled_in_every_way() -> None:
    options = GenerationOptions(bad_words=["ab", (7, 8)])
    spellings = {"ab": [[1, 2], [3], []]}
    assert resolve_bad_words(options, spellings.__getitem__) == ((1, 2), (3,), (7, 8))


def test_bad_words_as_text_need_a_tokenizer() -> None:
    with pytest.raises(ConfigError, match="bad_words='ab' needs a tokenizer"):
        our_law([1], GenerationOptions(bad_words=["ab"]))


@pytest.mark.parametrize(
    "changes",
    [
        {"logit_bias": {97: 1.0}},
        {"suppress_tokens": [97]},
        {"bad_words": [[4, 97]]},
        {"eos_token_ids": [97]},
    ],
    ids=str,
)
def test_ids_outside_the_vocabulary_are_named(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"{next(iter(changes))} names token 97; .*from 0 to 96"):
        our_law([1], GenerationOptions(**changes))
