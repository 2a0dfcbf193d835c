"""One loaded model whose method can be changed while it is in use."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from foredraft.backends.hf import HFTarget
from foredraft.drafters.eagle.head import EagleHead
from foredraft.engine.choosing import choose_method, needed_of
from foredraft.engine.drafters import NAMED, given_source, kind_of, own_source
from foredraft.engine.engine import Engine
from foredraft.engine.load import load_models, with_drafters, with_own_nets
from foredraft.engine.prefixes import keep_prefixes, keeps_prefixes
from foredraft.engine.sources import Sources
from foredraft.methods import Method, parse_method
from foredraft.protocols import Target


class MethodSwitch:
    """Engines over one loaded model, made as their methods are asked for.

    What methods draft with is read when one first needs it, and kept.

    Args:
        model: the name or folder of a model, as in `foredraft.load`.
        method: the first one, as in `foredraft.load`.
        drafter: as in `foredraft.load`; later methods that cannot draft with it take what ships.
        prefix_cache_mb: as in `foredraft.load`; earlier texts stay known when the method changes, unless the
            new one brings a draft model that knows none of them.
        report: called with a sentence at each long step.
        **options: of `foredraft.load`, for the models.

    Raises:
        ConfigError, ModelError: as in `foredraft.load`.
    """

    def __init__(
        self,
        model: str | Path,
        method: str | None = None,
        *,
        drafter: str | Path | None = None,
        prefix_cache_mb: float | None = None,
        report: Callable[[str], None] = lambda message: None,
        **options: Any,
    ) -> None:
        self._model, self._drafter = model, drafter
        self._prefix_cache_mb, self._report, self._options = prefix_cache_mb, report, options
        self._known: dict[Hashable, Target | EagleHead] = {}
        recipe, source = choose_method(method, drafter, model)
        self._check(recipe, source)
        self._engines: dict[str, Engine] = {}
        self._models = load_models(model, report=report, **options)
        self.engine = self._make(recipe, source)
        self._engines[method or recipe.name] = self.engine

    def change(self, method: str) -> Engine:
        """Make this method the one of `engine`; if that fails, nothing has changed.

        Raises:
            ConfigError, ModelError: as in `foredraft.load`.
        """
        if method not in self._engines:
            self._engines[method] = self._read(method)
        self.engine = self._engines[method]
        return self.engine

    def _read(self, method: str) -> Engine:
        recipe, source = choose_method(method, self._usable(parse_method(method)), self._model)
        self._check(recipe, source)
        return self._make(recipe, source)

    def _usable(self, recipe: Method) -> Any | None:
        """The drafter that the user gave, if this method can draft with it."""
        if self._drafter is None or self._drafter in NAMED or recipe.drafter is not None:
            return None
        kind = kind_of(given_source(self._drafter, self._model), recipe.needs)
        fits = kind in recipe.takes if recipe.optional else kind == recipe.needs
        return self._drafter if fits else None

    def _check(self, recipe: Method, source: Any | None) -> None:
        """Find what cannot work before anything is loaded."""
        given = source if recipe.drafter is None else own_source(recipe, self._model)
        recipe = with_own_nets(recipe, self._model)
        recipe.check(None if given is None else kind_of(given, recipe.needs))

    def _make(self, recipe: Method, source: Any | None) -> Engine:
        sources = Sources.find(self._model, source, needed_of(recipe, source), (recipe,))
        models = with_drafters(self._models, sources, self._known, self._report, **self._options)
        with _forgotten(self._models.target):
            engine = replace(models, model=self._model).engine(recipe, report=self._report)
        if self._prefix_cache_mb is not None and not keeps_prefixes(engine):
            keep_prefixes([*self._engines.values(), engine], self._prefix_cache_mb)
        return engine


@contextmanager
def _forgotten(target: Target) -> Iterator[None]:
    """Passes that are only measured find nothing in the prefix cache, and leave nothing there."""
    if not isinstance(target, HFTarget):
        yield
        return
    cache, target.prefix_cache = target.prefix_cache, None
    try:
        yield
    finally:
        target.prefix_cache = cache
