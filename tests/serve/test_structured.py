"""`response_format` through the official client, alone and beside others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import jsonschema
import pytest
from openai import OpenAI
from pydantic import BaseModel

from foredraft.serve.grammar import ANY_OBJECT, GrammarProcessor, compile_schema, token_bytes_of
from tests.serve.live import MODEL, NGRAM, PLAIN, TREE, engines, live, target, tokenizer

MESSAGES: Any = [{"role": "user", "content": "the cat"}]
MAX_TOKENS = 40


class Cat(BaseModel):
    """What answers are to be."""

    name: Literal["cat", "mat"]
    fat: bool


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"enum": ["cat", "mat"]}, "fat": {"type": "boolean"}},
    "required": ["name", "fat"],
    "additionalProperties": False,
}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "cat", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with live(max_batch=8) as running:
        yield running.client()


def alone(seed: int, schema: Any) -> tuple[str, str]:
    """The text and the reason of the engine's own answer, without drafts."""
    engine = engines()[PLAIN]
    tokens = token_bytes_of(tokenizer(), target().vocab_size, target().eos_token_ids)
    prompt = tokenizer().apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    processor = GrammarProcessor(compile_schema(tokens, schema), len(prompt))
    result = engine.generate(
        MESSAGES,
        max_new_tokens=MAX_TOKENS,
        seed=seed,
        temperature=1.0,
        logits_processors=(processor,),
    )
    return result.text, result.finish_reason


def asked(client: OpenAI, seed: int, **fields: Any) -> tuple[str, str]:
    response = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, seed=seed, max_tokens=MAX_TOKENS, **fields
    )
    choice = response.choices[0]
    return choice.message.content or "", choice.finish_reason


@pytest.mark.parametrize("method", [PLAIN, NGRAM, TREE])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_schema_is_followed_whatever_is_drafted(client: OpenAI, seed: int, method: str) -> None:
    own = {"foredraft": {"method": method}}
    text, reason = asked(client, seed, response_format=FORM, extra_body=own)
    assert (text, reason) == alone(seed, SCHEMA)
    if reason == "stop":
        jsonschema.validate(json.loads(text), SCHEMA)


def test_any_object_will_do_for_json_object(client: OpenAI) -> None:
    answer = asked(client, 3, response_format={"type": "json_object"})
    assert answer == alone(3, ANY_OBJECT)
    assert answer[0].lstrip().startswith("{")


def test_text_is_no_constraint(client: OpenAI) -> None:
    assert asked(client, 3, response_format={"type": "text"}) == asked(client, 3)


def test_a_stream_follows_the_schema(client: OpenAI) -> None:
    chunks = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        seed=1,
        max_tokens=MAX_TOKENS,
        response_format=FORM,
        stream=True,
    )
    text = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
    assert text == alone(1, SCHEMA)[0]


def test_the_official_client_parses_into_models(client: OpenAI) -> None:
    """Its schemas say `strict`; an answer that the limit cuts off is an error of its own."""
    seed = next(seed for seed in range(20) if alone(seed, SCHEMA)[1] == "stop")
    response = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, seed=seed, max_tokens=90, response_format=Cat
    )
    assert isinstance(response.choices[0].message.parsed, Cat)


def test_choices_have_a_grammar_each(client: OpenAI) -> None:
    response = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, seed=1, max_tokens=90, response_format=FORM, n=3
    )
    for choice in response.choices:
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content or ""), SCHEMA)
    assert len({choice.message.content for choice in response.choices}) > 1


def test_constrained_and_free_requests_do_not_disturb_each_other(client: OpenAI) -> None:
    def ask(number: int) -> tuple[str, str]:
        seed, free = number % 4, number % 5 == 4
        own = {"foredraft": {"method": (PLAIN, NGRAM, TREE)[number % 3]}}
        form = {} if free else {"response_format": FORM}
        return asked(client, seed, extra_body=own, **form)

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(ask, range(20)))
    constrained = [alone(seed, SCHEMA) for seed in range(4)]
    free = [asked(client, seed) for seed in range(4)]
    for number, answer in enumerate(answers):
        assert answer == (free if number % 5 == 4 else constrained)[number % 4]
