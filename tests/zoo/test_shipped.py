"""Weights that come with the package: found by the model's name, small, and loadable by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foredraft.drafters.eagle.checkpoint import is_head_folder
from foredraft.methods import parse_method
from foredraft.zoo import EMBEDDED
from foredraft.zoo.shipped import (
    BEST_METHODS,
    SHIPPED,
    WEIGHTS,
    shipped,
    shipped_drafters,
    shipped_head,
)

LARGEST = 22_000_000
"""Bytes that one set of weights may take."""


def ship(weights: Path, kind: str) -> Path:
    folder = weights / "smollm2" / kind
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_nothing_ships_for_other_models(tmp_path: Path) -> None:
    ship(tmp_path, "eagle3")
    for name in (
        "",
        ".",
        "owner/model",
        "smollm",
        "../smollm2",
        "./smollm2",
        "x/../smollm2",
        "a" * 5000,
        "\0",
    ):
        assert shipped_head(name, weights=tmp_path) is None
        assert shipped(name, "eagle3", weights=tmp_path) is None
        assert shipped_drafters(name, weights=tmp_path) == {}


def test_drafters_that_ship_are_listed_by_their_names(tmp_path: Path) -> None:
    folders = {kind: ship(tmp_path, kind) for kind in ("draft-model", "eagle3")}
    found = shipped_drafters("smollm2", weights=tmp_path)
    assert found == folders
    assert list(found) == ["eagle3", "draft-model"]


def test_the_better_head_is_taken(tmp_path: Path) -> None:
    assert shipped_head("smollm2", weights=tmp_path) is None
    ship(tmp_path, "draft-model")
    assert shipped_head("smollm2", weights=tmp_path) is None
    one = ship(tmp_path, "eagle1")
    assert shipped_head("smollm2", weights=tmp_path) == one
    three = ship(tmp_path, "eagle3")
    assert shipped_head("smollm2", weights=tmp_path) == three
    assert shipped("smollm2", "eagle1", weights=tmp_path) == one


def test_the_best_methods_are_methods_of_embedded_models() -> None:
    for name, method in BEST_METHODS.items():
        assert name in EMBEDDED
        parse_method(method)


@pytest.mark.parametrize("name", EMBEDDED)
@pytest.mark.parametrize("kind", SHIPPED)
def test_what_ships_is_small_and_says_how_it_was_made(name: str, kind: str) -> None:
    folder = shipped(name, kind)  # type: ignore[arg-type]
    if folder is None:
        pytest.skip(f"no {kind} ships for {name}")
    assert sum(file.stat().st_size for file in folder.iterdir()) < LARGEST
    if kind.startswith("eagle"):
        assert is_head_folder(folder)
    recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    assert recipe["notes"]["command"].startswith("foredraft train")
    assert {"corpus", "options", "held_out", "target"} <= recipe.keys()


def test_every_folder_of_weights_is_known() -> None:
    kinds = {folder.name for folder in WEIGHTS.glob("*/*")}
    models = {folder.name for folder in WEIGHTS.glob("*")}
    assert kinds <= set(SHIPPED)
    assert models <= set(EMBEDDED)
