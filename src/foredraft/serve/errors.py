"""From errors to OpenAI's error documents and status codes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from foredraft.errors import ConfigError, PromptError, suggestion
from foredraft.serve.answers import TimeLimitError
from foredraft.serve.grammar import GrammarError
from foredraft.serve.schemas import UNSUPPORTED, fields_at
from foredraft.serve.worker import QueueFullError, ShuttingDownError

logger = logging.getLogger(__name__)

RETRY_AFTER = {"Retry-After": "1"}
NO_RETRY = {"x-should-retry": "false"}
"""The official client heeds this; it would ask again for what took too long once."""
TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
"""By status; others below 500 are `invalid_request_error`, those above `server_error`."""
REQUEST_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
"""Options of the engine whose fields in a request have other names."""


class ApiError(Exception):
    """A request that is refused.

    Args:
        status: of HTTP.
        message: one sentence, with the way out.
        param: the field at fault.
        code: for programs.
        headers: of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def document(self) -> dict[str, Any]:
        """As OpenAI writes it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message.encode("utf-8", "replace").decode(),  # half characters go
                "type": TYPES.get(self.status, kind),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """The document with its status."""
        return JSONResponse(self.document(), self.status, self.headers)


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of an error; faults of ours are logged and not told."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ConfigError | PromptError):
        return ApiError(400, _in_request_names(str(error)))
    if isinstance(error, QueueFullError):
        return ApiError(429, str(error), code="queue_full", headers=RETRY_AFTER)
    if isinstance(error, ShuttingDownError):
        return ApiError(503, str(error), code="shutting_down", headers=RETRY_AFTER)
    if isinstance(error, TimeLimitError):
        return ApiError(504, str(error), code="time_limit", headers=NO_RETRY)
    if isinstance(error, GrammarError):
        return ApiError(400, str(error), param="response_format", code="grammar_failed")
    logger.error("a request failed", exc_info=error)
    if isinstance(error, MemoryError) or "out of memory" in str(error):
        return ApiError(503, "the server has not enough memory for this; ask for fewer tokens")
    return ApiError(500, f"the answer failed ({type(error).__name__})", headers=NO_RETRY)


def _in_request_names(sentence: str) -> str:
    for option, name in REQUEST_NAMES.items():
        sentence = sentence.replace(option, name)
    return sentence


def validation_error(route: str, errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The fault that lies deepest in a body: of a choice between forms, the form that was meant."""
    error = max(errors, key=lambda e: (len(e["loc"]), not e["type"].endswith("_type")))
    if error["type"] == "json_invalid":
        return ApiError(400, f"the body is no JSON from its character {error['loc'][-1]} on")
    if isinstance(error.get("input"), bytes):  # which is what a body of another type is read as
        return ApiError(
            400, "send the body as JSON, with the header Content-Type: application/json"
        )
    place = [part for part in error["loc"][1:] if not _is_form(part)]
    param = ".".join(map(str, place)) or None
    if error["type"] == "extra_forbidden":
        return ApiError(400, _unknown(route, place), param=param, code="unknown_parameter")
    given = "" if error["type"] == "missing" else f" (given: {_shown(error)})"
    return ApiError(400, f"{param or 'the body'}: {error['msg']}{given}", param=param)


def _is_form(part: str | int) -> bool:
    """Whether a part of a place names the form of a value and no field, as pydantic does."""
    return isinstance(part, str) and (
        part in ("str", "int") or "constrained-" in part or "[" in part
    )


def _unknown(route: str, place: Sequence[str | int]) -> str:
    name = str(place[-1])
    if name in UNSUPPORTED:
        return f"{name} is not supported by this server; leave it out"
    return f"unknown field {name!r}; {suggestion(name, fields_at(route, place))}"


def _shown(error: Mapping[str, Any]) -> str:
    text = repr(error.get("input"))
    return text if len(text) <= 80 else f"{text[:77]}..."


def add_handlers(app: FastAPI) -> None:
    """Have every error of an app answered in OpenAI's form."""

    async def of_api(request: Request, error: Exception) -> JSONResponse:
        return as_api_error(error).response()

    async def of_body(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return validation_error(request.url.path, error.errors()).response()

    async def of_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        known = ApiError(error.status_code, _http_message(request, error), headers=error.headers)
        return known.response()

    app.add_exception_handler(RequestValidationError, of_body)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(Exception, of_api)
    for kind in (ApiError, ConfigError, PromptError, QueueFullError, ShuttingDownError):
        app.add_exception_handler(kind, of_api)
    app.add_exception_handler(TimeLimitError, of_api)


def _http_message(request: Request, error: HTTPException) -> str:
    if error.status_code == 404:
        return f"there is no {request.url.path} here; see /openapi.json"
    if error.status_code == 405:
        return f"{request.url.path} does not take {request.method}; see /openapi.json"
    return str(error.detail)
