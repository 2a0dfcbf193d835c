"""What the server refuses: nothing is ignored, and every error has OpenAI's form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from foredraft.serve.schemas import UNSUPPORTED
from tests.serve.live import CONTEXT, MODEL, Live, live

MESSAGES: Any = [{"role": "user", "content": "the cat"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
DEEP = "[" * 100_000
BEYOND_INT64 = 2**70
MANY = {str(token): 0 for token in range(1025)}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(max_tokens=100, max_choices=3, max_body_bytes=300_000) as running:
        yield running


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a response with this status, in OpenAI's form."""
    assert response.status_code == status, response.text
    document = response.json()
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = document["error"]
    assert error["message"]
    return error


def refused(server: Live, status: int = 400, path: str = CHAT, **fields: Any) -> dict[str, Any]:
    prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": "the cat"}
    body = {"model": MODEL, **prompt, **fields}
    return error_of(server.http.post(path, json=body), status)


WRONG: dict[str, list[Any]] = {
    "max_tokens": [0, -1, 1.5, "5", True, 101, BEYOND_INT64],
    "max_completion_tokens": [0, 101, BEYOND_INT64],
    "n": [0, 4, "2", True, BEYOND_INT64],
    "temperature": [-0.1, 2.1, "1", True, 1e-7],
    "top_p": [0, 1.1, "1"],
    "top_k": [-1, 1.5, BEYOND_INT64],
    "min_p": [-0.1, 1.1],
    "presence_penalty": [-2.1, 2.1],
    "frequency_penalty": [-2.1, 2.1],
    "repetition_penalty": [0, -1, 1e-9],
    "logit_bias": [{"a": 1}, {"-1": 1}, {"999": 1}, {"05": 1}, {"5": 101}, {"5": "1"}, [5], MANY],
    "seed": [1.5, "1", BEYOND_INT64],
    "stop": ["", ["a", ""], ["a"] * 5, 5, [5]],
    "min_tokens": [-1, 200, BEYOND_INT64],
    "ignore_eos": ["yes", 1],
    "stream": ["yes", 1],
    "stream_options": [{"include_usage": True}, {"surprise": 1}],
    "store": [True],
    "logprobs": [3, "yes"],
    "top_logprobs": [1, 21],
    "foredraft": [{"method": "ngrm"}, {"method": ""}, {"surprise": 1}, "ngram"],
    "response_format": [
        {"type": "xml"},
        {"type": "json_schema"},
        {"type": "json_object", "json_schema": {"name": "x", "schema": {}}},
        {"type": "json_schema", "json_schema": {"name": "x y", "schema": {}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "banana"}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}},
        {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "("}},
        },
    ],
    "messages": [
        [],
        "hello",
        [{}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 5}],
        [{"role": "tool", "content": "x", "tool_call_id": "y"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": "x", "name": "me"}],
        [{"role": "user", "content": "x", "surprise": 1}],
    ],
    "model": [None, 5],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in WRONG.items() for value in values],
)
def test_a_wrong_value_is_refused_and_named(server: Live, name: str, value: Any) -> None:
    error = refused(server, **{name: value})
    assert error["type"] == "invalid_request_error"
    assert name.removeprefix("max_completion") in f"{error['param']} {error['message']}"


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_an_unsupported_field_is_refused_unless_it_is_null(
    server: Live, path: str, name: str
) -> None:
    error = refused(server, path=path, **{name: ["x"]})
    assert error["param"] == name
    assert "not supported" in error["message"]
    prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": "the cat"}
    body = {"model": MODEL, **prompt, "max_tokens": 1, name: None}
    assert server.http.post(path, json=body).status_code == 200


@pytest.mark.parametrize("value", [1, None])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_an_unknown_field_is_refused_and_the_known_ones_told(
    server: Live, path: str, value: Any
) -> None:
    error = refused(server, path=path, temprature=value)
    assert error["code"] == "unknown_parameter"
    assert "did you mean 'temperature'?" in error["message"]
    assert ("messages" in error["message"]) == (path == CHAT)


@pytest.mark.parametrize(
    "prompt", ["", [], [[]], ["a", ""], [-1], [999], [True], ["a", 5], [[5], [999]], 5, {"a": 1}]
)
def test_a_prompt_that_is_none_is_refused(server: Live, prompt: Any) -> None:
    assert refused(server, path=TEXT, prompt=prompt)["message"]
    good = {"model": MODEL, "prompt": "the cat", "max_tokens": 2}
    assert server.http.post(TEXT, json=good).status_code == 200


def test_more_answers_than_digits_can_say_are_refused(server: Live) -> None:
    """Python writes no number of more than 4300 digits; a product of two of a request's may have them."""
    body = f'{{"model": "{MODEL}", "prompt": ["a", "b"], "n": {"9" * 4300}}}'
    headers = {"content-type": "application/json"}
    error = error_of(server.http.post(TEXT, content=body, headers=headers), 400)
    assert (error["param"], len(error["message"]) < 300) == ("n", True)


def test_a_context_that_is_too_small_is_told_with_numbers(server: Live) -> None:
    error = refused(server, path=TEXT, prompt=[60] * 150, max_tokens=90)
    for number in (150, 90, 240, CONTEXT):
        assert str(number) in error["message"]
    assert str(CONTEXT) in refused(server, path=TEXT, prompt=[60] * CONTEXT)["message"]


def test_two_limits_that_differ_are_refused(server: Live) -> None:
    assert "differ" in refused(server, max_tokens=5, max_completion_tokens=6)["message"]


def test_top_logprobs_need_logprobs(server: Live) -> None:
    assert "logprobs" in refused(server, logprobs=False, top_logprobs=2)["message"]


@pytest.mark.parametrize("fields", [{"min_tokens": 3}, {"ignore_eos": True}])
def test_a_grammar_says_where_an_answer_ends(server: Live, fields: dict[str, Any]) -> None:
    error = refused(server, response_format={"type": "json_object"}, **fields)
    assert "response_format" in error["message"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        DEEP.encode(),
        b'{"model": NaN}',
        b'{"a": 1e999}',
    ],
    ids=["empty", "open", "null", "list", "text", "binary", "deep", "nan", "infinite"],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_body_that_is_no_request_is_refused(server: Live, path: str, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    error_of(server.http.post(path, content=content, headers=headers), 400)


def test_a_body_that_is_no_json_is_told_where(server: Live) -> None:
    headers = {"content-type": "application/json"}
    error = error_of(server.http.post(TEXT, content=b'{"model"; 1}', headers=headers), 400)
    assert (error["message"], error["param"]) == (
        "the body is no JSON from its character 8 on",
        None,
    )


@pytest.mark.parametrize("kind", [None, "text/plain", "multipart/form-data; boundary=x", "\xff"])
def test_a_body_of_another_type_is_told_the_right_one(server: Live, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind.encode("latin-1")}
    content = f'{{"model": "{MODEL}", "prompt": "the cat"}}'
    error = error_of(server.http.post(TEXT, content=content, headers=headers), 400)
    assert "Content-Type: application/json" in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        b'"messages": [{"role": "user", "content": "\\ud83d"}]',
        b'"messages": [{"role": "user", "content": "x"}], "stop": "\\ud83d"',
    ],
    ids=["content", "stop"],
)
def test_half_a_character_is_refused(server: Live, fields: bytes) -> None:
    headers = {"content-type": "application/json"}
    content = b'{"model": "tiny", ' + fields + b"}"
    error_of(server.http.post(CHAT, content=content, headers=headers), 400)


def test_a_schema_that_is_deep_is_refused_or_followed(server: Live) -> None:
    schema: dict[str, Any] = {}
    for _ in range(200):
        schema = {"type": "object", "properties": {"a": schema}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 2, "response_format": form}
    assert server.http.post(CHAT, json=body).status_code in (200, 400)


def test_other_routes_and_methods_are_refused(server: Live) -> None:
    error_of(server.http.get("/nowhere"), 404)
    error_of(server.http.get(CHAT), 405)
    error_of(server.http.post("/health"), 405)
    assert refused(server, 404, model="other")["code"] == "model_not_found"
    assert error_of(server.http.get("/v1/models/other"), 404)["param"] == "model"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused(server: Live, chunked: bool) -> None:
    content = b"x" * 300_001
    sent: Any = iter([content[:200_000], content[200_000:]]) if chunked else content
    headers = {"content-type": "application/json"}
    error = error_of(server.http.post(CHAT, content=sent, headers=headers), 413)
    assert "300000" in error["message"]


def test_the_official_client_raises_its_own_errors(server: Live) -> None:
    client = server.client()
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=[])
    assert caught.value.param == "tools"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)


@pytest.fixture(scope="module")
def locked() -> Iterator[Live]:
    with live(api_keys=("first", " sécond ")) as running:
        yield running


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/nowhere", "/openapi.json"])
@pytest.mark.parametrize(
    "header", [None, "Bearer", "Bearer wrong", "Bearer firs", "Basic first", "first"]
)
def test_a_key_is_needed_for_all_but_health(locked: Live, path: str, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    response = locked.http.get(path, headers=headers)
    assert error_of(response, 401)["code"] == "invalid_api_key"
    assert locked.http.get("/health", headers=headers).status_code == 200


@pytest.mark.parametrize("key", ["first", "sécond"])
def test_each_key_opens(locked: Live, key: str) -> None:
    headers = {b"authorization": b"bearer " + key.encode()}
    assert locked.http.get("/v1/models", headers=headers).status_code == 200
    assert locked.http.get("/metrics", headers=headers).status_code == 200


def test_the_official_client_sends_its_key(locked: Live) -> None:
    assert locked.client("first").models.list().data
    with pytest.raises(openai.AuthenticationError):
        locked.client("wrong").models.list()
