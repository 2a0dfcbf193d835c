"""Trained weights that come with the package, by the model that they draft for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

ShippedKind = Literal[
    "eagle3",
    "eagle1",
    "draft-model",
    "decision-soft",
    "decision-hard",
    "length-eagle3",
    "length-draft-model",
]
DRAFTERS: tuple[ShippedKind, ...] = ("eagle3", "eagle1", "draft-model")
"""Drafters that may ship for a model; heads with the better one first."""
DECISIONS: tuple[ShippedKind, ...] = ("decision-soft", "decision-hard")
"""Decision models that may ship for a model's drafter."""
LENGTHS: tuple[ShippedKind, ...] = ("length-eagle3", "length-draft-model")
"""Length predictors that may ship for a model's drafters."""
SHIPPED = DRAFTERS + DECISIONS + LENGTHS
"""What may ship for a model."""
WEIGHTS = Path(__file__).parent / "weights"
"""One folder for each model, with one for each kind; each holds config.json and model.safetensors."""
BEST_METHODS: Mapping[str, str] = MappingProxyType({"smollm2": "eagle2:depth=4:nodes=8:top_k=4"})
"""The fastest method of a model for which weights ship, by measurement (docs/training.md, results)."""


def shipped(model_name: str, kind: ShippedKind, *, weights: Path = WEIGHTS) -> Path | None:
    """The folder of the weights that ship for an embedded model; None if there are none of this kind."""
    if Path(model_name).name != model_name:  # a path, which is no name of ours
        return None
    folder = weights / model_name / kind
    # False, not an error, where a name is too long for a file's
    return folder if model_name and os.path.isfile(folder / "config.json") else None


def shipped_drafters(model_name: str, *, weights: Path = WEIGHTS) -> dict[str, Path]:
    """The folder of every drafter that ships for an embedded model by name, in the order of `DRAFTERS`."""
    found = {kind: shipped(model_name, kind, weights=weights) for kind in DRAFTERS}
    return {kind: folder for kind, folder in found.items() if folder is not None}


def shipped_head(model_name: str, *, weights: Path = WEIGHTS) -> Path | None:
    """The folder of the best head that ships for an embedded model; None without one."""
    found = shipped_drafters(model_name, weights=weights).items()
    return next((folder for kind, folder in found if kind != "draft-model"), None)


def shipped_decisions(model_name: str | None = None, *, weights: Path = WEIGHTS) -> dict[str, Path]:
    """The folder of every decision model that ships for an embedded model, by its name.

    Without a model, of the first that has one of that name.
    """
    return _by_name(DECISIONS, model_name, weights)


def shipped_lengths(model_name: str | None = None, *, weights: Path = WEIGHTS) -> dict[str, Path]:
    """The folder of every length predictor that ships, likewise."""
    return _by_name(LENGTHS, model_name, weights)


def _by_name(
    kinds: tuple[ShippedKind, ...], model_name: str | None, weights: Path
) -> dict[str, Path]:
    everything = sorted(folder.name for folder in weights.glob("*") if folder.is_dir())
    models = everything if model_name is None else [model_name]
    found = {
        kind: folder
        for model in reversed(models)
        for kind in kinds
        if (folder := shipped(model, kind, weights=weights)) is not None
    }
    return {kind: found[kind] for kind in kinds if kind in found}
