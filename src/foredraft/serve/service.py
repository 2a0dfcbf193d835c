"""Everything a running server holds: engines, the worker, counts."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from llguidance import LLMatcher, LLTokenizer

from foredraft import __version__
from foredraft.backends.hf import HFTarget
from foredraft.engine.batch import Batch
from foredraft.engine.engine import Engine
from foredraft.engine.prefixes import forget_prefixes, keep_prefixes, prefix_caches
from foredraft.engine.trace.names import TokenNames
from foredraft.errors import ConfigError, suggestion
from foredraft.serve.answers import Answers
from foredraft.serve.asks import Ask
from foredraft.serve.errors import ApiError
from foredraft.serve.grammar import compile_schema, token_bytes_of
from foredraft.serve.metrics import Metrics
from foredraft.serve.rounds import Rounds
from foredraft.serve.schemas import Shared
from foredraft.serve.settings import ServeSettings
from foredraft.serve.worker import Worker

PREFIX_COUNTS = {
    "lookups": "Texts that were begun",
    "hits": "Texts of which the start was known",
    "restored_tokens": "Tokens that were not computed again",
    "num_bytes": "Bytes of kept rows",
    "evicted_blocks": "Blocks of tokens dropped for want of room",
}
Body = TypeVar("Body", bound=Shared)


PLAIN = "autoregressive"


class Service:
    """A server without its HTTP.

    Args:
        settings: its name and limits.
        engines: by the names of their methods; they share a target. The first answers where none is named.
            Plain decoding is added: it needs nothing more, and is what the others are compared with.
        rounds: decodes; None is a batch of the target's.
    """

    def __init__(
        self, settings: ServeSettings, engines: Mapping[str, Engine], rounds: Rounds | None = None
    ) -> None:
        first = next(iter(engines.values()))
        self.settings, self.engines = settings, {**engines, **_plain(engines)}
        self.created = int(time.time())
        self.metrics = Metrics()
        forget_prefixes(list(self.engines.values()))
        if settings.prefix_cache_mb and isinstance(first.target, HFTarget):
            keep_prefixes(list(self.engines.values()), settings.prefix_cache_mb)
        self.names = TokenNames(first)
        self.worker = Worker(
            Batch(first.target) if rounds is None else rounds,
            max_batch=settings.max_batch,
            max_queue=settings.max_queue,
            observer=self.metrics,
        )
        self._preparing = ThreadPoolExecutor(1, "foredraft-preparing")
        self._tokens = self._read_tokens(first)
        self._watch()

    def _read_tokens(self, engine: Engine) -> LLTokenizer | ConfigError:
        target = engine.target
        try:
            return token_bytes_of(engine.tokenizer, target.vocab_size, target.eos_token_ids)
        except ConfigError as error:
            return error

    def _watch(self) -> None:
        worker, watch = self.worker, self.metrics.watch
        watch("queued_answers", "Answers that wait for their turn", lambda: worker.num_waiting)
        watch("running_answers", "Answers that are decoded now", lambda: worker.num_running)
        watch("cached_tokens", "Tokens of running answers", lambda: worker.num_cached_tokens)
        for name, text in PREFIX_COUNTS.items():
            watch(f"prefix_cache_{name}", text, partial(self._prefixes, name))
        watch("batch_size", "Answers decoded at once at most", lambda: self.settings.max_batch)

    def _prefixes(self, name: str) -> float:
        """A count of the prefix caches of all models; 0 where there are none."""
        caches = {id(c): c for e in self.engines.values() for c in prefix_caches(e)}
        return float(sum(getattr(cache.counts(), name) for cache in caches.values()))

    def start(self) -> None:
        """Begin to work."""
        self.worker.start()

    def stop(self) -> None:
        """End after the round in progress; what is left fails."""
        self.worker.stop()
        forget_prefixes(list(self.engines.values()))
        self._preparing.shutdown(cancel_futures=True)

    @property
    def tokens(self) -> LLTokenizer:
        """The bytes of the model's tokens.

        Raises:
            ConfigError: its tokenizer does not tell them.
        """
        if isinstance(self._tokens, ConfigError):
            raise self._tokens
        return self._tokens

    def matcher(self, schema: Any) -> LLMatcher:
        """A matcher of a JSON schema. Errors as in `compile_schema`."""
        return compile_schema(self.tokens, schema)

    def engine_for(self, body: Shared) -> tuple[str, Engine]:
        """The method that a request names, or the first.

        Raises:
            ApiError: the server does not have it.
        """
        first = next(iter(self.engines))
        asked = None if body.foredraft is None else body.foredraft.method
        name = first if asked is None else asked
        if name not in self.engines:
            hint = suggestion(name, self.engines)
            message = f"this server has no method {name!r}; {hint}"
            raise ApiError(400, message, param="foredraft.method")
        return name, self.engines[name]

    async def admit(
        self, body: Body, num_prompts: int, prepare: Callable[[Service, Body], Ask]
    ) -> tuple[Ask, Answers]:
        """Check a request, in a thread that may take its time, and queue its answers.

        Args:
            body: the request.
            num_prompts: its prompts.
            prepare: makes the ask.

        Raises:
            ApiError, ConfigError, PromptError: it cannot be answered.
            QueueFullError, ShuttingDownError: not now.
        """
        self.check_model(body.model)
        count = self._check_count(num_prompts * (body.n or 1))
        self.worker.reserve(count)
        try:
            loop = asyncio.get_running_loop()
            ask = await loop.run_in_executor(self._preparing, prepare, self, body)
            return ask, Answers(self.worker, ask.starts(), self.settings.time_limit_s)
        except BaseException:
            self.worker.release(count)
            raise

    def check_model(self, name: str) -> None:
        """Raises `ApiError` if this is not the server's model."""
        own = self.settings.model_name
        if name != own:
            message = f"this server has no model {name!r}; it has {own!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def _check_count(self, count: int) -> int:
        most = min(self.settings.max_choices, self.settings.capacity)
        if count > most:
            message = (
                f"this request asks for {count} answers; this server gives at most {most} to one"
            )
            raise ApiError(400, message, param="n")
        return count

    def head(self, prefix: str, kind: str, method: str) -> dict[str, Any]:
        """What every document of one response begins with."""
        made_by = f"{__version__}:{self.settings.model_name}:{method}"
        return {
            "id": f"{prefix}-{secrets.token_hex(16)}",
            "object": kind,
            "created": int(time.time()),
            "model": self.settings.model_name,
            "system_fingerprint": f"fp_{hashlib.sha256(made_by.encode()).hexdigest()[:12]}",
        }


def _plain(engines: Mapping[str, Engine]) -> dict[str, Engine]:
    """Plain decoding by its name, unless it is there under whatever name."""
    if any(engine.drafter is None for engine in engines.values()):
        return {}
    return {PLAIN: next(iter(engines.values())).without_drafts()}
