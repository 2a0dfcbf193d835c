"""`foredraft train length-predictor` as it is typed, from a corpus to drafting with what came out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import foredraft
from foredraft import GenerationOptions
from foredraft.cli.main import app
from foredraft.drafters.eagle.checkpoint import save_head
from foredraft.drafters.student import build_student
from foredraft.drafters.student_files import save_student
from foredraft.engine.lengths import rules_of
from foredraft.train.corpus import CorpusWriter, Sample
from tests.drafters.eagle_rounds import make_head
from tests.tiny_folders import byte_tokenizer, save_folder

USAGE, FAILURE, INTERRUPTED = 2, 1, 130
SMALL = ("--k-max", "3", "--positions", "60", "--epochs", "2", "--held-out", "0.4", "--width", "8")
OPTIONS = GenerationOptions(max_new_tokens=12, ignore_eos=True)


def run(*arguments: str | Path) -> Result:
    done = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, a head and a draft model for it, and a corpus of its greedy answers."""
    folder = tmp_path_factory.mktemp("length")
    save_folder(folder / "model")
    target: Any = foredraft.load(folder / "model", drafter="none", dtype="float32").target
    save_student(build_student(target.model, 1), folder / "draft")
    save_head(make_head(target.model, "eagle3"), folder / "head")
    writer = CorpusWriter(folder / "data", {"vocab_size": len(byte_tokenizer())})
    random, samples = np.random.default_rng(0), []
    for _ in range(12):
        ids = random.integers(3, 200, 5).tolist()
        for _ in range(10):
            with torch.inference_mode():
                ids.append(int(target.model(torch.tensor([ids])).logits[0, -1].argmax()))
        samples.append(Sample(np.array(ids), ((5, 15),)))
    writer.add_shard(samples)
    return folder


def train(place: Path, out: str, *more: str | Path, drafter: str = "draft") -> Result:
    asked = ("--model", place / "model", "--drafter", place / drafter, "--data", place / "data")
    return run(
        *("train", "length-predictor", *asked, "--out", place / out),
        *("--dtype", "float32", *SMALL, *more),
    )


@pytest.mark.parametrize(
    ("drafter", "method"),
    [
        ("draft", "speculative:depth=3"),
        ("draft", "adaeagle:drafter={draft}"),
        ("draft", "mcsd:tree=2,1:verifier=exact"),
        ("head", "adaeagle"),
        ("head", "adaeagle-threshold:threshold=-2"),
        ("head", "eagle-chain-3"),
        ("head", "eagle2:depth=3:nodes=6:top_k=2:spare=1"),
    ],
)
def test_a_trained_predictor_drafts_and_changes_no_text(
    place: Path, drafter: str, method: str
) -> None:
    out = place / f"of-{drafter}"
    if not out.exists():
        done = train(place, out.name, "--draft-cost", "0.1", drafter=drafter)
        assert done.exit_code == 0, done.output
        assert "tokens in the time of a pass there" in done.output
        recipe = json.loads((out / "recipe.json").read_text())
        assert recipe["finished"]
        assert recipe["notes"]["command"]
        assert {"corpus", "options", "held_out", "target", "drafter"} <= recipe.keys()
    own = "drafter=" in method
    engine = foredraft.load(
        place / "model",
        method=f"{method}:length={out}".format(draft=place / "draft"),
        drafter=None if own else place / drafter,
        dtype="float32",
    )
    assert len(list(rules_of(engine.policy))) == 1
    answer = engine.generate([3, 4, 5], OPTIONS)
    assert answer.token_ids == engine.without_drafts().generate([3, 4, 5], OPTIONS).token_ids


@pytest.mark.parametrize(
    "more",
    [
        ("--arch", "gru"),
        ("--loss", "ce"),
        ("--loss", "mse", "--under-weight", "1"),
        ("--root",),
    ],
)
def test_the_forms(place: Path, more: tuple[str, ...]) -> None:
    shutil.rmtree(place / "form", ignore_errors=True)
    done = train(place, "form", *more, "--labels", place / "shared-labels")
    assert done.exit_code == 0, done.output
    method = f"speculative:length={place / 'form'}"
    engine = foredraft.load(
        place / "model", method=method, drafter=place / "draft", dtype="float32"
    )
    answer = engine.generate([3, 4, 5], OPTIONS)
    assert answer.token_ids == engine.without_drafts().generate([3, 4, 5], OPTIONS).token_ids


def test_labels_are_used_again(place: Path) -> None:
    assert train(place, "first", "--labels", place / "kept").exit_code == 0
    before = {file: file.stat().st_mtime_ns for file in (place / "kept").iterdir()}
    assert train(place, "second", "--labels", place / "kept", "--loss", "ce").exit_code == 0
    assert {file: file.stat().st_mtime_ns for file in (place / "kept").iterdir()} == before


def test_sampled_acceptance(place: Path) -> None:
    done = train(place, "sampled", "--temperature", "1")
    assert done.exit_code == 0, done.output
    recipe = json.loads((place / "sampled" / "recipe.json").read_text())
    assert recipe["rounds"] is None
    assert recipe["options"]["temperature"] == 1


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (("--arch", "cnn"), "--arch 'cnn' is not known"),
        (("--k-max", "0"), "--k-max 0 is not allowed"),
        (("--loss", "ce", "--under-weight", "3"), "has no meaning with"),
        (("--positions", "0"), "--positions 0 is not allowed"),
    ],
)
def test_bad_input_is_one_sentence(place: Path, more: tuple[str, ...], complaint: str) -> None:
    done = train(place, "bad", *more)
    assert done.exit_code in (USAGE, FAILURE)
    assert complaint in " ".join(done.stderr.split())
    assert done.stderr.count("error:") == 1
    shutil.rmtree(place / "bad", ignore_errors=True)


def test_a_model_without_a_shipped_head_needs_a_drafter(place: Path) -> None:
    asked = ("--model", place / "model", "--data", place / "data", "--out", place / "none")
    done = run("train", "length-predictor", *asked)
    assert done.exit_code == USAGE
    assert "no head ships for" in done.stderr
