"""Server-sent events, as OpenAI streams them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from foredraft.serve.errors import as_api_error

DONE = "data: [DONE]\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def event(document: dict[str, Any]) -> str:
    """One event, in ASCII: many clients take U+0085, U+2028 and others for the end of its line."""
    return f"data: {json.dumps(document, separators=(',', ':'))}\n\n"


async def events(documents: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Events of documents, and of the error that ends them if one does; `[DONE]` is always the last."""
    try:
        async for document in documents:
            yield event(document)
    except Exception as error:
        yield event(as_api_error(error).document())
    yield DONE


class EventStream(StreamingResponse):
    """A response of events.

    Args:
        documents: of the events.
        on_end: is called when the response is over in whatever way, also if it never began.
    """

    def __init__(
        self, documents: AsyncIterator[dict[str, Any]], on_end: Callable[[], None]
    ) -> None:
        super().__init__(events(documents), media_type="text/event-stream", headers=HEADERS)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer by ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()
