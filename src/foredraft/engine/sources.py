"""Where everything is that the methods of a run draft with."""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foredraft.engine.drafters import given_source, kind_of, own_source, shipped_source
from foredraft.methods import Kind, Method


@dataclass(frozen=True, slots=True)
class Sources:
    """Drafters that are not loaded yet.

    Attributes:
        given: to all methods of a kind: the user's, or what ships for the model.
        own: folders that methods name for themselves, by those names.
    """

    given: Mapping[Kind, Any]
    own: Mapping[str, Path]

    @staticmethod
    def find(
        model: Any, drafter: Any | None, needed: Collection[Kind], methods: Collection[Method]
    ) -> Sources:
        """The sources for methods; arguments and errors as in `load_models`."""
        drafter = given_source(drafter, model)
        only = next(iter(needed)) if len(needed) == 1 else None
        given: dict[Kind, Any] = {} if drafter is None else {kind_of(drafter, only): drafter}
        for kind in needed:
            if kind not in given and (shipped := shipped_source(model, kind)) is not None:
                given[kind] = shipped
        found = {method.drafter: own_source(method, model) for method in methods}
        return Sources(given, {name: folder for name, folder in found.items() if name and folder})

    def of_kind(self, kind: Kind) -> Mapping[Hashable, Any]:
        """Every source of a kind once, by its place."""
        own = [folder for folder in self.own.values() if kind_of(folder) == kind]
        given = [self.given[kind]] if kind in self.given else []
        return {place_of(source): source for source in (*given, *own)}


def place_of(source: Any) -> Hashable:
    """The same for two names of the same drafter."""
    if not isinstance(source, str | Path):
        return id(source)
    path = os.path.expanduser(source)
    return os.path.realpath(path) if os.path.exists(path) else str(source)
