"""`/v1/chat/completions`: from its body to what is asked for, and from answers to its documents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from llguidance import LLMatcher

from foredraft.results import Result, TokenLogprob
from foredraft.serve.answers import Answers
from foredraft.serve.asks import Ask, ask, options_of
from foredraft.serve.grammar import ANY_OBJECT
from foredraft.serve.jobs import Finished
from foredraft.serve.logprobs import chat_logprobs
from foredraft.serve.schemas import ChatRequest
from foredraft.serve.service import Service
from foredraft.serve.told import told_round


def chat_ask(service: Service, body: ChatRequest) -> Ask:
    """Check a chat; errors as in `ask`."""
    method, engine = service.engine_for(body)
    if body.logprobs:
        _ = service.tokens  # which their text needs
    return ask(
        engine,
        method,
        [[message.as_prompt() for message in body.messages]],
        options_of(body, logprobs=(body.top_logprobs or 0) if body.logprobs else None),
        body,
        wanted=body.max_tokens or body.max_completion_tokens,
        limit=service.settings.max_tokens,
        matcher=_matcher(service, body),
        names=service.names if body.wants_trace else None,
    )


def _matcher(service: Service, body: ChatRequest) -> LLMatcher | None:
    form = body.response_format
    if form is None or form.type == "text":
        return None
    schema = ANY_OBJECT if form.json_schema is None else form.json_schema.schema_
    return service.matcher({} if schema is None else schema)


def chat_document(service: Service, ask: Ask, results: Sequence[Result]) -> dict[str, Any]:
    """The whole response."""
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": result.text, "refusal": None},
            "logprobs": _logprobs(service, ask, result.logprobs),
            "finish_reason": result.finish_reason,
        }
        for index, result in enumerate(results)
    ]
    return {
        **service.head("chatcmpl", "chat.completion", ask.method),
        "choices": choices,
        "usage": ask.usage(results),
    }


async def chat_chunks(
    service: Service, ask: Ask, answers: Answers, wants_usage: bool
) -> AsyncIterator[dict[str, Any]]:
    """The response in pieces; each choice ends with one that has its `finish_reason` and no text."""
    head = service.head("chatcmpl", "chat.completion.chunk", ask.method)
    if wants_usage:
        head["usage"] = None
    for index in range(ask.num_choices):
        yield {**head, "choices": [_piece(index, {"role": "assistant", "content": ""})]}
    results: dict[int, Result] = {}
    async for index, event in answers.events():
        if isinstance(event, Finished):
            results[index] = event.result
            yield {**head, "choices": [_piece(index, {}, reason=event.result.finish_reason)]}
        elif event.step.text or event.step.logprobs or event.trace:
            logprobs = _logprobs(service, ask, event.step.logprobs)
            piece = _piece(index, {"content": event.step.text}, logprobs)
            yield {**head, "choices": [piece | told_round(event)]}
    if wants_usage:
        usage = ask.usage(list(results.values()))
        yield {**head, "choices": [], "usage": usage}


def _piece(
    index: int, delta: dict[str, Any], logprobs: Any = None, reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def _logprobs(
    service: Service, ask: Ask, logprobs: Sequence[TokenLogprob]
) -> dict[str, Any] | None:
    return None if ask.options.logprobs is None else chat_logprobs(logprobs, service.tokens)
