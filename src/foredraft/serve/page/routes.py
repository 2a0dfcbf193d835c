"""The routes of the page. Its files are part of the package, and it asks for nothing from elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import APIRouter, Request, Response

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
FILES = (
    "index.html",
    "page.css",
    "tree.css",
    "page.js",
    "api.js",
    "answer.js",
    "charts.js",
    "dom.js",
    "insight.js",
    "speaker.js",
    "tree.js",
)
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Cache-Control": "no-cache",  # kept by the browser, and asked for again by its ETag
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def path_of(name: str) -> str:
    """Where a file of the page is served."""
    return "/" if name == "index.html" else f"/page/{name}"


PAGE_PATHS = tuple(map(path_of, FILES))
"""The page is open without a key, and asks for one itself."""


def page_routes() -> APIRouter:
    """A route for each file, outside of the API's own description."""
    router = APIRouter()
    for name in FILES:
        router.get(path_of(name), include_in_schema=False, response_model=None)(_giver(name))
    return router


def _giver(name: str) -> Callable[[Request], Awaitable[Response]]:
    content = files(__package__).joinpath(name).read_bytes()
    kind = TYPES[name.rpartition(".")[2]]
    headers = {**HEADERS, "ETag": f'"{hashlib.sha256(content).hexdigest()[:20]}"'}

    async def give(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind)

    return give
