"""200 requests of 16 clients, good, bad and abandoned: each answer is that of the request alone."""

from __future__ import annotations

import gc
import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import httpx
import jsonschema

from foredraft.engine.session import Session
from tests.serve.live import MODEL, NGRAM, PLAIN, TREE, Live, engines, live, wait_until

NUM_REQUESTS, NUM_CLIENTS = 200, 16
CHAT = "/v1/chat/completions"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
BAD: tuple[dict[str, Any], ...] = (
    {"temperature": 9},
    {"max_tokens": 10_000},
    {"tools": []},
    {"logit_bias": {"999": 1}},
    {"model": "other"},
    {"messages": []},
)
SLOWEST_HEALTH_S = 1.0
"""Of 100 answers to /health, the slowest but one. It is under 0.2 where tests do not run beside others."""


def request(number: int) -> dict[str, Any]:
    """The body of a good request; it follows from its number."""
    draw = random.Random(number)
    words = [
        draw.choice(["the", "cat", "sat", "on", "mat", "é"]) for _ in range(draw.randint(1, 12))
    ]
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": " ".join(words)}],
        "max_tokens": draw.randint(1, 14),
        "seed": number % 7,
        "temperature": draw.choice([0, 1.0]),
        "foredraft": {"method": draw.choice([PLAIN, NGRAM, TREE])},
    }
    kind = number % 8
    if kind == 1:
        body["stop"] = [draw.choice("abcdefghij"), "the"]
    elif kind == 2:
        body["n"] = 2
    elif kind == 3:
        body["frequency_penalty"] = 1.5
    elif kind == 4:
        body["response_format"] = FORM
    return body


@cache
def alone(number: int) -> tuple[tuple[str, str], ...]:
    """Texts and reasons of the request's answers, without a server and plainly."""
    body = request(number)
    if "response_format" in body:
        return ()
    return tuple(
        (result.text, result.finish_reason)
        for choice in range(body.get("n", 1))
        for result in [
            engines()[PLAIN].generate(
                body["messages"],
                max_new_tokens=body["max_tokens"],
                seed=body["seed"],
                temperature=body["temperature"],
                stop=body.get("stop", ()),
                frequency_penalty=body.get("frequency_penalty", 0.0),
                choice=choice,
            )
        ]
    )


class Client:
    """Sends its share of the requests, one after the other."""

    def __init__(self, server: Live) -> None:
        self.http = httpx.Client(base_url=server.url, timeout=60)
        self.seen: dict[int, Any] = {}

    def send(self, number: int) -> None:
        """Request `number`: every ninth is bad, every eleventh is left, every third is streamed."""
        if number % 9 == 8:
            response = self.http.post(CHAT, json={**request(number), **BAD[number % len(BAD)]})
            assert response.status_code in (400, 404), response.text
            return
        if number % 11 == 10:
            self._leave({**request(number), "max_tokens": 60, "stream": True})
            return
        self.seen[number] = self._stream(number) if number % 3 == 0 else self._whole(number)

    def _whole(self, number: int) -> Any:
        response = self.http.post(CHAT, json=request(number))
        assert response.status_code == 200, response.text
        choices = response.json()["choices"]
        return tuple((c["message"]["content"], c["finish_reason"]) for c in choices)

    def _stream(self, number: int) -> Any:
        body = {**request(number), "stream": True}
        texts, reasons = [""] * body.get("n", 1), [""] * body.get("n", 1)
        with self.http.stream("POST", CHAT, json=body) as response:
            *events, done = [line for line in response.iter_lines() if line]
        assert done == "data: [DONE]"
        for line in events:
            for choice in httpx.Response(200, text=line[6:]).json()["choices"]:
                texts[choice["index"]] += choice["delta"].get("content", "")
                reasons[choice["index"]] += choice["finish_reason"] or ""
        return tuple(zip(texts, reasons, strict=True))

    def _leave(self, body: dict[str, Any]) -> None:
        with self.http.stream("POST", CHAT, json=body) as response:
            next(response.iter_lines())


class Pulse:
    """Asks for the server's health all the while."""

    def __init__(self, server: Live) -> None:
        self.seconds: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, args=(server.url,))
        self._thread.start()

    def _ask(self, url: str) -> None:
        with httpx.Client(base_url=url) as http:
            while not self._over.wait(0.03):
                started = time.perf_counter()
                assert http.get("/health").status_code == 200
                self.seconds.append(time.perf_counter() - started)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def run(server: Live) -> dict[int, Any]:
    """All requests; what came back by their numbers."""
    clients = [Client(server) for _ in range(NUM_CLIENTS)]
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        shares = [
            pool.submit(lambda c, k: [c.send(n) for n in range(k, NUM_REQUESTS, NUM_CLIENTS)], c, k)
            for k, c in enumerate(clients)
        ]
        for share in shares:
            share.result(120)
    for client in clients:
        client.http.close()
    return {number: answer for client in clients for number, answer in client.seen.items()}


def open_sessions() -> int:
    """Sessions that still hold memory."""
    gc.collect()
    return sum(type(o) is Session and not o._closed for o in gc.get_objects())


def test_each_answer_is_that_of_the_request_alone() -> None:
    before = open_sessions()
    with live(max_batch=6, max_queue=64) as server:
        pulse = Pulse(server)
        try:
            seen = run(server)
        finally:
            pulse.stop()
        worker = server.service.worker
        wait_until(lambda: worker.num_running == worker.num_waiting == 0)
        assert open_sessions() == before
    assert len(seen) > 150
    for number, answer in seen.items():
        if "response_format" not in request(number):
            assert answer == alone(number), f"request {number}"
            continue
        for text, reason in answer:
            if reason == "stop":
                jsonschema.validate(httpx.Response(200, text=text).json(), SCHEMA)
    assert statistics.quantiles(pulse.seconds, n=100)[98] < SLOWEST_HEALTH_S
