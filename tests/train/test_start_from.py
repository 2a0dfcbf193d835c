"""What a run says of the earlier one whose weights it began with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import foredraft
from foredraft import GenerationOptions
from tests.tiny_folders import save_folder
from tests.train.stock_templates import CHATML
from tests.train.test_cli_train import KINDS, USAGE, make_corpus, train


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


# --- the target's rows ------------------------------------------------------------------------------


def vocabulary(folder: Path) -> dict[str, Any]:
    """What the recipe of a run says of its head's tokens."""
    recipe = json.loads((folder / "recipe.json").read_text())
    return {"lm_head": recipe["lm_head"], "size": recipe["draft_vocabulary"]["size"]}


def drafts_the_same_text(data: Path, drafter: Path) -> None:
    """An answer with this drafter is the answer without, and tokens were drafted."""
    model, options = data.parent / "model", GenerationOptions(max_new_tokens=16, ignore_eos=True)
    plain = foredraft.load(model, drafter="none", dtype="float32").generate("the cat", options)
    drafted = foredraft.load(model, drafter=drafter, dtype="float32").generate("the cat", options)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted_tokens > 0


def test_a_head_can_draft_with_the_targets_rows(data: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    done = train("eagle3", data, one, "--target-head", "--draft-vocab", "40")
    assert done.exit_code == 0, done.output
    assert vocabulary(one) == {"lm_head": "target", "size": 40}
    assert "lm_head.weight" not in load_file(one / "model.safetensors")
    done = train("eagle3", data, two, "--start-from", one, "--draft-vocab", "40")
    assert done.exit_code == 0, done.output
    assert vocabulary(two) == {"lm_head": "target", "size": 40}
    drafts_the_same_text(data, two)


@pytest.mark.parametrize(("first", "then"), [("own", "target"), ("target", "own")])
def test_a_head_keeps_the_rows_that_it_has(
    first: str, then: str, data: Path, tmp_path: Path
) -> None:
    one = tmp_path / "one"
    assert train("eagle3", data, one, f"--{first}-head").exit_code == 0
    done = train("eagle3", data, tmp_path / "two", "--start-from", one, f"--{then}-head")
    assert done.exit_code == USAGE
    assert "which it keeps; leave the option out" in done.stderr


def test_only_eagle3_heads_choose_their_rows(data: Path, tmp_path: Path) -> None:
    done = train("eagle1", data, tmp_path / "out", "--target-head")
    assert done.exit_code == USAGE
    assert "--own-head is for EAGLE-3" in done.stderr
