"""Several methods for one model, on shared weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foredraft.engine.drafters import NAMED, given_source, kind_of, shipped_source
from foredraft.engine.engine import Engine
from foredraft.engine.load import load_models
from foredraft.errors import ConfigError
from foredraft.methods import KINDS, Kind, Method, parse_method


def load_several(
    model: str | Path | Any,
    methods: Sequence[str],
    *,
    drafter: str | Path | Any | None = None,
    report: Callable[[str], None] = lambda message: None,
    **options: Any,
) -> dict[str, Engine]:
    """Engines by the names of their methods; they share the model, and what several of them draft with.

    Args:
        model, drafter, report: as in `foredraft.load`, but that the drafter is a model or a head.
        methods: recipes, each with its options.
        **options: of `foredraft.load`, for the models.

    Raises:
        ConfigError: a method is unknown, is named twice or lacks what it drafts with, or the drafter given is
            not used.
        ModelError: as in `foredraft.load`.
    """
    parsed = {name: parse_method(name) for name in methods}
    if len(parsed) < len(methods):
        twice = next(name for name in methods if methods.count(name) > 1)
        raise ConfigError(f"method {twice!r} is named twice; leave one out")
    needs = _check_drafter(parsed, model, drafter)
    models = load_models(
        model,
        drafter,
        needed=sorted(set(needs.values())),
        methods=tuple(parsed.values()),
        report=report,
        **options,
    )
    return {name: models.engine(method, report=report) for name, method in parsed.items()}


def _check_drafter(
    methods: Mapping[str, Method], model: Any, drafter: Any | None
) -> dict[str, Kind]:
    """What each method must be given; there is one for each, and the drafter given is used."""
    if isinstance(drafter, str) and drafter in NAMED:
        raise ConfigError(
            f"drafter={drafter!r} stands for the method {NAMED[drafter]!r}; name that among the methods, and "
            "leave the drafter out"
        )
    needs = {name: kind for name, m in methods.items() if (kind := m.needs_given) is not None}
    only = next(iter(needs.values())) if len(set(needs.values())) == 1 else None
    source = given_source(drafter, model)
    given = None if source is None else kind_of(source, only)
    users = [name for name in needs if _takes(methods[name], given)]
    for name, kind in needs.items():
        if not (name in users or methods[name].optional or shipped_source(model, kind)):
            raise ConfigError(f"method {name!r} needs {KINDS[kind][0]}; give one as the drafter")
    if given is not None and not users:
        raise ConfigError(
            f"drafter={str(drafter)!r} is not used by any of {', '.join(methods)}; leave it out"
        )
    return needs


def _takes(method: Method, given: Kind | None) -> bool:
    return given in method.takes if method.optional else given == method.needs
