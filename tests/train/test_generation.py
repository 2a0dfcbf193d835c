"""Conversations written in lockstep are those that the model would have written alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.errors import ModelError
from foredraft.train.corpus import Corpus, CorpusWriter, Sample
from foredraft.train.generation import choose, generate_corpus, run_scripts
from foredraft.train.lockstep import LockstepDecoder, lockstep_attention
from foredraft.train.scripts import Draw, Given, Mixture, Script, answers, conversation
from foredraft.train.templates import ChatFrame
from tests import tiny_models

FRAME = ChatFrame(
    user_opening=[1, 5, 6],
    between=[3, 7, 8],
    next_user=[9, 10],
    user_end_ids=(3, *range(20, 36)),  # many, so that turns of a random model end
    assistant_end_ids=(3, 2, *range(20, 36)),
)
MIXTURE = Mixture(max_user_tokens=12, max_reply_tokens=16, max_length=60, more_turns=0.7)
LED = replace(
    MIXTURE,
    openings=((), (40, 41), (42,)),
    follow_ups=((), (50, 51, 52), (53,)),
    max_length=120,
)
"""Users who begin as they like, or are led by a few first words."""
FAMILIES = (
    tiny_models.tiny_llama,
    tiny_models.tiny_mistral,
    tiny_models.tiny_gemma3,
    tiny_models.tiny_eager_llama,
)


def alone(model: Any, ids: list[int]) -> torch.Tensor:
    """Logits of the last token, without any cache or attention of ours."""
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
    return logits


@pytest.mark.parametrize("make", FAMILIES)
def test_every_row_of_every_cohort_scores_as_if_alone(make: Callable[[], Any]) -> None:
    model = make()
    random = torch.Generator().manual_seed(0)
    texts = torch.randint(3, 97, (5, 50), generator=random)
    with lockstep_attention(model):
        decoder = LockstepDecoder(model)
        old = decoder.start(texts[:3, :4])
        logits = [decoder.step([old], texts[:3, i : i + 1]) for i in range(4, 12)]
        young = decoder.start(texts[3:, :1])
        for i in range(12, 49):
            ids = torch.cat([texts[:3, i : i + 1], texts[3:, i - 11 : i - 10]])
            logits.append(decoder.step([old, young], ids))
        old.keep([0, 2])
        ids = torch.cat([texts[[0, 2], 49:50], texts[3:, 38:39]])
        last = decoder.step([old, young], ids)
    for row, length in ((0, 12), (1, 12), (2, 12)):
        torch.testing.assert_close(logits[7][row], alone(model, texts[row, :length].tolist()))
    expected = [texts[0, :50], texts[2, :50], texts[3, :39], texts[4, :39]]
    for got, text in zip(last, expected, strict=True):
        torch.testing.assert_close(got, alone(model, text.tolist()), atol=1e-4, rtol=1e-4)


def replay(model: Any, script: Script) -> Sample | None:
    """A script with a whole forward pass for each token."""
    ids: list[int] = []
    asked = next(script)
    while True:
        token = (
            asked.token_id
            if isinstance(asked, Given)
            else choose(alone(model, ids)[None], [asked])[0]
        )
        if isinstance(asked, Given) and asked.replaces:
            ids.pop()
        ids.append(token)
        try:
            asked = script.send(token)
        except StopIteration as end:
            sample: Sample | None = end.value
            if sample is not None:  # the model saw what the sample says
                assert ids[: len(sample.token_ids)] == sample.token_ids.tolist()
            return sample


@pytest.mark.parametrize(
    ("num_rows", "mixture"), [(1, MIXTURE), (4, MIXTURE), (9, MIXTURE), (4, LED)]
)
def test_conversations_do_not_depend_on_what_shares_their_batch(
    num_rows: int, mixture: Mixture
) -> None:
    model = tiny_models.tiny_llama()
    scripts = [conversation(FRAME, mixture, 7, number) for number in range(9)]
    with lockstep_attention(model):
        samples, dropped = run_scripts(model, scripts, num_rows)[:2]
    expected = [replay(model, conversation(FRAME, mixture, 7, number)) for number in range(9)]
    kept = [sample for sample in expected if sample is not None]
    assert dropped == 9 - len(kept)
    assert [s.token_ids.tolist() for s in samples] == [s.token_ids.tolist() for s in kept]
    assert [s.spans for s in samples] == [s.spans for s in kept]


def test_spans_are_the_replies_and_nothing_else() -> None:
    model = tiny_models.tiny_llama()
    scripts = [conversation(FRAME, MIXTURE, 1, number) for number in range(60)]
    with lockstep_attention(model):
        samples, _ = run_scripts(model, scripts, 16)[:2]
    assert any(len(sample.spans) > 1 for sample in samples)
    for sample in samples:
        ids = sample.token_ids.tolist()
        assert ids[:3] == FRAME.user_opening
        assert len(ids) <= MIXTURE.max_length
        for first, stop in sample.spans:
            assert ids[first - 3 : first] == FRAME.between
            assert 0 < stop - first <= MIXTURE.max_reply_tokens
            ends = [i for i in range(first, stop) if ids[i] in FRAME.assistant_end_ids]
            assert ends in ([], [stop - 1])
        assert all(ids[stop : stop + 2] == FRAME.next_user for _, stop in sample.spans[:-1])


def play(script: Script) -> list[tuple[int, ...]]:
    """What is given before each turn that is drawn, when each is of one token and its end."""
    given: list[list[int]] = [[]]
    drawn = itertools.cycle((60, 3, 70, 3))
    asked = next(script)
    while True:
        if isinstance(asked, Given):
            token = asked.token_id
            given[-1].append(token)
        else:
            token = next(drawn)
            given += [[]] if given[-1] else []
        try:
            asked = script.send(token)
        except StopIteration:
            return [tuple(tokens) for tokens in given if tokens]


def led(texts: tuple[tuple[int, ...], ...], before: list[int]) -> set[tuple[int, ...]]:
    """Beginnings behind what the template gives."""
    return {(*before, *text) for text in texts}


@pytest.mark.parametrize("mixture", [MIXTURE, LED], ids=["alone", "led"])
def test_each_turn_of_the_user_begins_as_the_mixture_says(mixture: Mixture) -> None:
    plays = [play(conversation(FRAME, mixture, 3, number)) for number in range(60)]
    assert {turns[0] for turns in plays} == led(mixture.openings, FRAME.user_opening)
    later = {turn for turns in plays for turn in turns[2::2]}
    assert later == led(mixture.follow_ups, FRAME.next_user)
    assert {turn for turns in plays for turn in turns[1::2]} == {tuple(FRAME.between)}


def test_a_conversation_follows_from_seed_and_number() -> None:
    def plays(seed: int) -> list[list[tuple[int, ...]]]:
        return [play(conversation(FRAME, LED, seed, number)) for number in range(12)]

    assert plays(1) == plays(1) != plays(2)
    assert len({tuple(turns) for turns in plays(1)}) > 6


def test_given_prompts_are_answered_in_turn() -> None:
    model = tiny_models.tiny_llama()
    prompts = [[1, 40, 41, 3, 7, 8], [9, 10, 42, 3, 7, 8]]
    script = answers(FRAME, prompts, Mixture(greedy_share=1, max_reply_tokens=200), 0, 0)
    with lockstep_attention(model):
        samples, dropped = run_scripts(model, [script], 1)[:2]
    assert dropped == 0
    ids, (first, *_) = samples[0].token_ids.tolist(), samples[0].spans
    assert ids[: first[0]] == prompts[0]
    for position in range(first[0], first[1]):
        assert ids[position] == int(alone(model, ids[:position]).argmax())


def test_a_prompt_that_leaves_no_room_is_dropped() -> None:
    mixture = Mixture(max_length=10)
    scripts = [answers(FRAME, [[1] * length], mixture, 0, 0) for length in (10, 4, 11)]
    model = tiny_models.tiny_llama()
    with lockstep_attention(model):
        samples, dropped = run_scripts(model, scripts, 4)[:2]
    assert dropped == 2
    assert [len(sample.token_ids) <= 10 for sample in samples] == [True]


def test_a_reply_that_ends_with_another_token_than_the_templates_ends_the_conversation() -> None:
    script = conversation(FRAME, Mixture(more_turns=0.999, greedy_share=1), 0, 0)
    drawn = iter([51, 3, 52, 3, 51, 3, 52, 2])  # the template's own end, then another
    asked = next(script)
    while True:
        token = asked.token_id if isinstance(asked, Given) else next(drawn)
        try:
            asked = script.send(token)
        except StopIteration as end:
            sample = end.value
            break
    assert len(sample.spans) == 2
    assert sample.token_ids[-1] == 2


def test_a_run_that_was_cut_ends_with_the_corpus_of_a_whole_one(tmp_path: Path) -> None:
    model = tiny_models.tiny_llama()

    def scripts(shard: int) -> list[Script]:
        return [conversation(FRAME, MIXTURE, 5, shard * 6 + row) for row in range(6)]

    def cut(tokens: int) -> None:
        if Corpus(tmp_path / "cut").num_tokens:
            raise KeyboardInterrupt

    facts = {"vocab_size": 97}
    generate_corpus(model, scripts, CorpusWriter(tmp_path / "whole", facts), 500, 4)
    with pytest.raises(KeyboardInterrupt):
        generate_corpus(model, scripts, CorpusWriter(tmp_path / "cut", facts), 500, 4, cut)
    assert model.config._attn_implementation == "sdpa"
    generate_corpus(model, scripts, CorpusWriter(tmp_path / "cut", facts), 500, 4)
    whole, resumed = Corpus(tmp_path / "whole"), Corpus(tmp_path / "cut")
    assert whole.manifest == resumed.manifest
    assert whole.num_tokens >= 500
    assert [s.token_ids.tolist() for s in whole] == [s.token_ids.tolist() for s in resumed]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.3, 2), st.floats(0.05, 1))
def test_draws_follow_the_nucleus(seed: int, temperature: float, top_p: float) -> None:
    """Evenly spaced random numbers pick each token as often as its share of the nucleus says."""
    logits = torch.from_numpy(np.random.default_rng(seed).normal(0, 2, 12)).float()
    uniforms = [(i + 0.5) / 400 for i in range(400)]
    draws = [Draw(temperature, top_p, u) for u in uniforms]
    tokens = choose(logits.expand(400, -1), draws)
    law = (logits / temperature).softmax(-1)
    order = law.argsort(descending=True)
    before = law[order].cumsum(-1) - law[order]
    nucleus = torch.zeros(12)
    nucleus[order[before < top_p]] = law[order[before < top_p]]
    shares = torch.bincount(torch.tensor(tokens), minlength=12) / 400
    torch.testing.assert_close(shares, nucleus / nucleus.sum(), atol=3e-3, rtol=0)


def test_greedy_rows_take_the_best_token_and_rows_without_a_draw_nothing() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 0.0, 0.0], [torch.nan, 0.0, 0.0]])
    assert choose(logits, [Draw(0.0), Draw(0.0), None]) == [1, 0, 0]
    with pytest.raises(ModelError, match="not finite"):
        choose(logits, [Draw(0.0), None, Draw(1.0)])


def spans_of(script: Script, reply: list[int]) -> tuple[tuple[int, int], ...]:
    """What is labelled when these tokens are drawn again and again."""
    asked, count = next(script), 0
    while True:
        count += isinstance(asked, Draw)
        token = asked.token_id if isinstance(asked, Given) else reply[(count - 1) % len(reply)]
        try:
            asked = script.send(token)
        except StopIteration as end:
            return end.value.spans


def test_replies_that_repeat_themselves_end() -> None:
    mixture = Mixture(greedy_share=1, max_reply_tokens=500, max_length=600, max_looping=20)
    script = answers(FRAME, [[1, 5]], mixture, 0, 0)
    (first, stop), *_ = spans_of(script, [40, 41, 42, 43])
    assert stop - first == 4 + 8 - 1 + 20  # the first 8-gram that repeats ends with the 12th token


def neo() -> Any:
    return tiny_models.tiny_gpt_neo(8)


@pytest.mark.parametrize("make", [neo, tiny_models.tiny_bloom])
def test_models_whose_attention_cannot_be_exchanged_are_refused(make: Callable[[], Any]) -> None:
    model = make()
    before = model.config._attn_implementation
    with pytest.raises(ModelError, match="answers of your own"), lockstep_attention(model):
        pass
    assert model.config._attn_implementation == before


def test_an_opening_that_does_not_fit_ends_the_conversation() -> None:
    """Nothing is given to the model past the length of a conversation."""
    long = tuple(range(40, 40 + MIXTURE.max_length))
    script = conversation(FRAME, replace(MIXTURE, openings=(long,)), 0, 0)
    steps = list(
        itertools.islice(script, MIXTURE.max_length)
    )  # a `next` sends no token, and none is drawn
    assert steps
    assert all(isinstance(step, Given) for step in steps)
    assert len(steps) < MIXTURE.max_length
