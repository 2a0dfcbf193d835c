"""The routes. Handlers check and wait; nothing is computed in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel

from foredraft import __version__
from foredraft.results import Result
from foredraft.serve.answers import Answers
from foredraft.serve.chat import chat_ask, chat_chunks, chat_document
from foredraft.serve.errors import add_handlers, as_api_error
from foredraft.serve.gate import CLIENT_LEFT, Gate
from foredraft.serve.metrics import TEXT
from foredraft.serve.page.routes import PAGE_PATHS, page_routes
from foredraft.serve.schemas import ChatRequest, TextRequest
from foredraft.serve.service import Service
from foredraft.serve.sse import EventStream
from foredraft.serve.texts import text_ask, text_chunks, text_document
from foredraft.serve.told import told_server


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorDocument(BaseModel):
    """The form of every error."""

    error: ErrorBody


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorDocument, "description": "Refused"},
    "5XX": {"model": ErrorDocument, "description": "Failed"},
}


ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answers, whole or as events",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {},
        },
    },
}


def create_app(service: Service) -> FastAPI:
    """The server's ASGI app; its lifespan starts and stops the service."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        except asyncio.CancelledError:  # a second signal: nobody waits for the round in progress
            return
        await asyncio.to_thread(service.stop)

    app = FastAPI(
        title="Foredraft",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=ERRORS,
    )
    add_handlers(app)
    app.include_router(_answering(service))
    app.include_router(_telling(service))
    app.include_router(page_routes())
    app.add_middleware(
        Gate,
        api_keys=service.settings.api_keys,
        open_paths={"/health", *PAGE_PATHS},
        max_body_bytes=service.settings.max_body_bytes,
        metrics=service.metrics,
    )
    return app


def _answering(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", response_model=None, responses=ANSWERS)
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Answer a chat."""
        ask, answers = await service.admit(body, 1, chat_ask)
        if body.stream:
            chunks = chat_chunks(service, ask, answers, body.wants_usage)
            return EventStream(chunks, answers.cancel)
        results = await _results(answers, request)
        return await _response(results, partial(chat_document, service, ask))

    @router.post("/v1/completions", response_model=None, responses=ANSWERS)
    async def text(body: TextRequest, request: Request) -> Response:
        """Continue a text."""
        ask, answers = await service.admit(body, len(body.prompts), text_ask)
        if body.stream:
            return EventStream(text_chunks(service, ask, answers, body), answers.cancel)
        results = await _results(answers, request)
        return await _response(results, partial(text_document, service, ask, body))

    return router


def _telling(service: Service) -> APIRouter:
    router = APIRouter()
    card = {
        "id": service.settings.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "foredraft",
        "foredraft": told_server(service),
    }

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model that there is."""
        return {"object": "list", "data": [card]}

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """The same by its name."""
        service.check_model(name)
        return card

    @router.get("/health", response_model=None)
    async def health() -> Response:
        """Whether requests are taken."""
        working = service.worker.alive and not service.worker.draining
        status = "ok" if working else "shutting down" if service.worker.alive else "down"
        return JSONResponse({"status": status}, 200 if working else 503)

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Counts and times for Prometheus."""
        return Response(service.metrics.exposition(), media_type=TEXT)

    return router


async def _response(
    results: list[Result] | None, document: Callable[[list[Result]], dict[str, Any]]
) -> Response:
    """The document of answers, written in a thread: log-probabilities may make it long."""
    if results is None:
        return Response(status_code=CLIENT_LEFT)
    return await asyncio.to_thread(lambda: JSONResponse(document(results)))


async def _results(answers: Answers, request: Request) -> list[Result] | None:
    """All answers, whole; None if the client has left before.

    Raises:
        ApiError: what the client is told of an error.
    """
    collecting = asyncio.ensure_future(answers.results())
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((collecting, leaving), return_when=asyncio.FIRST_COMPLETED)
        return collecting.result() if collecting.done() else None
    except Exception as error:
        raise as_api_error(error) from error
    finally:
        answers.cancel()
        collecting.cancel()
        leaving.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
