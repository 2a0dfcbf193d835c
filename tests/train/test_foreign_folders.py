"""What stands in the way of a run or a corpus, or was damaged since, is told and left as it was."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import foredraft
from foredraft import GenerationOptions
from foredraft.cli.main import app
from foredraft.errors import ConfigError
from foredraft.train import data
from foredraft.train.corpus import CorpusWriter
from foredraft.train.loop import fit
from foredraft.train.metrics import MetricsFile
from foredraft.train.options import MOST_SEED, TrainOptions
from foredraft.train.state_cache import ShardTokens, StateCache
from tests.tiny_folders import save_folder
from tests.train.stock_templates import CHATML
from tests.train.test_cli_train import make_corpus, train
from tests.train.toy_training import ToyObjective, counting_corpus, toy_options


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_model_is_not_written_over(tmp_path: Path, name: str, resume: bool) -> None:
    """A drafter is saved under the very names of a model's own files."""
    (tmp_path / name).write_text("the target")
    with pytest.raises(ConfigError, match=rf"would replace its {name}; give another --out"):
        fit(ToyObjective(), counting_corpus(), toy_options(), tmp_path, resume=resume)
    assert (tmp_path / name).read_text() == "the target"
    assert not (tmp_path / "run.json").exists()


def test_a_seed_that_no_generator_takes_is_refused() -> None:
    assert TrainOptions(steps=1, seed=MOST_SEED).seed == MOST_SEED
    with pytest.raises(ConfigError, match="seed=4294967296 is not allowed"):
        TrainOptions(steps=1, seed=2**32)


def test_a_model_that_never_comes_to_a_reply_is_given_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would write empty shards until the disk is full."""
    monkeypatch.setattr(data, "MOST_FRUITLESS", 16)
    model = save_folder(tmp_path / "model", CHATML.tokenizer())
    asked = ("--tokens", "50", "--dtype", "float32", "--batch", "1", "--max-length", "2")
    command = ["data", "generate", "--model", str(model), "--out", str(tmp_path / "out"), *asked]
    for _ in range(2):  # the same command again says the same
        done = CliRunner().invoke(app, command, env={"COLUMNS": "400"})
        assert done.exit_code == 1
        assert "none of the last 16 conversations came to a reply" in done.output
    assert len(list((tmp_path / "out").glob("shard-*"))) == 2


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("run.json", b"[]", r"run\.json cannot be read"),
        ("checkpoints/best.pt", b"", r"best\.pt cannot be read"),
        ("checkpoints/step-00000099.pt", [1], "step-00000099.pt cannot be read"),
        ("checkpoints/step-00000099.pt", {"a": 1}, "another version of Foredraft"),
        ("checkpoints/best.pt", {"module": {}}, "parts of it are missing"),
    ],
)
def test_a_damaged_run_is_told(tmp_path: Path, file: str, content: Any, said: str) -> None:
    fit(ToyObjective(), counting_corpus(), toy_options(steps=2), tmp_path)
    if isinstance(content, bytes):
        (tmp_path / file).write_bytes(content)
    else:
        torch.save(content, tmp_path / file)
    with pytest.raises(ConfigError, match=said):
        fit(ToyObjective(), counting_corpus(), toy_options(steps=3), tmp_path, resume=True)


@pytest.mark.parametrize("line", [b'{"a": 1}\n', b"\xff\n", b"[1]\n"])
def test_damaged_lines_of_metrics_are_left_out(tmp_path: Path, line: bytes) -> None:
    fit(ToyObjective(), counting_corpus(), toy_options(steps=2), tmp_path)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(line)
    fit(ToyObjective(), counting_corpus(), toy_options(steps=4), tmp_path, resume=True)
    steps = [measure["step"] for measure in MetricsFile(tmp_path / "metrics.jsonl").read()]
    assert (steps[0], steps[-1]) == (0, 4)


@pytest.mark.parametrize("blocked", [".", "tap-1.states", "tap-1.held"])
def test_states_that_cannot_be_kept_beside_a_corpus(tmp_path: Path, blocked: str) -> None:
    shards = [ShardTokens("digest", np.array([3, 4]))]
    cache = StateCache(tmp_path / "free", {}, shards, 8, torch.float32)
    cache.reserve([1])
    place = next((tmp_path / "free").iterdir())
    there = tmp_path / "states" / place.name
    if blocked == ".":
        (tmp_path / "states").write_text("no folder")
    else:
        (there / blocked).mkdir(parents=True)
    cache = StateCache(tmp_path / "states", {}, shards, 8, torch.float32)
    with pytest.raises(ConfigError, match="--no-keep-states"):
        cache.reserve([1])


def test_a_corpus_and_a_drafter_do_not_share_a_folder(tmp_path: Path) -> None:
    CorpusWriter(tmp_path, {"vocab_size": 97})
    before = sorted(file.name for file in tmp_path.iterdir())
    with pytest.raises(ConfigError, match="holds a corpus, and a drafter needs a folder"):
        fit(ToyObjective(), counting_corpus(), toy_options(), tmp_path)
    assert sorted(f.name for f in tmp_path.iterdir() if f.name != ".lock") == before


@pytest.mark.parametrize(
    "command",
    [
        ("data", "generate", "--tokens", "9"),
        ("data", "join", "a", "b"),
        ("train", "eagle", "--data", "a", "--steps", "1"),
        ("train", "draft-model", "--data", "a", "--steps", "1"),
        ("bench", "run"),
    ],
)
def test_an_empty_name_is_no_folder(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an unset variable of a script gives; the current folder stays as it is."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [*command, "--out", ""], env={"COLUMNS": "400"})
    assert done.exit_code == 2
    assert "it is empty; name a folder" in done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["eagle3", "draft-model"])
def test_a_drafter_of_other_weights_is_told(kind: str, tmp_path: Path) -> None:
    """Of the same shape it would draft in silence, and badly; texts are right all the same."""
    tokenizer = CHATML.tokenizer()
    save_folder(tmp_path / "model", tokenizer)
    save_folder(tmp_path / "other", tokenizer, seed=1)
    data_folder = make_corpus(tmp_path / "model", tmp_path / "data")
    drafter = tmp_path / kind
    assert train(kind, data_folder, drafter, model=tmp_path / "model").exit_code == 0
    options = GenerationOptions(max_new_tokens=12, ignore_eos=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        foredraft.load(tmp_path / "model", drafter=drafter, dtype="float32")
    with pytest.warns(UserWarning, match="trained for other weights than this model's"):
        engine = foredraft.load(tmp_path / "other", drafter=drafter, dtype="float32")
    plain = foredraft.load(tmp_path / "other", drafter="none", dtype="float32")
    answers = [e.generate("the cat", options).token_ids for e in (engine, plain)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("kind", ["eagle3", "draft-model"])
def test_an_empty_corpus_is_told(kind: str, tmp_path: Path) -> None:
    """What an interruption before the first shard leaves."""
    model = save_folder(tmp_path / "model", CHATML.tokenizer())
    CorpusWriter(tmp_path / "data", {"vocab_size": len(CHATML.tokenizer())})
    done = train(kind, tmp_path / "data", tmp_path / "out", model=model)
    assert done.exit_code == 1
    assert "holds no conversation yet" in done.stderr
    assert not (tmp_path / "out").exists()
