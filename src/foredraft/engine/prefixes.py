"""Prefix caches of an engine's models: what begins like an earlier text is not read again."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.backends.hf import HFTarget
from foredraft.backends.prefix_cache import PrefixCache, PrefixCounts, bytes_of
from foredraft.engine.calibration import draft_model
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError


def keep_prefixes(engines: Engine | Sequence[Engine], prefix_cache_mb: float) -> None:
    """Let the models of engines keep rows of their texts; what they have kept so far is dropped.

    Every engine of the same target then uses them.

    Args:
        engines: of `HFTarget`s; several share a target.
        prefix_cache_mb: memory in megabytes, target and draft models together. Each gets the share that its
            rows take, so that both know the same texts.

    Raises:
        ConfigError: not above 0, or the target has no rows that can be kept.
    """
    max_bytes = bytes_of(prefix_cache_mb)
    engines = [engines] if isinstance(engines, Engine) else engines
    target = engines[0].target
    if not isinstance(target, HFTarget):
        raise ConfigError(
            f"prefix_cache_mb={prefix_cache_mb} is for models of transformers; a "
            f"{type(target).__name__} keeps no rows of its texts, so leave it out"
        )
    models = {model for engine in engines for model in _models(engine).values()}
    total = sum(model.layout.row_bytes for model in models)
    for model in models:
        row_bytes = model.layout.row_bytes
        model.prefix_cache = PrefixCache(max_bytes * row_bytes // total, row_bytes)


def keeps_prefixes(engine: Engine) -> bool:
    """Whether each of an engine's models has a prefix cache."""
    return all(model.prefix_cache is not None for model in _models(engine).values())


def forget_prefixes(engines: Sequence[Engine]) -> None:
    """Keep nothing from now on, and give the memory of what was kept back."""
    for engine in engines:
        for model in _models(engine).values():
            model.prefix_cache = None


def prefix_counts(engine: Engine) -> dict[str, PrefixCounts]:
    """By `"target"` and `"draft model"`, what their prefix caches did; those without one are left out."""
    caches = {name: model.prefix_cache for name, model in _models(engine).items()}
    return {name: cache.counts() for name, cache in caches.items() if cache is not None}


def prefix_caches(engine: Engine) -> list[PrefixCache]:
    """Those of its models."""
    caches = [model.prefix_cache for model in _models(engine).values()]
    return [cache for cache in caches if cache is not None]


def _models(engine: Engine) -> dict[str, HFTarget]:
    named = {"target": engine.target, "draft model": draft_model(engine)}
    return {name: model for name, model in named.items() if isinstance(model, HFTarget)}
