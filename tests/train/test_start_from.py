"""What a run says of the earlier one whose weights it began with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_folders import save_folder
from tests.train.stock_templates import CHATML
from tests.train.test_cli_train import KINDS, make_corpus, train


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus beside the folder `model` of the tiny Llama that wrote it."""
    folder = tmp_path_factory.mktemp("llama")
    save_folder(folder / "model", CHATML.tokenizer())
    return make_corpus(folder / "model", folder / "data")


def notes(out: Path) -> list[dict[str, Any]]:
    """The notes in `run.json` and in `recipe.json`."""
    return [json.loads((out / name).read_text())["notes"] for name in ("run.json", "recipe.json")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_names_the_folder_that_it_began_with(kind: str, data: Path, tmp_path: Path) -> None:
    """By its last name, however it was given; and resuming compares no such names."""
    one = tmp_path / "one"
    assert train(kind, data, one).exit_code == 0
    assert [said["start_from"] for said in notes(one)] == [None, None]
    two, given = tmp_path / "two", ("--start-from", one / "checkpoints" / "..")
    done = train(kind, data, two, *given)
    assert done.exit_code == 0, done.output
    assert [said["start_from"] for said in notes(two)] == ["one", "one"]
    one.rename(tmp_path / "moved")
    done = train(kind, data, two, "--start-from", tmp_path / "moved", "--resume", "--steps", "5")
    assert done.exit_code == 0, done.output
    assert [said["start_from"] for said in notes(two)] == ["one", "moved"]
