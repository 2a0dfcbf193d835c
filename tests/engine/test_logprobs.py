"""Reported log-probabilities are those of one pass of the model over the whole text, whatever was drafted."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from foredraft import Engine, GenerationOptions, Result
from foredraft.backends.hf import HFTarget
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engine.logprobs import PROMPT_ROWS, logprobs_of
from foredraft.methods import parse_method
from foredraft.policies.fixed import FixedPolicy
from foredraft.tree import Proposal
from foredraft.verifiers.rejection import RejectionVerifier
from tests.scripted import ScriptedDrafter, cycle, right, with_siblings
from tests.tiny_models import VOCAB_SIZE, tiny_llama

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5]
LENGTH = 24
TOLERANCE = 1e-4


@cache
def target() -> HFTarget:
    return HFTarget(tiny_llama())


@cache
def draft() -> HFTarget:
    return HFTarget(tiny_llama(seed=1))


@cache
def greedy_text() -> tuple[int, ...]:
    return (*PROMPT, *Engine(target()).generate(PROMPT, max_new_tokens=LENGTH).token_ids)


def scripted(script: Any, max_nodes: int, branches: bool = False) -> Engine:
    return Engine(target(), ScriptedDrafter(script, max_nodes, branches))


def lossy() -> Engine:
    parts = parse_method("mcsd-improved-lossy:roots=topk").build(draft())
    return Engine(target(), parts.drafter, parts.policy, parts.verifier)


def rejecting() -> Engine:
    drafter = DraftModelDrafter(draft(), Proposal.SAMPLED)
    return Engine(target(), drafter, FixedPolicy("2,2"), RejectionVerifier())


ENGINES: dict[str, Callable[[], Engine]] = {
    "plain": lambda: Engine(target()),
    "ngram": lambda: Engine(target(), NgramDrafter()),
    "cycle": lambda: scripted(cycle(greedy_text(), 5), 5),
    "tree": lambda: scripted(
        with_siblings(right(greedy_text(), 2, 4, VOCAB_SIZE), 3, 1, VOCAB_SIZE), 12, branches=True
    ),
    "draft model's tree": lambda: Engine(
        target(), DraftModelDrafter(draft()), FixedPolicy("3,2,1")
    ),
    "rejection": rejecting,
    "open roots": lossy,
}


def reference(token_ids: tuple[int, ...]) -> Tensor:
    """Log-probabilities [T - 1, V] of tokens 1 .. T - 1, from one pass without a cache."""
    with torch.no_grad():
        logits = target().model(torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits[:-1, :VOCAB_SIZE].float().log_softmax(-1)


def check(result: Result, count: int) -> None:
    """Every token's own log-probability and the likeliest of its place are those of the reference."""
    text = (*result.prompt_ids, *result.token_ids)
    laws = reference(text)
    assert [t.token_id for t in result.logprobs] == list(result.token_ids)
    for place, read in enumerate((*result.prompt_logprobs, *result.logprobs)):
        if place == 0:
            assert read is None
            continue
        assert read is not None
        law = laws[place - 1]
        assert read.token_id == text[place]
        assert read.logprob == pytest.approx(float(law[text[place]]), abs=TOLERANCE)
        assert len(read.top) == count
        values = [value for _, value in read.top]
        assert values == sorted(values, reverse=True)
        assert values == pytest.approx(law.topk(count).values.tolist(), abs=TOLERANCE)
        for token_id, value in read.top:
            assert value == pytest.approx(float(law[token_id]), abs=TOLERANCE)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ENGINES)
def test_logprobs_are_the_models_own_at_every_token(name: str, temperature: float) -> None:
    options = GenerationOptions(
        max_new_tokens=LENGTH,
        temperature=temperature,
        seed=3,
        ignore_eos=True,
        top_k=20,
        frequency_penalty=0.5,
        logprobs=4,
        prompt_logprobs=4,
    )
    result = ENGINES[name]().generate(PROMPT, options)
    assert len(result.logprobs) == LENGTH
    check(result, 4)


@pytest.mark.parametrize("name", ["ngram", "draft model's tree", "rejection", "open roots"])
def test_answers_of_a_batch_report_their_own(name: str) -> None:
    prompts = [PROMPT[:length] for length in (1, 4, 9)]
    results = ENGINES[name]().generate_batch(
        prompts, max_new_tokens=10, temperature=1.0, seed=3, logprobs=2, prompt_logprobs=2
    )
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.prompt_ids) == prompt
        check(result, 2)


@pytest.mark.parametrize("name", ["plain", "tree", "open roots"])
def test_asking_for_logprobs_changes_no_token(name: str) -> None:
    options = GenerationOptions(max_new_tokens=LENGTH, temperature=1.0, seed=5)
    without = ENGINES[name]().generate(PROMPT, options)
    asked = ENGINES[name]().generate(PROMPT, options, logprobs=2)
    assert asked.token_ids == without.token_ids
    assert without.logprobs == without.prompt_logprobs == asked.prompt_logprobs == ()


def test_a_prompt_of_one_token_has_nothing_to_report() -> None:
    result = Engine(target(), NgramDrafter()).generate(
        [5], max_new_tokens=4, logprobs=0, prompt_logprobs=1
    )
    assert result.prompt_logprobs == (None,)
    assert all(token.top == () for token in result.logprobs)


def test_a_long_prompt_is_read_in_several_passes() -> None:
    prompt = [3 + (7 * i) % 90 for i in range(2 * PROMPT_ROWS + 5)]
    result = Engine(target()).generate(prompt, max_new_tokens=3, logprobs=2, prompt_logprobs=2)
    assert len(result.prompt_logprobs) == len(prompt)
    check(result, 2)


def test_an_answer_that_a_stop_cuts_reports_its_own_tokens_only() -> None:
    text = greedy_text()[len(PROMPT) :]
    engine = scripted(cycle(greedy_text(), 5), 5)
    result = engine.generate(PROMPT, max_new_tokens=LENGTH, eos_token_ids=[text[7]], logprobs=0)
    assert result.finish_reason == "stop"
    assert [t.token_id for t in result.logprobs] == list(result.token_ids)


def test_more_tokens_than_there_are_is_all_of_them() -> None:
    (read,) = logprobs_of(torch.zeros(1, 3), [1], 9)
    assert sorted(token for token, _ in read.top) == [0, 1, 2]
