"""`/v1/completions` through the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from foredraft import Result
from tests.serve.live import CONTEXT, MODEL, PLAIN, TREE, Live, engines, live, tokenizer

PROMPT = "the cat sat"
IDS = [60, 70, 80, 90]
BASE: dict[str, Any] = {"max_tokens": 12, "seed": 7, "temperature": 1.0}
OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "seed": 7, "temperature": 1.0}
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    running: Live
    with live() as running:
        yield running.client()


def expected(prompt: Any, **changes: Any) -> Result:
    return engines()[PLAIN].generate(prompt, **{**OPTIONS, **changes})


def asked(client: OpenAI, **fields: Any) -> Any:
    return client.completions.create(**{"model": MODEL, "prompt": PROMPT, **BASE, **fields})


def streamed(client: OpenAI, **fields: Any) -> tuple[dict[int, str], dict[int, str]]:
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for chunk in asked(client, stream=True, **fields):
        for choice in chunk.choices:
            assert choice.index not in reasons, "a piece after the last"
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.finish_reason is not None:
                reasons[choice.index] = choice.finish_reason
    return texts, reasons


PROMPTS: dict[str, tuple[Any, list[Any]]] = {
    "text": (PROMPT, [PROMPT]),
    "ids": (IDS, [IDS]),
    "texts": (["the cat", "on the mat"], ["the cat", "on the mat"]),
    "lists of ids": ([IDS, IDS[:1]], [IDS, IDS[:1]]),
}


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_come_in_four_forms(client: OpenAI, name: str, echo: bool) -> None:
    prompt, meant = PROMPTS[name]
    texts = []
    for one in meant:
        own = one if isinstance(one, str) else tokenizer().decode(one)
        for choice in range(2):
            texts.append((own if echo else "") + expected(one, choice=choice).text)
    response = asked(client, prompt=prompt, n=2, echo=echo)
    assert [choice.text for choice in response.choices] == texts
    assert [choice.index for choice in response.choices] == list(range(len(texts)))
    found, reasons = streamed(client, prompt=prompt, n=2, echo=echo)
    assert found == dict(enumerate(texts))
    assert set(reasons) == set(found)
    num_prompt = sum(len(expected(one).prompt_ids) for one in meant)
    assert response.usage.prompt_tokens == num_prompt


def test_characters_that_end_lines_elsewhere_end_no_event() -> None:
    """Clients that split a stream's text by `str.splitlines` would get broken JSON."""
    prompt = "a\u0085b\u2028c\u2029d\x1ce"
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "echo": True, "stream": True}
    with live() as running, running.http.stream("POST", "/v1/completions", json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    first, *_, done = [line.removeprefix("data: ") for line in lines]
    assert json.loads(first)["choices"][0]["text"].startswith(prompt)
    assert done == "[DONE]"


def test_answers_have_16_tokens_where_nothing_is_said(client: OpenAI) -> None:
    response = asked(client, max_tokens=None, extra_body={"ignore_eos": True})
    assert response.usage.completion_tokens == 16


def test_answers_have_what_room_there_is_where_nothing_is_said(client: OpenAI) -> None:
    response = asked(
        client, prompt=[60] * (CONTEXT - 5), max_tokens=None, extra_body={"ignore_eos": True}
    )
    assert response.usage.completion_tokens == 5


@pytest.mark.parametrize("method", [PLAIN, TREE])
@pytest.mark.parametrize("count", [0, 3])
def test_echoed_logprobs_are_the_engines(client: OpenAI, method: str, count: int) -> None:
    result = expected(PROMPT, logprobs=count, prompt_logprobs=count)
    response = asked(
        client, echo=True, logprobs=count, extra_body={"foredraft": {"method": method}}
    )
    choice = response.choices[0]
    reads = (*result.prompt_logprobs, *result.logprobs)
    found = choice.logprobs
    assert len(found.tokens) == len(reads) == response.usage.total_tokens
    assert found.token_logprobs[0] is None
    assert found.top_logprobs[0] is None
    for read, value, likeliest in zip(
        reads[1:], found.token_logprobs[1:], found.top_logprobs[1:], strict=True
    ):
        assert read is not None
        assert value == pytest.approx(read.logprob, abs=TOLERANCE)
        assert count <= len(likeliest) <= count + 1
        assert max(likeliest.values()) >= value - TOLERANCE


def test_offsets_say_where_tokens_start(client: OpenAI) -> None:
    prompt = "the cat é sat"
    choice = asked(client, echo=True, logprobs=0, prompt=prompt, max_tokens=1).choices[0]
    *tokens, _ = choice.logprobs.tokens
    halves = [i for i, token in enumerate(tokens) if token.startswith("bytes:")]
    assert [tokens[i] for i in halves] == ["bytes:\\xc3", "bytes:\\xa9"]
    offsets = choice.logprobs.text_offset
    for i, token in enumerate(tokens):
        text = prompt[offsets[i] : offsets[i + 1]]
        assert text == ("" if i == halves[0] else "é" if i == halves[1] else token)


def test_streamed_logprobs_are_the_whole_ones_in_pieces(client: OpenAI) -> None:
    whole = asked(client, echo=True, logprobs=2).choices[0].logprobs
    parts: dict[str, list[Any]] = {"tokens": [], "text_offset": [], "token_logprobs": []}
    for chunk in asked(client, echo=True, logprobs=2, stream=True):
        for choice in chunk.choices:
            for name in parts if choice.logprobs else ():
                parts[name] += getattr(choice.logprobs, name)
    assert parts["tokens"] == whole.tokens
    assert parts["text_offset"] == whole.text_offset
    assert parts["token_logprobs"] == pytest.approx(whole.token_logprobs)


def test_a_prompt_of_one_token_is_echoed_with_nothing_to_say_of_it(client: OpenAI) -> None:
    found = asked(client, prompt=[60], echo=True, logprobs=1, max_tokens=1).choices[0].logprobs
    assert found.token_logprobs[0] is None
    assert len(found.tokens) == 2
