"""From the body of a request to what the engine is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llguidance import LLMatcher

from foredraft.config import GenerationOptions
from foredraft.engine.engine import Engine
from foredraft.engine.prompts import Prompt, encode_prompt
from foredraft.engine.stream import Stream
from foredraft.engine.trace.live import LiveTrace
from foredraft.engine.trace.names import TokenNames
from foredraft.engine.trace.watch import traceable
from foredraft.errors import ConfigError, PromptError
from foredraft.results import Result
from foredraft.sampling.randomness import fresh_seed
from foredraft.serve.answers import Start
from foredraft.serve.grammar import GrammarProcessor
from foredraft.serve.schemas import Shared
from foredraft.serve.usage import usage_of

DEFAULT_TEMPERATURE = 1.0
"""As OpenAI has it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A checked request.

    Attributes:
        engine: that answers it.
        method: the engine's name.
        prompts: token ids of each prompt.
        options: of the first answer to the first prompt, but for its length.
        max_tokens: of the answers to each prompt.
        num_choices: answers to each prompt.
        matcher: of the grammar that all answers follow, at its start.
        names: of the tokens of rounds that are told; None tells none.
    """

    engine: Engine
    method: str
    prompts: tuple[tuple[int, ...], ...]
    options: GenerationOptions
    max_tokens: tuple[int, ...]
    num_choices: int
    matcher: LLMatcher | None = None
    names: TokenNames | None = None

    def usage(self, results: Sequence[Result]) -> dict[str, Any]:
        """What all its answers cost."""
        return usage_of(results, self.prompts, self.method, self.engine.lossless)

    def starts(self) -> list[Start]:
        """One for each answer; those to the first prompt come first."""
        return [
            self._start(place, choice)
            for place in range(len(self.prompts))
            for choice in range(self.num_choices)
        ]

    def _start(self, place: int, choice: int) -> Start:
        prompt = self.prompts[place]
        options = self.options.replace(choice=choice, max_new_tokens=self.max_tokens[place])
        if self.names is None:
            begin: Callable[..., Stream] = partial(self.engine.stream, prompt, options)
            return Start(self.method, self._starter(begin, len(prompt)), len(prompt))
        trace = LiveTrace(self.engine, options, self.names)
        begin = partial(trace.stream, prompt)
        return Start(self.method, self._starter(begin, len(prompt)), len(prompt), trace.read)

    def _starter(self, begin: Callable[..., Stream], num_prompt: int) -> Callable[[], Stream]:
        """With a grammar, `begin` gets a processor of its own when its turn has come."""
        if self.matcher is None:
            return begin
        matcher = self.matcher

        def start() -> Stream:
            processor = GrammarProcessor(matcher.deep_copy(), num_prompt)
            return begin(logits_processors=(processor,))

        return start


def options_of(body: Shared, **more: Any) -> GenerationOptions:
    """The options that a body asks for, its length left aside.

    Raises:
        ConfigError: a value that the engine refuses.
    """
    asked = {
        "temperature": DEFAULT_TEMPERATURE if body.temperature is None else body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "repetition_penalty": body.repetition_penalty,
        "logit_bias": {int(t): bias for t, bias in body.logit_bias.items()}
        if body.logit_bias
        else None,
        "ignore_eos": body.ignore_eos,
        "stop": tuple(body.stops),
        **more,
    }
    seed = fresh_seed() if body.seed is None else body.seed
    given = {name: value for name, value in asked.items() if value is not None}
    return GenerationOptions(seed=seed, **given)


def ask(
    engine: Engine,
    method: str,
    prompts: Sequence[Prompt],
    options: GenerationOptions,
    body: Shared,
    *,
    wanted: int | None,
    limit: int,
    matcher: LLMatcher | None = None,
    names: TokenNames | None = None,
) -> Ask:
    """Check a request as far as that goes without memory for it.

    Args:
        engine, method, prompts, options, matcher, names: as in `Ask`; prompts in any form.
        body: of the request.
        wanted: tokens that each answer asks for; None is as many as there is room for.
        limit: tokens that an answer may have on this server.

    Raises:
        ConfigError, PromptError: it cannot be answered.
    """
    if names is not None and not traceable(engine):
        raise ConfigError(
            f"foredraft.trace shows drafts that follow the text's last token, and {method} drafts from open "
            "roots; leave it out, or use another method"
        )
    encoded = [encode_prompt(p, engine.tokenizer, engine.target.vocab_size) for p in prompts]
    rooms = tuple(_room(engine, len(ids), wanted, limit) for ids in encoded)
    least = body.min_tokens or 0
    options = options.replace(max_new_tokens=min(rooms), min_new_tokens=least)
    if matcher is not None:
        if least or body.ignore_eos:
            raise ConfigError(
                "min_tokens and ignore_eos do not go with response_format, which says where an answer ends; "
                "leave them out"
            )
        probe = (GrammarProcessor(matcher.deep_copy(), 0),)
        engine.law(options.replace(logits_processors=probe), len(encoded[0]))
    else:
        engine.law(options, len(encoded[0]))
    prompt_ids = tuple(map(tuple, encoded))
    return Ask(engine, method, prompt_ids, options, rooms, body.n or 1, matcher, names)


def _room(engine: Engine, num_prompt: int, wanted: int | None, limit: int) -> int:
    """Tokens that an answer may have."""
    if wanted is not None and wanted > limit:
        raise ConfigError(
            f"max_tokens={wanted} is more than this server gives; ask for at most {limit}"
        )
    context = engine.target.context_length
    if context is None:
        return limit if wanted is None else wanted
    room = context - num_prompt
    if room < (wanted or 1):
        raise PromptError(
            f"the prompt has {num_prompt} tokens and the answer may have {wanted or 1}, "
            f"{num_prompt + (wanted or 1)} together; this model's context holds {context}"
        )
    return min(room, limit) if wanted is None else wanted
