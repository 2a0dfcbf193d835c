"""`foredraft export`: from a head's folder to another program's, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import foredraft
from foredraft.backends.hf import HFTarget
from foredraft.cli.main import app
from foredraft.drafters.eagle.checkpoint import load_head, save_head
from foredraft.drafters.eagle.head import EagleHead
from foredraft.zoo import published_name
from tests.tiny_folders import save_folder

FAILURE, USAGE = 1, 2


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a head for it."""
    place = tmp_path_factory.mktemp("models")
    save_folder(place / "model", num_hidden_layers=8)
    head = EagleHead.for_target(model_of(place), 3, draft_ids=torch.arange(0, 90, 2), fc_norm=False)
    save_head(head, place / "head", "foredraft")
    return place


def model_of(place: Path) -> object:
    target = foredraft.load(place / "model", drafter="none", dtype="float32").target
    assert isinstance(target, HFTarget)
    return target.model


def export(place: Path, *arguments: str) -> Result:
    """The command for that model; faults of ours are raised."""
    named = ["export", *arguments, "--model", str(place / "model")]
    done = CliRunner().invoke(app, named, env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.mark.parametrize("form", ["speculators", "eagle3", "sglang"])
def test_a_head_is_exported_and_drafts(place: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"
    done = export(place, str(place / "head"), "--format", form, "--out", str(out), "--json")
    assert done.exit_code == 0, done.stderr
    if form == "speculators":
        config = json.loads((out / "config.json").read_text())
        assert config["speculators_config"]["verifier"]["name_or_path"] == str(place / "model")
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["format"] == form
    assert 0 < said["bytes"] < (out / "model.safetensors").stat().st_size
    model = model_of(place)
    ours, theirs = (load_head(folder, model) for folder in (place / "head", out))
    assert theirs.own_embeddings == (form == "speculators")
    weights = theirs.state_dict()
    assert all(torch.equal(weights[name], own) for name, own in ours.state_dict().items())
    engine = foredraft.load(place / "model", drafter=out, dtype="float32")
    plain = foredraft.load(place / "model", drafter="none", dtype="float32")
    asked = {"prompt": "the cat", "max_new_tokens": 12}
    assert engine.generate(**asked).token_ids == plain.generate(**asked).token_ids


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--format", "onnx"), "unknown --format 'onnx' of a head; available: speculators, eagle3"),
        (("--format", "eagle1"), "--format 'eagle1' cannot hold an EAGLE-3 head"),
        (
            ("--format", "sglang", "--dtype", "int8"),
            "--dtype 'int8' cannot be written; give one of",
        ),
        (("--format", "sglang", "--verifier", "org/model"), "has no place in --format 'sglang'"),
    ],
)
def test_what_cannot_be_exported(
    place: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    out = tmp_path / "out"
    done = export(place, str(place / "head"), *arguments, "--out", str(out))
    assert (done.exit_code, out.exists()) == (USAGE, False)
    assert said in done.stderr


def test_a_model_of_ours_is_named_as_it_is_published() -> None:
    assert published_name("smollm2") == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert published_name("org/model") == "org/model"


def test_nothing_that_is_there_is_replaced(place: Path) -> None:
    head = str(place / "head")
    done = export(place, head, "--format", "sglang", "--out", head)
    assert done.exit_code == USAGE
    assert "is there already; give a folder that is new or empty" in done.stderr
    assert json.loads((place / "head" / "config.json").read_text())["foredraft"]


def test_what_is_no_head(place: Path, tmp_path: Path) -> None:
    model, out = str(place / "model"), str(tmp_path / "out")
    done = export(place, model, "--format", "sglang", "--out", out)
    assert done.exit_code == FAILURE
    assert "holds a language model and no EAGLE head" in done.stderr
