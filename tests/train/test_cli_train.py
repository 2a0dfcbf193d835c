"""`foredraft train` as it is typed: every kind of drafter, from a corpus to drafting with it."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file
from transformers import Gemma3TextConfig, LlamaConfig, Qwen2Config, Qwen3Config
from typer.testing import CliRunner

import foredraft
from foredraft import GenerationOptions
from foredraft.cli.main import app
from foredraft.cli.train_options import FLAGS, PAIRS
from foredraft.config import default_of
from foredraft.train.checkpoints import Checkpoints
from foredraft.train.corpus import Corpus, CorpusWriter
from foredraft.train.eagle import EagleLoss
from foredraft.train.options import TrainOptions
from tests.tiny_folders import save_folder
from tests.tiny_models import SMALL, WINDOW, build
from tests.train.stock_templates import CHATML

FAILURE, USAGE, INTERRUPTED = 1, 2, 130
LIMIT_S = 120
TRAIN = (
    *("--steps", "4", "--dtype", "float32", "--precision", "float32", "--draft-vocab", "60"),
    *("--tokens-per-batch", "400", "--max-length", "96", "--held-out", "0.2"),
)
OPTIONS = GenerationOptions(max_new_tokens=12, ignore_eos=True)
FAMILIES: dict[str, Callable[[int], Any]] = {
    "llama": lambda size: LlamaConfig(**SMALL | {"vocab_size": size}),
    "qwen2": lambda size: Qwen2Config(**SMALL | {"vocab_size": size, "num_hidden_layers": 4}),
    "qwen3": lambda size: Qwen3Config(**SMALL | {"vocab_size": size}, head_dim=8),
    "gemma3": lambda size: Gemma3TextConfig(
        **SMALL | {"vocab_size": size, "num_hidden_layers": 4},
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"] * 2,
    ),
}
KINDS = {
    "draft-model": ("draft-model", "--layers", "1"),
    "eagle1": ("eagle", "--variant", "1"),
    "eagle3": ("eagle", "--variant", "3", "--steps-ahead", "2"),
}


def run(*arguments: str | Path) -> Result:
    """The command in this process; faults of ours are raised."""
    done = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def train(kind: str, data: Path, out: Path, *more: str | Path, model: Path | None = None) -> Result:
    """A short training run."""
    model = model or data.parent / "model"
    asked = ("--model", model, "--data", data, "--out", out)
    return run("train", *KINDS[kind], *TRAIN, *asked, *more)


def make_corpus(model: Path, out: Path) -> Path:
    """A corpus that the model wrote."""
    small = ("--batch", "8", "--max-length", "64", "--max-user-tokens", "12")
    asked = ("--tokens", "600", "--max-reply-tokens", "12", "--dtype", "float32")
    done = run("data", "generate", "--model", model, "--out", out, *small, *asked)
    assert done.exit_code == 0, done.output
    return out


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus beside the folder `model` of the tiny Llama that wrote it."""
    folder = tmp_path_factory.mktemp("llama")
    save_folder(folder / "model", CHATML.tokenizer())
    return make_corpus(folder / "model", folder / "data")


@pytest.fixture(scope="module")
def trained(data: Path) -> Path:
    """A folder with a drafter of each kind, trained on `data` beside it."""
    for kind in KINDS:
        assert train(kind, data, data.parent / "trained" / kind).exit_code == 0
    return data.parent / "trained"


@pytest.mark.parametrize("family", FAMILIES)
def test_from_a_model_to_its_drafters(family: str, tmp_path: Path) -> None:
    """For every family the same commands: a corpus, three drafters; none of them changes a word."""
    tokenizer = CHATML.tokenizer()
    build(FAMILIES[family](len(tokenizer))).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    data = make_corpus(tmp_path / "model", tmp_path / "data")
    plain = foredraft.load(tmp_path / "model", drafter="none", dtype="float32")
    expected = plain.generate("the cat", OPTIONS).token_ids
    for kind in KINDS:
        done = train(kind, data, tmp_path / kind)
        assert done.exit_code == 0, done.output
        engine = foredraft.load(tmp_path / "model", drafter=tmp_path / kind, dtype="float32")
        result = engine.generate("the cat", OPTIONS)
        assert result.token_ids == expected
        assert result.stats.drafted_tokens > 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_run_leaves(kind: str, data: Path, tmp_path: Path) -> None:
    done = train(kind, data, tmp_path / "out")
    assert done.exit_code == 0, done.output
    recipe = json.loads((tmp_path / "out" / "recipe.json").read_text())
    assert recipe["kind"] == kind
    assert recipe["finished"]
    assert recipe["notes"]["model"] == str(data.parent / "model")
    assert recipe["held_out"]["acceptance"]
    assert len(recipe["held_out"]["acceptance"]) == (2 if kind == "eagle3" else 1)
    assert {"metrics.jsonl", "plot.png", "model.safetensors", "config.json"} <= {
        file.name for file in (tmp_path / "out").iterdir()
    }
    assert "the drafter is in" in done.stderr
    assert re.search(r"\d+ samples of \d[\d,]* tokens, \d+% of them", done.stderr)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_trained_by_muon(kind: str, data: Path, tmp_path: Path) -> None:
    done = train(kind, data, tmp_path / "out", "--optimizer", "muon")
    assert done.exit_code == 0, done.output
    recipe = json.loads((tmp_path / "out" / "recipe.json").read_text())
    assert recipe["options"]["optimizer"] == "muon"
    kept = Checkpoints(tmp_path / "out" / "checkpoints").latest()
    assert kept is not None
    moved = kept["optimizer"]["muon"]["state"].values()
    assert moved
    assert all(state["momentum_buffer"].any() for state in moved)


def test_the_draft_vocabulary_holds_the_end_token(data: Path, tmp_path: Path) -> None:
    assert train("draft-model", data, tmp_path / "out").exit_code == 0
    ids = load_file(tmp_path / "out" / "model.safetensors")["draft_ids"]
    assert len(ids) == 60
    engine = foredraft.load(data.parent / "model", drafter="none", dtype="float32")
    assert set(engine.target.eos_token_ids) <= set(ids.tolist())


@pytest.mark.parametrize("less", [2, -2])
def test_a_head_attends_to_no_more_than_it_was_trained_on(
    less: int, data: Path, tmp_path: Path
) -> None:
    """That is the longest sample, or where samples were cut."""
    longest = int(Corpus(data).lengths.max())
    done = train("eagle1", data, tmp_path / "out", "--max-length", str(longest - less))
    assert done.exit_code == 0, done.output
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["max_position_embeddings"] == min(longest, longest - less)


def test_every_way_to_a_head_of_a_draft_model(data: Path, tmp_path: Path) -> None:
    sizes = {}
    for name, more in {
        "rows": ("--target-head",),
        "own": ("--own-head", "--bfloat16"),
        "whole": ("--target-head", "--draft-vocab", "0"),
    }.items():
        assert train("draft-model", data, tmp_path / name, *more).exit_code == 0
        weights = load_file(tmp_path / name / "model.safetensors")
        sizes[name] = {key: tensor.dtype for key, tensor in weights.items()}
    assert "lm_head.weight" not in sizes["rows"]
    assert "draft_ids" in sizes["rows"]
    assert sizes["own"]["lm_head.weight"] == torch.bfloat16
    assert not {"lm_head.weight", "draft_ids"} & sizes["whole"].keys()


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_from_trained_weights(kind: str, data: Path, tmp_path: Path) -> None:
    """A second run begins at the first one's best, in full precision and with its vocabulary."""
    assert train(kind, data, tmp_path / "one", "--lr", "0.01").exit_code == 0
    done = train(kind, data, tmp_path / "two", "--start-from", tmp_path / "one")
    assert done.exit_code == 0, done.output
    first = json.loads((tmp_path / "one" / "recipe.json").read_text())["held_out"]
    begin = json.loads((tmp_path / "two" / "metrics.jsonl").read_text().splitlines()[0])
    assert (begin["kind"], begin["step"]) == ("held_out", 0)
    assert begin["loss"] == pytest.approx(first["loss"], rel=1e-4)


def test_without_checkpoints_it_goes_on_from_what_was_saved(data: Path, tmp_path: Path) -> None:
    assert train("eagle3", data, tmp_path / "one").exit_code == 0
    shutil.rmtree(tmp_path / "one" / "checkpoints")
    assert train("eagle3", data, tmp_path / "two", "--start-from", tmp_path / "one").exit_code == 0


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        ("draft-model", ("--layers", "2"), "--layers asks for 2"),
        ("draft-model", ("--take", "last"), "--take asks for last"),
        ("draft-model", ("--draft-vocab", "50"), "--draft-vocab asks for 50"),
        ("draft-model", ("--target-head",), "--own-head asks for False"),
        ("eagle3", ("--draft-vocab", "0"), "--draft-vocab asks for 0"),
        ("eagle3", ("--taps", "0,1"), "--taps asks for (0, 1)"),
        ("eagle3", ("--init", "random"), "--init asks for random"),
        ("eagle1", ("--init", "last-layer"), "--init asks for last-layer"),
        ("eagle1", ("--draft-vocab", "50"), None),
        ("eagle3", ("--draft-vocab", "60", "--taps", "0,1,2"), None),
        ("draft-model", ("--take", "first", "--own-head", "--draft-vocab", "60"), None),
    ],
)
def test_what_a_drafter_keeps_cannot_be_asked_for_anew(
    kind: str, more: tuple[str, ...], said: str | None, trained: Path, tmp_path: Path
) -> None:
    """No option stands beside --start-from without effect."""
    start = ("--start-from", trained / kind)
    done = train(kind, trained.parent / "data", tmp_path / "out", *more, *start)
    if said is None:
        assert done.exit_code == 0, done.output
    else:
        assert done.exit_code == USAGE, done.output
        assert said in done.stderr
        assert "which it keeps; leave the option out" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("eagle", "--variant", "2"), "--variant 2 is not known; give 1"),
        (("eagle", "--variant", "1", "--steps-ahead", "3"), "--steps-ahead is for EAGLE-3"),
        (("eagle", "--noise", "0.1"), "--noise is for EAGLE-1, and this is EAGLE-3"),
        (("eagle", "--taps", "one"), "--taps 'one' is no list of layers"),
        (("eagle", "--steps-ahead", "0"), "--steps-ahead 0 is not allowed; give 1 or more"),
        (("eagle", "--init", "none"), "--init 'none'"),
        (("eagle", "--draft-vocab", "-1"), "--draft-vocab -1 is not allowed"),
        (("eagle", "--draft-vocab", "1"), "a draft vocabulary of 1 tokens is not possible"),
        (("draft-model", "--layers", "9"), "--layers 9 is not allowed; the target has 2"),
        (("draft-model", "--take", "odd"), "--take 'odd' is not known"),
        (("draft-model", "--lr", "0"), "--lr 0.0 is not allowed; give a number above 0"),
        (("draft-model", "--precision", "fp8"), "give one of float32, bfloat16"),
        (
            ("eagle", "--optimizer", "sgd"),
            "--optimizer 'sgd' is not allowed; give one of adamw, muon",
        ),
    ],
)
def test_what_cannot_be_is_said(
    arguments: tuple[str, ...], said: str, data: Path, tmp_path: Path
) -> None:
    asked = ("--model", data.parent / "model", "--data", data, "--out", tmp_path / "out")
    done = run("train", *arguments, "--dtype", "float32", "--steps", "1", *asked)
    assert done.exit_code == USAGE, done.output
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()[-1]) < 250
    assert not (tmp_path / "out").exists()


def test_an_end_must_be_named(data: Path, tmp_path: Path) -> None:
    done = run("train", "eagle", "--data", data, "--out", tmp_path / "out")
    assert done.exit_code == USAGE
    assert "give --steps, --epochs or --minutes" in done.stderr


def test_a_corpus_of_another_vocabulary_is_refused(data: Path, tmp_path: Path) -> None:
    """Case 86: what was made for one tokenizer is never used for another."""
    writer = CorpusWriter(tmp_path / "data", {"vocab_size": 50})
    writer.add_shard([Corpus(data)[0]])
    done = train("eagle3", tmp_path / "data", tmp_path / "out", model=data.parent / "model")
    assert done.exit_code == FAILURE
    assert "was made for a vocabulary of 50 tokens" in done.stderr


def test_a_corpus_of_another_tokenizer_is_refused(data: Path, tmp_path: Path) -> None:
    """Case 86, with vocabularies of one size: another chat template is another corpus."""
    shutil.copytree(data.parent / "model", tmp_path / "model")
    tokenizer = CHATML.tokenizer()
    tokenizer.chat_template = str(tokenizer.chat_template) + " "
    tokenizer.save_pretrained(tmp_path / "model")
    done = train("eagle3", data, tmp_path / "out", model=tmp_path / "model")
    assert done.exit_code == FAILURE
    assert "another tokenizer or chat template" in done.stderr


def test_no_corpus_is_said(data: Path, tmp_path: Path) -> None:
    done = train("eagle3", tmp_path, tmp_path / "out", model=data.parent / "model")
    assert done.exit_code == FAILURE
    assert "holds no corpus that can be read" in done.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "holds a training run; go on with it by --resume"),
        (("--resume", "--optimizer", "muon"), "--optimizer 'adamw', and this is"),
        (("--resume", "--lr", "0.1"), "--lr 0.0005, and this is --lr 0.1"),
        (("--resume", "--decay", "0.5"), "--decay 0.8, and this is --decay 0.5"),
        (("--resume", "--draft-vocab", "50"), "draft_vocabulary.size=60"),
        (("--resume", "--dtype", "bfloat16"), "target.dtype='float32'"),
        (("--resume",), None),
        (("--resume", "--steps", "6"), None),
    ],
)
def test_a_run_is_gone_on_with_as_it_was_begun(
    more: tuple[str, ...], said: str | None, data: Path, tmp_path: Path
) -> None:
    assert train("eagle3", data, tmp_path / "out").exit_code == 0
    done = train("eagle3", data, tmp_path / "out", *more)
    if said is None:
        assert done.exit_code == 0, done.output
    else:
        assert done.exit_code == USAGE
        assert said in done.stderr


def test_ctrl_c_keeps_what_was_done(data: Path, tmp_path: Path) -> None:
    model, out = data.parent / "model", tmp_path / "out"
    asked = ("--model", model, "--data", data, "--out", out, "--log-steps", "1")
    long = (*KINDS["draft-model"], *TRAIN, "--steps", "1000000")
    program = ("-c", "from foredraft.cli.main import main; main()")
    command = [sys.executable, *program, "train", *long, *map(str, asked)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    metrics, begun = out / "metrics.jsonl", time.monotonic()
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 3):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() - begun < LIMIT_S
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == INTERRUPTED, told
    assert "the same command with --resume goes on" in told
    assert json.loads((out / "recipe.json").read_text())["finished"] is False
    steps = json.loads((out / "recipe.json").read_text())["position"]["step"]
    done = run("train", *long, *asked, "--resume", "--steps", str(steps + 2))
    assert done.exit_code == 0, done.output
    assert json.loads((out / "recipe.json").read_text())["position"]["step"] == steps + 2


def test_a_full_disk_is_said(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", refuse)
    done = train("eagle3", data, tmp_path / "out")
    assert done.exit_code == FAILURE
    assert "No space left on device; --resume goes on from the last checkpoint" in done.stderr
    assert not list((tmp_path / "out" / "checkpoints").iterdir())


def test_every_option_is_a_flag() -> None:
    assert set(FLAGS) | set(PAIRS) == {field.name for field in fields(TrainOptions)}
    shown = re.sub(r"[│\s]+", " ", run("train", "eagle", "--help").output)
    for name in ("steps", "decay", "later_share", "feature", "soft_label", "noise"):
        flag = "steps-ahead" if name == "steps" else name.replace("_", "-")
        default = default_of(EagleLoss, name)
        assert re.search(rf"--{flag} ((?!--).)*\[default: \({default}\)\]", shown), flag
