"""Rounds in streams: what is told is what the engine alone would trace, and nothing changes by it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import pytest

from foredraft import Engine, GenerationOptions
from foredraft.bench.trace.document import make_trace
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engine.stream import Stream
from foredraft.engine.trace.live import LiveTrace
from foredraft.engine.trace.shown import TraceRound
from foredraft.results import Step
from tests.serve.browsing import rooted
from tests.serve.live import MODEL, NGRAM, PLAIN, TREE, Live, engines, live, target, tokenizer

MESSAGES = [{"role": "user", "content": "the cat sat on the mat, the cat sat"}]
BASE: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "seed": 3}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live() as running:
        yield running


def pieces(server: Live, path: str = CHAT, trace: bool | None = True, **fields: Any) -> list[Any]:
    """The choices of a stream, in order."""
    own = {"method": fields.pop("method", TREE), "trace": trace}
    body = {**BASE, **fields, "stream": True, "foredraft": own}
    response = server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    *events, done = response.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    documents = [json.loads(event.removeprefix("data: ")) for event in events]
    return [choice for document in documents for choice in document["choices"]]


def rounds(found: list[Any], index: int = 0) -> list[dict[str, Any]]:
    return [c["foredraft"]["round"] for c in found if c["index"] == index and "foredraft" in c]


def content(found: list[Any], index: int = 0) -> str:
    return "".join(c["delta"].get("content", "") for c in found if c["index"] == index)


def traced(method: str, **changes: Any) -> list[dict[str, Any]]:
    """The rounds that the engine has alone."""
    options = {"max_new_tokens": 24, "seed": 3, "temperature": 1.0, **changes}
    document = make_trace(engines()[method], MESSAGES, GenerationOptions(**options))
    return json.loads(json.dumps([asdict(each) for each in document.rounds]))


def without_times(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for each in told:
        assert all(ms >= 0 for stage, ms in each["times"].items() if stage != "other")
    return [{name: value for name, value in each.items() if name != "times"} for each in told]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", [PLAIN, NGRAM, TREE])
def test_the_rounds_are_those_of_the_engine_alone(
    server: Live, method: str, temperature: float
) -> None:
    found = pieces(server, method=method, temperature=temperature)
    told = without_times(rounds(found))
    assert told == without_times(traced(method, temperature=temperature))
    texts = [token["text"] for each in told for token in each["tokens"]]
    assert "".join(texts) == content(found) != ""


def test_a_trace_changes_no_word(server: Live) -> None:
    with_trace, without = pieces(server, trace=True), pieces(server, trace=None)
    assert content(with_trace) == content(without)
    assert not any("foredraft" in choice for choice in without)


def test_the_kinds_are_counted_as_in_usage(server: Live) -> None:
    own = {"method": TREE, "trace": True}
    body = {**BASE, "stream": True, "foredraft": own, "stream_options": {"include_usage": True}}
    *events, _ = server.http.post(CHAT, json=body).text.strip().split("\n\n")
    documents = [json.loads(event.removeprefix("data: ")) for event in events]
    told = rounds([choice for each in documents for choice in each["choices"]])
    usage = documents[-1]["usage"]
    assert sum(len(each["tokens"]) for each in told) == usage["completion_tokens"]
    whole = [each for each in told if not each["cut"]]
    kinds = [token["kind"] for each in whole for token in each["tokens"]]
    assert kinds.count("accepted") == usage["foredraft"]["accepted_tokens"] > 0
    assert len(whole) == usage["foredraft"]["rounds"]


def test_each_answer_is_told_whatever_runs_beside_it(server: Live) -> None:
    expected = without_times(traced(TREE))
    with ThreadPoolExecutor(4) as pool:
        many = [pool.submit(pieces, server, n=2, method=m) for m in (TREE, NGRAM, TREE, PLAIN)]
        found = [each.result(60) for each in many]
    for one in (found[0], found[2]):
        told = without_times(rounds(one))
        assert [ids_of(each) for each in told] == [ids_of(each) for each in expected]
        assert rounds(one, 1) != rounds(one, 0)


def ids_of(told: dict[str, Any]) -> Any:
    """What floats that were added in another order leave as it is."""
    nodes = [(n["parent"], n["token_id"], n["accepted"]) for n in told["nodes"]]
    return nodes, [(t["token_id"], t["kind"], t["text"]) for t in told["tokens"]], told["last"]


def test_a_stop_string_cuts_the_text_that_is_told(server: Live) -> None:
    whole = content(pieces(server, temperature=0))
    stop = whole[9:11]
    found = pieces(server, temperature=0, stop=stop)
    last = rounds(found)[-1]
    assert content(found) == whole[: whole.index(stop)]
    options = GenerationOptions(max_new_tokens=24, temperature=0, stop=(stop,))
    alone = make_trace(engines()[TREE], MESSAGES, options).rounds[-1]
    assert last["tokens"][-1]["token_id"] == alone.tokens[-1].token_id
    assert last["cut"] is alone.cut


def test_texts_are_told_too(server: Live) -> None:
    fields = {"messages": None, "prompt": "the cat sat on the cat"}
    body = {**BASE, **fields, "stream": True, "foredraft": {"trace": True, "method": NGRAM}}
    del body["messages"]
    *events, _ = server.http.post(TEXT, json=body).text.strip().split("\n\n")
    found = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    told = "".join(token["text"] for each in rounds(found) for token in each["tokens"])
    assert told == "".join(choice["text"] for choice in found) != ""


def test_an_answer_that_follows_a_grammar_is_told(server: Live) -> None:
    form = {"type": "json_object"}
    found = pieces(server, response_format=form, temperature=0)
    told = "".join(token["text"] for each in rounds(found) for token in each["tokens"])
    assert told == content(found)
    assert told.startswith("{")


def test_it_is_for_streams(server: Live) -> None:
    response = server.http.post(CHAT, json={**BASE, "foredraft": {"trace": True}})
    assert response.status_code == 400
    assert "set stream to true" in response.json()["error"]["message"]


def test_open_roots_are_refused_by_name() -> None:
    with live(with_engines={"rooted": rooted()}) as server:
        body = {**BASE, "stream": True, "foredraft": {"trace": True}}
        response = server.http.post(CHAT, json=body)
        assert response.status_code == 400
        assert "rooted drafts from open roots" in response.json()["error"]["message"]
        (card,) = server.http.get("/v1/models").json()["data"]
        assert [m["trace"] for m in card["foredraft"]["methods"]] == [False, True]


def test_a_trace_that_fails_fails_alone(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: LiveTrace, stream: Stream, step: Step) -> TraceRound:
        raise RuntimeError("broken")

    monkeypatch.setattr(LiveTrace, "read", fail)
    body = {**BASE, "stream": True, "foredraft": {"trace": True, "method": TREE}}
    text = server.http.post(CHAT, json=body).text
    assert "the answer failed (RuntimeError)" in text
    assert content(pieces(server, trace=None)) != ""
    assert server.service.worker.num_running == 0


def test_the_models_card_tells_what_there_is_and_plain_decoding_always_is() -> None:
    only = {NGRAM: Engine(target(), NgramDrafter(), tokenizer=tokenizer())}
    with live(with_engines=only, max_tokens=50) as server:
        (card,) = server.http.get("/v1/models").json()["data"]
        own = card["foredraft"]
        assert [(m["name"], m["plain"]) for m in own["methods"]] == [(NGRAM, False), (PLAIN, True)]
        assert own["max_tokens"] == 50
        assert content(pieces(server, method=PLAIN)) == content(pieces(server, method=NGRAM))
