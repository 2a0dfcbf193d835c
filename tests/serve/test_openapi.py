"""The server's own description, and requests drawn from it: none of them makes the server fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from foredraft.serve.schemas import ChatRequest, TextRequest
from tests.serve.live import MODEL, Live, live

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)
PATHS = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/v1/models/{name}",
    "/health",
    "/metrics",
}
EXAMPLES = 40


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(max_tokens=6, max_choices=2, max_body_bytes=100_000) as running:
        yield running


def test_every_route_and_field_is_described(server: Live) -> None:
    document = server.http.get("/openapi.json").json()
    assert set(document["paths"]) == PATHS
    schemas = document["components"]["schemas"]
    for form in (ChatRequest, TextRequest):
        described = schemas[form.__name__]
        assert described["additionalProperties"] is False
        assert set(described["properties"]) == set(form.model_fields)


def operation(schema: Any, path: str) -> Any:
    methods = schema[path]
    return methods["post"] if "completions" in path else methods["get"]


@pytest.mark.parametrize(
    ("path", "mode"),
    [(path, "positive") for path in sorted(PATHS)]
    + [(path, "negative") for path in sorted(PATHS) if "completions" in path],
)
def test_no_request_makes_the_server_fail(server: Live, path: str, mode: str) -> None:
    schema = schemathesis.openapi.from_dict(server.http.get("/openapi.json").json())
    chosen = operation(schema, path)
    strategy = chosen.as_strategy(generation_mode=schemathesis.GenerationMode(mode))

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def ask(case: Any) -> None:
        if isinstance(case.body, dict) and mode == "positive":
            case.body["model"] = MODEL  # so that more of them are answered
        case.call_and_validate(base_url=server.url, checks=list(CHECKS))

    ask()
    assert server.http.get("/health").status_code == 200
