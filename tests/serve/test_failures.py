"""Answers that fail: the request is told, nobody else notices, and nothing of the fault's inside is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from foredraft import Engine, NumericsError
from foredraft.protocols import Verdict
from foredraft.sampling.law import TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.serve.grammar import GrammarError
from foredraft.tree import DraftTree
from foredraft.verifiers.exact import ExactVerifier
from tests.serve.live import MODEL, PLAIN, Live, engines, live, target, tokenizer, wait_until
from tests.tiny_folders import byte_tokenizer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SECRET = "a detail of the inside"
FAULTS: dict[str, tuple[Exception, int]] = {
    "fault": (RuntimeError(SECRET), 500),
    "numerics": (NumericsError(SECRET), 500),
    "memory": (MemoryError(SECRET), 503),
    "device": (RuntimeError("CUDA out of memory"), 503),
    "grammar": (GrammarError("too complex"), 400),
}


class Failing(ExactVerifier):
    """Fails in the third round of every request."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        if laws._position(0) == NUM_PROMPT + 2:
            raise self.error
        return super().verify(tree, laws, random)


NUM_PROMPT = 2
PROMPT = [60, 70]


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    failing = {
        name: Engine(target(), verifier=Failing(error), tokenizer=tokenizer())
        for name, (error, _) in FAULTS.items()
    }
    with live(with_engines={PLAIN: engines()[PLAIN], **failing}) as running:
        yield running


def body(method: str, **fields: Any) -> dict[str, Any]:
    own = {"method": method}
    return {"model": MODEL, "prompt": PROMPT, "temperature": 0, "foredraft": own, **fields}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_in_openais_form(server: Live, name: str) -> None:
    _, status = FAULTS[name]
    response = server.http.post(TEXT, json=body(name))
    assert response.status_code == status
    error = response.json()["error"]
    assert error["type"] == ("invalid_request_error" if status == 400 else "server_error")
    assert SECRET not in response.text
    assert server.http.post(TEXT, json=body(PLAIN)).status_code == 200


@pytest.mark.parametrize("name", FAULTS)
def test_a_stream_tells_its_fault_and_ends(server: Live, name: str) -> None:
    response = server.http.post(TEXT, json=body(name, stream=True))
    assert response.status_code == 200
    *pieces, error, done = response.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    assert "error" in json.loads(error.removeprefix("data: "))
    texts = [json.loads(p.removeprefix("data: "))["choices"][0]["text"] for p in pieces]
    expected = engines()[PLAIN].generate(PROMPT, max_new_tokens=2).text
    assert expected.startswith("".join(texts))
    assert SECRET not in response.text


def test_nothing_is_left_of_answers_that_failed(server: Live) -> None:
    worker = server.service.worker
    server.http.post(TEXT, json=body("fault", n=3))
    wait_until(lambda: worker.num_running == worker.num_waiting == 0)


def test_health_tells_when_nothing_decodes_any_more() -> None:
    with live() as server:
        server.service.worker.abort()
        wait_until(lambda: not server.service.worker.alive)
        health = server.http.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "down"})
        assert server.http.post(TEXT, json=body(PLAIN)).status_code == 503


def test_an_empty_prompt_is_answered_where_the_tokenizer_adds_a_start() -> None:
    """Case 97; without a start it is refused (test_refusals)."""
    engine = Engine(target(), tokenizer=byte_tokenizer(adds_bos=True))
    with live(with_engines={PLAIN: engine}) as server:
        response = server.http.post(TEXT, json=body(PLAIN, prompt="", max_tokens=5))
        assert response.status_code == 200, response.text
        expected = engine.generate("", max_new_tokens=5).text
        assert response.json()["choices"][0]["text"] == expected


def test_without_a_tokenizer_token_ids_are_answered_and_text_is_refused() -> None:
    with live(with_engines={PLAIN: Engine(target())}) as server:
        assert server.http.post(TEXT, json=body(PLAIN)).status_code == 200
        for fields in ({"prompt": "x"}, {"stop": "x"}, {"logprobs": 1}):
            refused = server.http.post(TEXT, json=body(PLAIN, **fields))
            assert refused.status_code == 400, fields
            assert "tokenizer" in refused.json()["error"]["message"]
        messages = [{"role": "user", "content": "x"}]
        chat = {"model": MODEL, "messages": messages}
        assert server.http.post(CHAT, json=chat).status_code == 400
