"""What every request passes: its key, the size of its body, and the count of its response."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Collection, Sequence

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foredraft.serve.errors import ApiError, as_api_error
from foredraft.serve.metrics import Metrics
from foredraft.serve.worker import ShuttingDownError

CLIENT_LEFT = 499
"""Counted for a response that nobody waited for."""


class Gate:
    """ASGI middleware.

    Args:
        app: what is behind it.
        api_keys: any of these opens all but the open paths; no keys open all.
        open_paths: need no key, as they tell nothing of anybody's.
        max_body_bytes: of a request.
        metrics: counts responses.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_keys: Sequence[str],
        open_paths: Collection[str],
        max_body_bytes: int,
        metrics: Metrics,
    ) -> None:
        self._app, self._metrics, self._open_paths = app, metrics, frozenset(open_paths)
        self._keys = [_digest(key.strip()) for key in api_keys]  # as those that are sent
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), CLIENT_LEFT

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal.response()(scope, receive, noted)
            else:
                await self._app(scope, self._limited(receive), noted)
        except asyncio.CancelledError:  # the server ends: whoever sent half a request is told
            if status == CLIENT_LEFT:
                ending = ShuttingDownError("the server is shutting down; ask another one")
                await as_api_error(ending).response()(scope, receive, noted)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self._metrics.responded(path, status, time.perf_counter() - started)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if self._keys and scope["path"] not in self._open_paths and not self._has_key(headers):
            return ApiError(
                401,
                "a valid API key is needed; send it as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._max_body_bytes:
            return ApiError(413, self._too_large, code="body_too_large")
        return None

    def _has_key(self, headers: dict[bytes, bytes]) -> bool:
        """Compare with every key, in a time that tells nothing of any."""
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        digest = hashlib.sha256(given.strip()).digest()
        same = [hmac.compare_digest(digest, key) for key in self._keys]
        return scheme.lower() == b"bearer" and any(same)

    @property
    def _too_large(self) -> str:
        return f"the body has more than {self._max_body_bytes} bytes, which is all that this server reads"

    def _limited(self, receive: Receive) -> Receive:
        """Bodies may come in pieces and say no length, or a wrong one."""
        num_read = 0

        async def limited() -> Message:
            nonlocal num_read
            message = await receive()
            num_read += len(message.get("body", b""))
            if num_read > self._max_body_bytes:
                raise HTTPException(413, self._too_large)
            return message

        return limited


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
