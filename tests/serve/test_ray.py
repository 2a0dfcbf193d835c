"""Replicas on a local Ray: one is killed under load, and only what it held is lost."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from foredraft.serve.ray import app
from tests.tiny_folders import save_folder

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # or a token is left in the user's home
ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of several kinds
]

REQUESTS, CLIENTS = 60, 6
DEADLINE_S = 120


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two replicas of a tiny model, behind a proxy on a free port of this machine."""
    from ray import serve

    model = str(save_folder(tmp_path_factory.mktemp("ray") / "model"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    environment = {"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}}
    ray.init(num_cpus=4, include_dashboard=False, runtime_env=environment, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        arguments = {"model": model, "served_name": "tiny", "replicas": 2, "methods": "ngram"}
        serve.run(app({**arguments, "dtype": "float32"}))
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


def ask(url: str, number: int) -> httpx.Response | Exception:
    body = {
        "model": "tiny",
        "prompt": "the cat",
        "max_tokens": 24,
        "temperature": 0,
        "user": str(number),
    }
    try:
        return httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    except httpx.HTTPError as error:
        return error


def replica_pids() -> list[int]:
    """The processes of the replicas that run."""
    from ray.serve.context import _get_global_client

    details = _get_global_client().get_serve_details()
    replicas = details["applications"]["default"]["deployments"]["foredraft"]["replicas"]
    return [replica["pid"] for replica in replicas if replica["state"] == "RUNNING"]


def good(answer: Any) -> bool:
    return isinstance(answer, httpx.Response) and answer.status_code == 200


def test_only_what_a_killed_replica_held_is_lost(url: str) -> None:
    assert good(ask(url, 0))
    before = replica_pids()
    assert len(before) == 2
    with ThreadPoolExecutor(CLIENTS) as clients:
        asked = [clients.submit(ask, url, number) for number in range(REQUESTS)]
        while sum(answer.done() for answer in asked) < REQUESTS // 4:
            time.sleep(0.01)
        os.kill(before[0], signal.SIGKILL)
        answers = [answer.result() for answer in asked]
    lost = [answer for answer in answers if not good(answer)]
    assert len(lost) <= CLIENTS, lost  # no more than were on their way
    texts = {answer.json()["choices"][0]["text"] for answer in answers if good(answer)}
    assert len(texts) == 1  # greedy: every replica gives the same
    _until_replaced(before[0])
    assert all(good(ask(url, number)) for number in range(8))


def _until_replaced(pid: int) -> None:
    """Wait for Ray to begin another replica in the place of a dead one."""
    until = time.monotonic() + DEADLINE_S
    while len(pids := replica_pids()) < 2 or pid in pids:
        assert time.monotonic() < until, pids
        time.sleep(0.5)


def test_errors_are_the_servers_own(url: str) -> None:
    refused = httpx.post(f"{url}/v1/completions", json={"model": "other", "prompt": "a"})
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "model_not_found"
