"""Prefix caches of an engine's models: what begins like an earlier text is not read again."""

from __future__ import annotations

from foredraft.backends.hf import HFTarget
from foredraft.backends.prefix_cache import PrefixCache, PrefixCounts, bytes_of
from foredraft.engine.calibration import draft_model
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError


def keep_prefixes(engine: Engine, prefix_cache_mb: float) -> None:
    """Let the models of an engine keep rows of their texts; what they have kept so far is dropped.

    Every engine of the same target then uses them.

    Args:
        engine: of `HFTarget`s.
        prefix_cache_mb: memory in megabytes, target and draft model together. Each gets the share that its
            rows take, so that both know the same texts.

    Raises:
        ConfigError: not above 0, or the target has no rows that can be kept.
    """
    max_bytes = bytes_of(prefix_cache_mb)
    if not isinstance(engine.target, HFTarget):
        raise ConfigError(
            f"prefix_cache_mb={prefix_cache_mb} is for models of transformers; a "
            f"{type(engine.target).__name__} keeps no rows of its texts, so leave it out"
        )
    models = set(_models(engine).values())
    total = sum(model.layout.row_bytes for model in models)
    for model in models:
        row_bytes = model.layout.row_bytes
        model.prefix_cache = PrefixCache(max_bytes * row_bytes // total, row_bytes)


def keeps_prefixes(engine: Engine) -> bool:
    """Whether each of an engine's models has a prefix cache."""
    return all(model.prefix_cache is not None for model in _models(engine).values())


def prefix_counts(engine: Engine) -> dict[str, PrefixCounts]:
    """By `"target"` and `"draft model"`, what their prefix caches did; those without one are left out."""
    caches = {name: model.prefix_cache for name, model in _models(engine).items()}
    return {name: cache.counts() for name, cache in caches.items() if cache is not None}


def _models(engine: Engine) -> dict[str, HFTarget]:
    named = {"target": engine.target, "draft model": draft_model(engine)}
    return {name: model for name, model in named.items() if isinstance(model, HFTarget)}
