"""A live server of a tiny model: uvicorn on a free port of this machine, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx
from openai import OpenAI

from foredraft import Engine
from foredraft.backends.hf import HFTarget
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.policies.fixed import FixedPolicy
from foredraft.serve.rounds import Rounds
from foredraft.serve.server import DrainingServer
from foredraft.serve.service import Service
from foredraft.serve.settings import ServeSettings
from tests.tiny_folders import byte_tokenizer
from tests.tiny_models import tiny_llama

MODEL = "tiny"
CONTEXT = 192
PLAIN, NGRAM, TREE = "autoregressive", "ngram", "speculative:tree=2,2"


@cache
def tokenizer() -> Any:
    return byte_tokenizer()


@cache
def target() -> HFTarget:
    model = tiny_llama(vocab_size=len(tokenizer()), max_position_embeddings=CONTEXT)
    return HFTarget(model, tokenizer())


@cache
def engines() -> dict[str, Engine]:
    """Plain decoding, copies, and a tree of the target's own drafts (nearly all of them right)."""
    return {
        NGRAM: Engine(target(), NgramDrafter(), tokenizer=tokenizer()),
        PLAIN: Engine(target(), tokenizer=tokenizer()),
        TREE: Engine(
            target(), DraftModelDrafter(target()), FixedPolicy("2,2"), tokenizer=tokenizer()
        ),
    }


class Live:
    """A server that answers."""

    def __init__(self, service: Service, server: DrainingServer) -> None:
        self.service, self.server = service, server
        self.url = f"http://127.0.0.1:{server.port}"
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def client(self, key: str = "any", retries: int = 0) -> OpenAI:
        """The official client."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=retries, timeout=60)


@contextmanager
def live(
    *,
    with_engines: Mapping[str, Engine] | None = None,
    rounds: Rounds | None = None,
    **settings: Any,
) -> Iterator[Live]:
    """A running server; it is stopped at the end."""
    limits = ServeSettings(model_name=MODEL, **settings)
    service = Service(limits, with_engines or engines(), rounds)
    server = DrainingServer(service, "127.0.0.1", 0, lambda sentence: None)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    running = Live(service, server)
    try:
        yield running
    finally:
        running.http.close()
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not end"


def wait_until(holds: Any, seconds: float = 20.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)
