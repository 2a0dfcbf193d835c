"""Clients that leave, queues that are full, time that runs out, and a server that ends."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from foredraft.engine.batch import Batch, Progress
from foredraft.engine.stream import Stream
from foredraft.serve import server as server_module
from tests.serve.live import MODEL, PLAIN, Live, engines, live, target, wait_until
from tests.tiny_folders import save_folder

MESSAGES: Any = [{"role": "user", "content": "the cat"}]
LONG: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 150, "ignore_eos": True}
SHORT: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 3, "seed": 1}
CHAT = "/v1/chat/completions"


class Slow(Batch):
    """A batch that takes its time; notes how many streams were joined and were closed."""

    def __init__(self, seconds: float = 0.02) -> None:
        super().__init__(target())
        self.seconds = seconds
        self.joined: list[Stream] = []

    def join(self, stream: Stream) -> None:
        self.joined.append(stream)
        super().join(stream)

    def round(self) -> list[Progress]:
        time.sleep(self.seconds)
        return super().round()

    @property
    def all_closed(self) -> bool:
        """Whether every session has given its memory back."""
        return all(stream._session._closed for stream in self.joined)


@pytest.fixture
def slow() -> Iterator[tuple[Live, Slow]]:
    rounds = Slow()
    with live(rounds=rounds, max_batch=2, max_queue=1) as running:
        yield running, rounds


def is_idle(server: Live) -> bool:
    worker = server.service.worker
    return worker.num_running == worker.num_waiting == 0


def send(server: Live, body: dict[str, Any]) -> socket.socket:
    """A request on a socket of its own, whose response is not read."""
    content = json.dumps(body).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    connection = socket.create_connection(("127.0.0.1", server.server.port))
    connection.sendall(head.encode() + content)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(slow: tuple[Live, Slow], stream: bool) -> None:
    server, rounds = slow
    for _ in range(5):
        connection = send(server, {**LONG, "stream": stream})
        wait_until(lambda: server.service.worker.num_running == 1)
        connection.close()
        wait_until(lambda: is_idle(server), 2)
    assert len(rounds.joined) == 5
    assert rounds.all_closed
    assert max(len(stream.rounds) for stream in rounds.joined) < 100, "decoded to its end"
    answer = server.http.post(CHAT, json=SHORT).json()
    assert answer["choices"][0]["message"]["content"] == alone()


def alone() -> str:
    """The short request's answer without a server."""
    result = engines()[PLAIN].generate(MESSAGES, max_new_tokens=3, seed=1, temperature=1.0)
    return result.text


def test_a_client_that_leaves_the_queue_is_never_begun(slow: tuple[Live, Slow]) -> None:
    server, rounds = slow
    running = [send(server, {**LONG, "stream": True}) for _ in range(2)]
    wait_until(lambda: server.service.worker.num_running == 2)
    waiting = send(server, LONG)
    wait_until(lambda: server.service.worker.num_waiting == 1)
    waiting.close()
    wait_until(lambda: server.service.worker.num_waiting == 0)
    for connection in running:
        connection.close()
    wait_until(lambda: is_idle(server))
    assert len(rounds.joined) == 2
    assert rounds.all_closed


def test_a_full_queue_is_told_at_once(slow: tuple[Live, Slow]) -> None:
    server, _ = slow
    kept = [send(server, {**LONG, "stream": True}) for _ in range(3)]
    wait_until(lambda: server.service.worker.num_waiting == 1)
    started = time.perf_counter()
    response = server.http.post(CHAT, json=SHORT)
    assert time.perf_counter() - started < 1
    assert response.status_code == 429
    assert response.headers["retry-after"]
    assert response.json()["error"]["code"] == "queue_full"
    with pytest.raises(openai.RateLimitError):
        server.client().chat.completions.create(model=MODEL, messages=MESSAGES)
    for connection in kept:
        connection.close()
    wait_until(lambda: is_idle(server))
    assert server.http.post(CHAT, json=SHORT).status_code == 200


def test_a_request_that_never_fits_is_refused_for_good(slow: tuple[Live, Slow]) -> None:
    server, _ = slow
    response = server.http.post(CHAT, json={**SHORT, "n": 4})
    assert response.status_code == 400
    assert "at most 3" in response.json()["error"]["message"]


def test_refused_requests_keep_no_place(slow: tuple[Live, Slow]) -> None:
    server, _ = slow
    for _ in range(5):
        assert server.http.post(CHAT, json={**SHORT, "logit_bias": {"999": 1}}).status_code == 400
    assert is_idle(server)
    assert server.http.post(CHAT, json={**SHORT, "n": 3}).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_time_limit_ends_a_request(stream: bool) -> None:
    rounds = Slow()
    with live(rounds=rounds, time_limit_s=0.3) as server:
        response = server.http.post(CHAT, json={**LONG, "stream": stream})
        if stream:
            *_, error, done = response.text.strip().split("\n\n")
            assert done == "data: [DONE]"
            told = json.loads(error.removeprefix("data: "))["error"]
        else:
            assert response.status_code == 504
            assert response.headers["x-should-retry"] == "false"
            told = response.json()["error"]
        assert told["code"] == "time_limit"
        assert "0.3 seconds" in told["message"]
        wait_until(lambda: is_idle(server))
        assert rounds.all_closed


def test_health_does_not_wait_for_decoding() -> None:
    rounds = Slow(0.4)
    with live(rounds=rounds) as server:
        connection = send(server, {**LONG, "stream": True})
        wait_until(lambda: server.service.worker.num_running == 1)
        started = time.perf_counter()
        assert server.http.get("/health").status_code == 200
        assert "foredraft_running_answers 1.0" in server.http.get("/metrics").text
        assert time.perf_counter() - started < 0.3
        connection.close()


# --- the end ----------------------------------------------------------------------------------------


def test_a_signal_lets_running_answers_finish_and_no_others_begin() -> None:
    with live(rounds=Slow(), grace_s=20) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.http.post, CHAT, json={**LONG, "max_tokens": 30})
        wait_until(lambda: server.service.worker.num_running == 1)
        server.server.handle_exit(signal.SIGTERM, None)
        with httpx.Client(base_url=server.url) as other:
            refused = other.post(CHAT, json=SHORT)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "shutting_down"
            health = other.get("/health")
            assert (health.status_code, health.json()) == (503, {"status": "shutting down"})
        response = answer.result(30).json()
        assert response["usage"]["completion_tokens"] == 30
        wait_until(lambda: not server.service.worker.alive)


def test_a_second_signal_or_the_end_of_grace_tells_those_who_wait() -> None:
    with live(rounds=Slow(), grace_s=0.1) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.http.post, CHAT, json={**LONG, "stream": True})
        wait_until(lambda: server.service.worker.num_running == 1)
        server.server.handle_exit(signal.SIGINT, None)
        *_, error, done = answer.result(30).text.strip().split("\n\n")
        assert done == "data: [DONE]"
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "shutting_down"
        wait_until(lambda: not server.service.worker.alive)
        server.server.handle_exit(signal.SIGINT, None)
        assert server.server.force_exit


def test_a_second_signal_leaves_no_trace(capfd: pytest.CaptureFixture[str]) -> None:
    with live(rounds=Slow()) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.http.post, CHAT, json={**LONG, "stream": True})
        wait_until(lambda: server.service.worker.num_running == 1)
        for _ in range(2):
            server.server.handle_exit(signal.SIGINT, None)
        with contextlib.suppress(httpx.HTTPError):
            answer.result(30)
    assert "Traceback" not in capfd.readouterr().err


def test_half_a_request_is_told_of_the_end(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server_module, "CLOSING_S", 1)
    with live() as server, socket.create_connection(("127.0.0.1", server.server.port)) as half:
        half.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n"
            b"Content-Type: application/json\r\n\r\n{"
        )
        wait_until(lambda: server.server.server_state.tasks)
        server.server.handle_exit(signal.SIGTERM, None)
        half.settimeout(20)
        assert half.recv(4096).startswith(b"HTTP/1.1 503")
        wait_until(lambda: not server.service.worker.alive)
    assert "Traceback" not in capfd.readouterr().err


def test_the_command_serves_until_a_signal_and_exits_with_0(tmp_path: Path) -> None:
    save_folder(tmp_path / "tiny")
    command = [sys.executable, "-m", "foredraft", "serve", "--model", str(tmp_path / "tiny")]
    options = ["--port", "0", "--methods", "ngram,autoregressive", "--dtype", "float32"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        address = next(line for line in lines if "listening at " in line).split()[-1]
        reader = threading.Thread(target=process.stderr.read)
        reader.start()
        body = {**SHORT, "foredraft": {"method": "autoregressive"}}
        response = httpx.post(f"{address}/chat/completions", json=body, timeout=60)
        assert response.status_code == 200, response.text
        process.terminate()
        assert process.wait(30) == 0
        reader.join()
