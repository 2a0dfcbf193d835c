"""`/v1/completions`: from its body to what is asked for, and from answers to its documents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from foredraft.results import Result, TokenLogprob
from foredraft.serve.answers import Answers
from foredraft.serve.asks import Ask, ask, options_of
from foredraft.serve.jobs import Finished, Stepped
from foredraft.serve.logprobs import TextLogprobs
from foredraft.serve.schemas import TextRequest
from foredraft.serve.service import Service
from foredraft.serve.told import told_round

DEFAULT_MAX_TOKENS = 16
"""As OpenAI has it."""


def text_ask(service: Service, body: TextRequest) -> Ask:
    """Check a request for texts; errors as in `ask`."""
    method, engine = service.engine_for(body)
    if body.logprobs is not None:
        _ = service.tokens  # which their text needs
    prompt_logprobs = body.logprobs if body.echo else None
    limit = service.settings.max_tokens
    return ask(
        engine,
        method,
        body.prompts,
        options_of(body, logprobs=body.logprobs, prompt_logprobs=prompt_logprobs),
        body,
        wanted=body.max_tokens,
        limit=min(DEFAULT_MAX_TOKENS, limit) if body.max_tokens is None else limit,
        names=service.names if body.wants_trace else None,
    )


class TextChoice:
    """One choice of a response, whole or as it grows: the prompt in front if it is echoed."""

    def __init__(self, service: Service, ask: Ask, body: TextRequest, index: int) -> None:
        place = index // ask.num_choices
        self._index, self._prompt = index, ask.prompts[place]
        given = body.prompts[place]
        self._echo = (
            None
            if not body.echo
            else given
            if isinstance(given, str)
            else ask.engine.decode(self._prompt)
        )
        self._logprobs = (
            None
            if body.logprobs is None
            else TextLogprobs(service.tokens, ask.engine.incremental_text())
        )

    def piece(
        self,
        text: str,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprob],
        prompt_logprobs: Sequence[TokenLogprob | None],
        reason: str | None,
    ) -> dict[str, Any]:
        """The next piece of the choice; the first one brings the echo."""
        read: Sequence[TokenLogprob | None] = logprobs
        if self._echo is not None:
            text, self._echo = self._echo + text, None
            token_ids, read = (*self._prompt, *token_ids), (*prompt_logprobs, *logprobs)
        return {
            "index": self._index,
            "text": text,
            "logprobs": None if self._logprobs is None else self._logprobs.read(token_ids, read),
            "finish_reason": reason,
        }

    def whole(self, result: Result) -> dict[str, Any]:
        """The choice of a whole answer."""
        return self.piece(
            result.text,
            result.token_ids,
            result.logprobs,
            result.prompt_logprobs,
            result.finish_reason,
        )

    def step(self, event: Stepped) -> dict[str, Any] | None:
        """What a round added; None if that is nothing to show."""
        step = event.step
        if self._echo is None and not (step.text or step.logprobs or event.trace):
            return None
        piece = self.piece(step.text, step.token_ids, step.logprobs, event.prompt_logprobs, None)
        return piece | told_round(event)

    def end(self, result: Result) -> dict[str, Any]:
        """The last piece, which has no text."""
        return {
            "index": self._index,
            "text": "",
            "logprobs": None,
            "finish_reason": result.finish_reason,
        }


def text_document(
    service: Service, ask: Ask, body: TextRequest, results: Sequence[Result]
) -> dict[str, Any]:
    """The whole response."""
    choices = [
        TextChoice(service, ask, body, index).whole(result) for index, result in enumerate(results)
    ]
    return {
        **service.head("cmpl", "text_completion", ask.method),
        "choices": choices,
        "usage": ask.usage(results),
    }


async def text_chunks(
    service: Service, ask: Ask, answers: Answers, body: TextRequest
) -> AsyncIterator[dict[str, Any]]:
    """The response in pieces; each choice ends with one that has its `finish_reason` and no text.

    They are made in a thread: the log-probabilities of an echoed prompt may be many.
    """
    head = service.head("cmpl", "text_completion", ask.method)
    if body.wants_usage:
        head["usage"] = None
    count = len(ask.prompts) * ask.num_choices
    choices = [TextChoice(service, ask, body, index) for index in range(count)]
    results: dict[int, Result] = {}
    async for index, event in answers.events():
        if isinstance(event, Finished):
            results[index] = event.result
            yield {**head, "choices": [choices[index].end(event.result)]}
        elif (piece := await asyncio.to_thread(choices[index].step, event)) is not None:
            yield {**head, "choices": [piece]}
    if body.wants_usage:
        usage = ask.usage(list(results.values()))
        yield {**head, "choices": [], "usage": usage}
