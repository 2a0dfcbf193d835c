"""Answers that follow a schema: the matcher is where the committed tokens are, whatever was drafted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import jsonschema
import pytest
import torch
from torch import Tensor

from foredraft import ConfigError, Engine, GenerationOptions, Result
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engine.decoder import decode
from foredraft.policies.dynamic import DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.serve.grammar import (
    MAX_SCHEMA_BYTES,
    GrammarError,
    GrammarProcessor,
    compile_schema,
    token_bytes_of,
)
from foredraft.tree import Proposal
from foredraft.verifiers.block import BlockVerifier
from foredraft.verifiers.rejection import RejectionVerifier
from tests.drafters.eagle_rounds import make_head
from tests.scripted import ScriptedDrafter, noise, right, with_siblings
from tests.serve.live import target, tokenizer

PROMPT = "the cat sat on the mat"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"enum": ["cat", "mat", "the cat"]},
        "ages": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "ages"],
    "additionalProperties": False,
}
OPTIONS = GenerationOptions(max_new_tokens=64, temperature=1.0, seed=4)


@cache
def tokens() -> Any:
    return token_bytes_of(tokenizer(), target().vocab_size, target().eos_token_ids)


@cache
def head() -> EagleHead:
    return make_head(target().model, "eagle3")


class Watching:
    """A grammar, and every prefix of the answer that it was shown."""

    def __init__(self, schema: Any, prompt_length: int) -> None:
        self.processor = GrammarProcessor(compile_schema(tokens(), schema), prompt_length)
        self._length, self.prefixes = prompt_length, list[list[int]]()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.prefixes.append(input_ids[0, self._length :].tolist())
        return self.processor(input_ids, scores)


def prompt_ids() -> list[int]:
    return list(tokenizer()(PROMPT)["input_ids"])


@cache
def plain_text(temperature: float) -> tuple[int, ...]:
    return (*prompt_ids(), *answer(Engine(target(), tokenizer=tokenizer()), temperature).token_ids)


def answer(engine: Engine, temperature: float, schema: Any = SCHEMA) -> Result:
    ids = prompt_ids()
    processor = GrammarProcessor(compile_schema(tokens(), schema), len(ids))
    return engine.generate(ids, OPTIONS, temperature=temperature, logits_processors=(processor,))


def made(drafter: Any, policy: Any = None, verifier: Any = None) -> Engine:
    return Engine(target(), drafter, policy, verifier, tokenizer())


def half_right(temperature: float) -> Engine:
    vocab_size = target().vocab_size
    script = with_siblings(right(plain_text(temperature), 2, 4, vocab_size), 3, 1, vocab_size)
    return made(ScriptedDrafter(script, 12, branches=True))


ENGINES: dict[str, Callable[[float], Engine]] = {
    "plain": lambda t: made(None),
    "ngram": lambda t: made(NgramDrafter(min_match=1)),
    "random": lambda t: made(ScriptedDrafter(noise(3, 5, target().vocab_size), 5)),
    "half right tree": half_right,
    "draft model's tree": lambda t: made(DraftModelDrafter(target()), FixedPolicy("3,2,1")),
    "head's tree": lambda t: made(EagleDrafter(head()), DynamicTreePolicy(3, 8, 3)),
    "head's chain": lambda t: made(EagleDrafter(head()), FixedPolicy.chain(3)),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ENGINES)
def test_the_matcher_is_where_the_committed_tokens_are(name: str, temperature: float) -> None:
    ids, engine = prompt_ids(), ENGINES[name](temperature)
    watching = Watching(SCHEMA, len(ids))
    options = OPTIONS.replace(temperature=temperature, logits_processors=(watching,))
    session = engine.session(ids, options, engine.randomness(4 if temperature else None))
    for _ in decode(session, engine.verifier):
        answered = session.token_ids[len(ids) :]
        if session.finish_reason is not None:
            break
        # all but the last committed token were shown, each prefix once and in order
        assert watching.prefixes == [answered[:n] for n in range(len(answered))]
        fresh = GrammarProcessor(compile_schema(tokens(), SCHEMA), 0)
        fresh.read(answered[:-1])
        vocab_size = target().vocab_size
        assert torch.equal(watching.processor.allowed(vocab_size), fresh.allowed(vocab_size))
    answered = session.token_ids[len(ids) :]
    assert tuple(session.token_ids) == plain_text(temperature)
    if session.finish_reason == "stop":
        text = tokenizer().decode(answered, skip_special_tokens=True)
        jsonschema.validate(json.loads(text), SCHEMA)


def test_answers_that_end_satisfy_the_schema() -> None:
    """Among these seeds are answers that end, so that the test above says something of them."""
    ended = 0
    for seed in range(6):
        ids = prompt_ids()
        processor = GrammarProcessor(compile_schema(tokens(), SCHEMA), len(ids))
        result = made(None).generate(ids, OPTIONS, seed=seed, logits_processors=(processor,))
        if result.finish_reason == "stop":
            ended += 1
            jsonschema.validate(json.loads(result.text), SCHEMA)
    assert ended >= 2


def test_sampled_drafts_and_rejection_satisfy_the_schema_too() -> None:
    drafter = DraftModelDrafter(target(), Proposal.SAMPLED)
    result = answer(made(drafter, FixedPolicy("2,2"), RejectionVerifier()), 1.0)
    fresh = GrammarProcessor(compile_schema(tokens(), SCHEMA), 0)
    fresh.read([token for token in result.token_ids if token not in target().eos_token_ids])


def test_verifiers_that_read_rejected_tokens_are_refused() -> None:
    drafter = DraftModelDrafter(target(), Proposal.SAMPLED)
    with pytest.raises(ConfigError, match="logits_processors"):
        answer(made(drafter, FixedPolicy.chain(3), BlockVerifier()), 1.0)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "banana"},
        {"not": {"type": "string"}},
        {"$ref": "#/nowhere"},
        {"type": "string", "pattern": "("},
        {"type": "string", "enum": []},
        {"$ref": "#"},
        {"const": "a" * MAX_SCHEMA_BYTES},
        {"const": "\ud83d"},
        {"maxLength": float("nan")},
        [],
        "x",
        None,
    ],
)
def test_a_schema_that_cannot_be_followed_is_one_sentence(schema: Any) -> None:
    with pytest.raises(ConfigError, match="response_format") as caught:
        compile_schema(tokens(), schema)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_what_is_wrong_with_a_pattern_is_told() -> None:
    with pytest.raises(ConfigError, match="unclosed group"):
        compile_schema(tokens(), {"type": "string", "pattern": "("})


def test_schemas_leave_little_to_do_between_rounds() -> None:
    """The dearest part of a grammar's work is done before its answers are begun."""
    schema = {"const": "a" * (MAX_SCHEMA_BYTES - 100)}
    started = time.perf_counter()
    matcher = compile_schema(tokens(), schema)
    compiled = time.perf_counter()
    GrammarProcessor(matcher.deep_copy(), 0).allowed(target().vocab_size)
    assert time.perf_counter() - compiled < (compiled - started) / 2


def test_a_token_that_the_grammar_forbids_is_an_error() -> None:
    processor = GrammarProcessor(compile_schema(tokens(), SCHEMA), 0)
    with pytest.raises(GrammarError):
        processor.read(tokenizer()("cat")["input_ids"])


def test_after_the_end_only_end_tokens_are_allowed() -> None:
    processor = GrammarProcessor(compile_schema(tokens(), {"const": 5}), 0)
    processor.read(tokenizer()("5")["input_ids"])
    allowed = processor.allowed(target().vocab_size).nonzero().flatten().tolist()
    assert allowed == list(target().eos_token_ids)


def test_tokenizers_without_bytes_are_refused() -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        token_bytes_of(object(), 5, ())
