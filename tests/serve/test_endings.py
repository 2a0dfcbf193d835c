"""Why answers end, streamed or not, with drafts and without; and the log-probabilities of chats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from foredraft import Result
from tests.serve.live import CONTEXT, MODEL, NGRAM, PLAIN, TREE, engines, live

MESSAGES: Any = [{"role": "user", "content": "the cat sat on the mat"}]
BASE: dict[str, Any] = {"max_tokens": 30, "seed": 7, "temperature": 1.0}
OPTIONS: dict[str, Any] = {"max_new_tokens": 30, "seed": 7, "temperature": 1.0}
END = 2
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with live() as running:
        yield running.client()


def expected(**changes: Any) -> Result:
    return engines()[PLAIN].generate(MESSAGES, **{**OPTIONS, **changes})


def asked(
    client: OpenAI, stream: bool, method: str, fields: dict[str, Any]
) -> tuple[str, list[str], Any]:
    """Text, every finish reason that was told, and the usage."""
    own = {"foredraft": {"method": method}, **fields.pop("extra_body", {})}
    body = {"model": MODEL, "messages": MESSAGES, **BASE, **fields, "extra_body": own}
    if not stream:
        response = client.chat.completions.create(**body)
        (choice,) = response.choices
        return choice.message.content or "", [choice.finish_reason], response.usage
    chunks = list(
        client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
    )
    choices = [choice for chunk in chunks for choice in chunk.choices]
    text = "".join(choice.delta.content or "" for choice in choices)
    reasons = [choice.finish_reason for choice in choices if choice.finish_reason]
    assert choices[-1].finish_reason, "the last piece tells no reason"
    return text, reasons, chunks[-1].usage


def cases() -> dict[str, tuple[dict[str, Any], dict[str, Any], str]]:
    """Fields of the request, options of the engine, and the reason to be told."""
    text = expected().text
    split = text[9:13]
    return {
        "limit": ({}, {}, "length"),
        "limit of one": ({"max_tokens": 1}, {"max_new_tokens": 1}, "length"),
        "end token": ({"logit_bias": {str(END): 8}}, {"logit_bias": {END: 8.0}}, "stop"),
        "end token at once": (
            {"logit_bias": {str(END): 100}},
            {"logit_bias": {END: 100.0}},
            "stop",
        ),
        "stop string": ({"stop": split}, {"stop": [split]}, "stop"),
        "stop string at once": ({"stop": [text[0], "zz"]}, {"stop": [text[0], "zz"]}, "stop"),
        "stop string that never comes": ({"stop": "zzzz"}, {"stop": ["zzzz"]}, "length"),
        "context": (
            {"max_tokens": None, "extra_body": {"ignore_eos": True}},
            {"max_new_tokens": CONTEXT, "ignore_eos": True},
            "length",
        ),
    }


NAMES = (
    "limit",
    "limit of one",
    "end token",
    "end token at once",
    "stop string",
    "stop string at once",
    "stop string that never comes",
    "context",
)


@pytest.mark.parametrize("method", [PLAIN, NGRAM, TREE])
@pytest.mark.parametrize("name", NAMES)
def test_the_reason_is_told_once_and_right(client: OpenAI, name: str, method: str) -> None:
    fields, options, reason = cases()[name]
    result = expected(**options)
    assert result.finish_reason == reason
    for stream in (False, True):
        text, reasons, usage = asked(client, stream, method, dict(fields))
        assert text == result.text
        assert reasons == [reason]
        assert usage.completion_tokens == len(result.token_ids)


# --- log-probabilities ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [PLAIN, TREE])
@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_the_engines(client: OpenAI, stream: bool, method: str) -> None:
    stop = expected().text[9:13]
    result = expected(logprobs=3, stop=[stop])
    body: Any = {
        "model": MODEL,
        "messages": MESSAGES,
        **BASE,
        "stop": stop,
        "logprobs": True,
        "top_logprobs": 3,
        "extra_body": {"foredraft": {"method": method}},
    }
    if stream:
        chunks = client.chat.completions.create(**body, stream=True)
        choices = [choice for chunk in chunks for choice in chunk.choices]
        found = [entry for c in choices if c.logprobs for entry in c.logprobs.content]
    else:
        found = client.chat.completions.create(**body).choices[0].logprobs.content
    assert len(found) == len(result.token_ids)
    for entry, read in zip(found, result.logprobs, strict=True):
        assert entry.logprob == pytest.approx(read.logprob, abs=TOLERANCE)
        assert [top.logprob for top in entry.top_logprobs] == pytest.approx(
            [value for _, value in read.top], abs=TOLERANCE
        )
        assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token
    whole = b"".join(bytes(entry.bytes) for entry in found).decode("utf-8", "replace")
    assert whole.startswith(
        result.text
    )  # and then the stop string, whose tokens belong to the answer


def test_logprobs_without_likeliest_tokens(client: OpenAI) -> None:
    response = client.chat.completions.create(model=MODEL, messages=MESSAGES, **BASE, logprobs=True)
    content = response.choices[0].logprobs.content
    assert len(content) == 30
    assert all(entry.top_logprobs == [] for entry in content)
