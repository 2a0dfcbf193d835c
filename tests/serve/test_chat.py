"""Chats through the official client: every field has the effect that the engine's own option has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from foredraft import Result
from tests.serve.live import CONTEXT, MODEL, NGRAM, PLAIN, TREE, Live, engines, live

MESSAGES: Any = [{"role": "user", "content": "the cat sat on the mat"}]
SEED = 7
BASE: dict[str, Any] = {"max_tokens": 24, "seed": SEED, "temperature": 1.0}
OPTIONS: dict[str, Any] = {"max_new_tokens": 24, "seed": SEED, "temperature": 1.0}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Live) -> OpenAI:
    return server.client()


def expected(messages: Any = MESSAGES, method: str = PLAIN, **changes: Any) -> Result:
    """What the engine itself answers."""
    return engines()[method].generate(messages, **{**OPTIONS, **changes})


def asked(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(
        **{"model": MODEL, "messages": MESSAGES, **BASE, **fields}
    )


def streamed(client: OpenAI, **fields: Any) -> tuple[dict[int, str], dict[int, str], list[Any]]:
    """Texts and finish reasons by choice, and all chunks."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    chunks = list(asked(client, stream=True, **fields))
    for chunk in chunks:
        for choice in chunk.choices:
            assert choice.index not in reasons, "a piece after the last"
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason is not None:
                reasons[choice.index] = choice.finish_reason
                assert not choice.delta.content
    return texts, reasons, chunks


def extra(**fields: Any) -> dict[str, Any]:
    """Fields that the official client knows nothing of."""
    return {"extra_body": fields}


FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "max_tokens": ({"max_tokens": 5}, {"max_new_tokens": 5}),
    "max_completion_tokens": (
        {"max_tokens": None, "max_completion_tokens": 6},
        {"max_new_tokens": 6},
    ),
    "temperature": ({"temperature": 0.4}, {"temperature": 0.4}),
    "greedy": ({"temperature": 0}, {"temperature": 0}),
    "default temperature": ({"temperature": None}, {"temperature": 1.0}),
    "top_p": ({"top_p": 0.3}, {"top_p": 0.3}),
    "seed": ({"seed": 8}, {"seed": 8}),
    "presence_penalty": ({"presence_penalty": 2.0}, {"presence_penalty": 2.0}),
    "frequency_penalty": ({"frequency_penalty": -2.0}, {"frequency_penalty": -2.0}),
    "logit_bias": ({"logit_bias": {"70": 100}}, {"logit_bias": {70: 100}}),
    "stop": ({"stop": "XX"}, {"stop": ["XX"]}),
    "stops": ({"stop": ["XX", "YY"]}, {"stop": ["XX", "YY"]}),
    "top_k": (extra(top_k=2), {"top_k": 2}),
    "min_p": (extra(min_p=0.5), {"min_p": 0.5}),
    "repetition_penalty": (extra(repetition_penalty=3.0), {"repetition_penalty": 3.0}),
    "ignore_eos": (
        {"logit_bias": {"2": 100}, **extra(ignore_eos=True)},
        {"logit_bias": {2: 100}, "ignore_eos": True},
    ),
    "min_tokens": (
        {"logit_bias": {"2": 100}, **extra(min_tokens=9)},
        {"logit_bias": {2: 100}, "min_new_tokens": 9},
    ),
}
WITHOUT_EFFECT_HERE = ("default temperature", "stop", "stops")
"""Named like the base request, or tried where they have one (test_endings)."""


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_has_its_effect(client: OpenAI, name: str) -> None:
    fields, options = FIELDS[name]
    result = expected(**options)
    response = asked(client, **fields)
    assert response.choices[0].message.content == result.text
    assert response.choices[0].finish_reason == result.finish_reason
    assert response.usage.completion_tokens == len(result.token_ids)
    if name not in WITHOUT_EFFECT_HERE:
        assert result.token_ids != expected().token_ids


@pytest.mark.parametrize("name", FIELDS)
def test_streams_are_the_same_text_in_pieces(client: OpenAI, name: str) -> None:
    fields, options = FIELDS[name]
    result = expected(**options)
    texts, reasons, chunks = streamed(client, **fields)
    assert texts == {0: result.text}
    assert reasons == {0: result.finish_reason}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


@pytest.mark.parametrize("stream", [False, True])
def test_each_choice_has_noise_of_its_own(client: OpenAI, stream: bool) -> None:
    texts = [expected(choice=choice).text for choice in range(3)]
    if stream:
        found, _, _ = streamed(client, n=3)
        assert found == dict(enumerate(texts))
    else:
        response = asked(client, n=3)
        assert [c.message.content for c in response.choices] == texts
        assert [c.index for c in response.choices] == [0, 1, 2]
    assert len(set(texts)) == 3


@pytest.mark.parametrize("method", [PLAIN, NGRAM, TREE])
def test_methods_are_chosen_by_the_request_and_change_no_text(client: OpenAI, method: str) -> None:
    response = asked(client, **extra(foredraft={"method": method}))
    assert response.choices[0].message.content == expected().text
    told = response.usage.model_extra["foredraft"]
    assert (told["method"], told["lossless"]) == (method, True)
    assert (told["drafted_tokens"] > 0) == (method == TREE)  # there is nothing to copy here
    assert told["accepted_tokens"] <= response.usage.completion_tokens
    assert told["seed"] == SEED


def test_usage_is_told_at_the_end_of_a_stream_if_asked_for(client: OpenAI) -> None:
    _, _, chunks = streamed(client, stream_options={"include_usage": True})
    *pieces, last = chunks
    whole = asked(client).usage
    assert last.choices == []
    assert all(piece.usage is None and piece.choices for piece in pieces)
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (
        whole.prompt_tokens,
        whole.completion_tokens,
        whole.total_tokens,
    )
    _, _, chunks = streamed(client)
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_a_response_has_what_openai_documents(client: OpenAI) -> None:
    response = asked(client, user="me", store=False, metadata={"a": "b"})
    result = expected()
    assert response.id.startswith("chatcmpl-")
    assert response.object == "chat.completion"
    assert response.model == MODEL
    assert response.created > 1_700_000_000
    assert response.system_fingerprint == asked(client).system_fingerprint
    assert response.choices[0].message.role == "assistant"
    assert response.choices[0].message.refusal is None
    assert response.usage.prompt_tokens == len(result.prompt_ids)
    assert response.usage.total_tokens == len(result.prompt_ids) + len(result.token_ids)


def test_a_seed_that_was_drawn_is_told(client: OpenAI) -> None:
    drawn = asked(client, seed=None)
    seed = drawn.usage.model_extra["foredraft"]["seed"]
    again = asked(client, seed=seed)
    assert again.choices[0].message.content == drawn.choices[0].message.content


@pytest.mark.parametrize(
    ("messages", "meant"),
    [
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "the "}, {"type": "text", "text": "cat"}],
                }
            ],
            [{"role": "user", "content": "the cat"}],
        ),
        (
            [{"role": "developer", "content": "be brief"}, *MESSAGES],
            [{"role": "system", "content": "be brief"}, *MESSAGES],
        ),
    ],
    ids=["parts", "developer"],
)
def test_messages_reach_the_template(client: OpenAI, messages: Any, meant: Any) -> None:
    response = asked(client, messages=messages)
    assert response.choices[0].message.content == expected(meant).text


def test_an_answer_can_be_sent_back_as_the_client_holds_it(client: OpenAI) -> None:
    first = asked(client).choices[0].message
    messages = [*MESSAGES, first.model_dump(), {"role": "user", "content": "on"}]
    plain = [*MESSAGES, {"role": "assistant", "content": first.content}, messages[-1]]
    response = asked(client, messages=messages)
    assert response.choices[0].message.content == expected(plain).text


def test_an_answer_without_a_limit_fills_the_context(client: OpenAI) -> None:
    response = asked(client, max_tokens=None, **extra(ignore_eos=True))
    assert response.choices[0].finish_reason == "length"
    assert response.usage.total_tokens == CONTEXT


def test_the_models_are_listed(client: OpenAI) -> None:
    (card,) = client.models.list().data
    assert card.id == MODEL
    assert client.models.retrieve(MODEL) == card
