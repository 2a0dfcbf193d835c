"""What `/metrics` tells is what happened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from foredraft import Result
from tests.serve.live import MODEL, NGRAM, PLAIN, TREE, Live, engines, live

CHAT = "/v1/chat/completions"
MESSAGES: Any = [{"role": "user", "content": "the cat sat on the mat the cat"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(max_batch=5) as running:
        yield running


def samples(server: Live) -> dict[tuple[str, frozenset[str]], float]:
    """Values by name and labels' values."""
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    return {
        (sample.name.removeprefix("foredraft_"), frozenset(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def ask(server: Live, method: str, max_tokens: int) -> Result:
    body = {
        "model": MODEL,
        "messages": MESSAGES,
        "max_tokens": max_tokens,
        "temperature": 0,
        "foredraft": {"method": method},
    }
    assert server.http.post(CHAT, json=body).status_code == 200
    return engines()[method].generate(MESSAGES, max_new_tokens=max_tokens)


@pytest.mark.parametrize("method", [PLAIN, NGRAM, TREE])
def test_tokens_rounds_and_depths_are_counted(server: Live, method: str) -> None:
    results = [ask(server, method, n) for n in (7, 12)]
    found = samples(server)

    def value(name: str, *labels: str) -> float:
        return found.get((name, frozenset((method, *labels))), 0.0)

    assert value("tokens_total", "completion") == sum(len(r.token_ids) for r in results)
    assert value("tokens_total", "prompt") == sum(len(r.prompt_ids) for r in results)
    assert value("tokens_total", "drafted") == sum(r.stats.drafted_tokens for r in results)
    assert value("tokens_total", "accepted") == sum(r.stats.accepted_tokens for r in results)
    assert value("rounds_total") == sum(len(r.stats.rounds) for r in results)
    assert value("answers_total", "length") + value("answers_total", "stop") == 2
    rounds = [record for r in results for record in r.stats.whole_rounds]
    for depth in (1, 2):
        reached = [record for record in rounds if record.depth >= depth]
        accepted = [record for record in reached if record.num_accepted >= depth]
        assert value("draft_depth_reached_total", str(depth)) == len(reached)
        assert value("draft_depth_accepted_total", str(depth)) == len(accepted)
    for stage in ("prefill", "target", "verify"):
        assert value("stage_seconds_total", stage) > 0
    assert value("stage_seconds_total", "draft") > 0 or method == PLAIN


def test_responses_are_counted_by_route_and_status(server: Live) -> None:
    before = samples(server)
    server.http.get("/health")
    server.http.get("/nowhere/at/all")
    server.http.post(CHAT, json={})
    after = samples(server)

    def more(*labels: str) -> float:
        key = ("requests_total", frozenset(labels))
        return after.get(key, 0.0) - before.get(key, 0.0)

    assert more("/health", "200") == 1
    assert more("other", "404") == 1
    assert more(CHAT, "400") == 1
    assert after[("request_seconds_count", frozenset(["/health"]))] >= 1


def test_an_idle_server_holds_nothing(server: Live) -> None:
    ask(server, PLAIN, 3)
    found = samples(server)
    for name in ("queued_answers", "running_answers", "cached_tokens"):
        assert found[(name, frozenset())] == 0
    assert found[("batch_size", frozenset())] == 5
