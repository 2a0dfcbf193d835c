"""Corpora that are not finished: what is said of them, and how they go on, mended where they must be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foredraft.train import answering, data
from foredraft.train.corpus import MANIFEST, UNFINISHED, Corpus
from tests.train.data_commands import (
    FAILURE,
    INTERRUPTED,
    SMALL,
    USAGE,
    WRITE,
    complaint,
    generate,
    model_folder,
    run,
    tokens_of,
    write,
)
from tests.train.stock_templates import CHATML

KEEP = ("--answers", "keep")
SHARD = 3
"""Conversations of a shard in these tests."""
ROWS: list[dict[str, Any]] = [{"prompt": f"Q{i}", "response": f"A{i}"} for i in range(8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("target"), CHATML)


@pytest.fixture
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "KEPT_PER_SHARD", SHARD)
    monkeypatch.setattr(data, "KEPT_PER_SHARD", SHARD)
    monkeypatch.setattr(data, "BATCHES_A_SHARD", 1)


def unwrapped(text: str) -> str:
    """As it reads, however lines were broken."""
    return " ".join(text.split())


# --- what is said -----------------------------------------------------------------------------------


def test_ctrl_c_keeps_what_is_finished(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["generate", "--model", folder, "--out", out, *WRITE, "--tokens", "10000000"]
    words = [sys.executable, "-m", "foredraft.cli", "data", *map(str, arguments)]
    words[1:3] = ["-c", "from foredraft.cli.main import main; main()"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ}) as process:
        deadline = time.monotonic() + 50
        while not list(out.glob("shard-*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, said
    corpus = Corpus(out)
    assert corpus.num_tokens > 0
    assert f"interrupted: {corpus.num_tokens:,} tokens are kept in {out}" in said.replace("\n", "")
    assert np.all(corpus.lengths > 0)
    assert corpus.unfinished is not None
    shown = unwrapped(run("show", out, "--samples", "0").stdout)
    assert f"unfinished {corpus.num_tokens:,} of 10,000,000 tokens" in shown
    assert f"data generate --model {folder} --out {out}" in (corpus.unfinished.command or "")
    assert "go on with" in shown


def test_a_finished_corpus_is_not_said_to_be_unfinished(folder: Path, tmp_path: Path) -> None:
    generate(folder, tmp_path, *WRITE, "--tokens", "100")
    assert Corpus(tmp_path).unfinished is None
    assert "unfinished" not in run("show", tmp_path, "--samples", "0").stdout


def stop_short(corpus: Path, tokens: int | None) -> None:
    """Leave a corpus as an interrupt does."""
    manifest = json.loads((corpus / MANIFEST).read_text(encoding="utf-8"))
    mark = {"tokens": tokens, "command": "foredraft data generate --out here"}
    (corpus / MANIFEST).write_text(json.dumps({**manifest, UNFINISHED: mark}), encoding="utf-8")


@pytest.mark.parametrize(("tokens", "far"), [(5000, "of the 5,000 asked for; "), (None, "; ")])
def test_training_on_an_unfinished_corpus_warns_once(
    folder: Path, tmp_path: Path, tokens: int | None, far: str
) -> None:
    corpus = tmp_path / "data"
    generate(folder, corpus, *WRITE, "--tokens", "900")
    options = ("--model", folder, "--data", corpus, "--steps", "1", "--dtype", "float32")
    command = ("draft-model", *options, "--layers", "1", "--no-keep-states", "--out")
    assert "is unfinished" not in run(*command, tmp_path / "whole", of="train").stderr
    stop_short(corpus, tokens)
    done = run(*command, tmp_path / "part", of="train")
    assert done.exit_code == 0, done.stderr
    count = Corpus(corpus).num_tokens
    (line,) = [line for line in done.stderr.splitlines() if "is unfinished" in line]
    assert line.startswith(f"warning: {corpus} is unfinished, with {count:,} tokens")
    assert f"{far}`foredraft data generate --out here` goes on, and training takes" in line


def test_joining_an_unfinished_corpus_warns_and_forgets_it(folder: Path, tmp_path: Path) -> None:
    for seed in ("1", "2"):
        generate(folder, tmp_path / seed, *WRITE, "--tokens", "100", "--seed", seed)
    stop_short(tmp_path / "2", None)
    done = run("join", tmp_path / "1", tmp_path / "2", "--out", tmp_path / "both")
    assert f"warning: {tmp_path / '2'} is unfinished" in done.stderr
    assert Corpus(tmp_path / "both").unfinished is None


# --- mended prompts ---------------------------------------------------------------------------------


BROKEN: list[dict[str, Any]] = [
    {"text": "x"},
    {"prompt": "Q"},
    {"prompt": "Q", "response": "A<|im_end|>"},
]
"""Without a known form, without a reply, and with a reply that its template cannot mark."""


@pytest.mark.usefixtures("_small_shards")
@pytest.mark.parametrize("row", BROKEN, ids=["form", "reply", "template"])
@pytest.mark.parametrize("at", [0, 2, 3, 7])
def test_kept_replies_go_on_once_their_file_is_mended(
    folder: Path, tmp_path: Path, row: dict[str, Any], at: int
) -> None:
    """Wherever the fault was, and under another file's name too."""
    out, file = tmp_path / "out", tmp_path / "chats.jsonl"
    write(file, [*ROWS[:at], row, *ROWS[at + 1 :]])
    failed = run("generate", "--model", folder, "--out", out, "--prompts", file, *KEEP)
    assert failed.exit_code in (FAILURE, USAGE)
    kept = tokens_of(out)
    assert len(kept) == at // SHARD * SHARD
    mended = write(tmp_path / "mended.jsonl", ROWS)
    generate(folder, out, "--prompts", mended, *KEEP)
    generate(folder, tmp_path / "whole", "--prompts", mended, *KEEP)
    assert tokens_of(out)[: len(kept)] == kept
    assert Corpus(out).manifest == Corpus(tmp_path / "whole").manifest
    assert tokens_of(out) == tokens_of(tmp_path / "whole")


@pytest.mark.usefixtures("_small_shards")
def test_answers_that_a_model_gave_are_kept_when_prompts_are_mended(
    folder: Path, tmp_path: Path
) -> None:
    out, file = tmp_path / "out", tmp_path / "chats.jsonl"
    options = (*SMALL, "--batch", "2", "--prompts", file)
    prompts = [{"prompt": f"Q{i}"} for i in range(5)]
    write(file, [*prompts[:3], {"prompt": 7}, *prompts[4:]])
    complaint(FAILURE, "generate", "--model", folder, "--out", out, *options)
    kept = tokens_of(out)
    assert kept
    write(file, prompts)
    generate(folder, out, *options)
    generate(folder, tmp_path / "whole", *options)
    assert tokens_of(out)[: len(kept)] == kept
    assert tokens_of(out) == tokens_of(tmp_path / "whole")


@pytest.mark.usefixtures("_small_shards")
def test_prompts_that_were_used_may_not_change(folder: Path, tmp_path: Path) -> None:
    """Not in a row behind a shard, not after more shards were made, and not in a whole corpus."""
    out, file = tmp_path / "out", tmp_path / "chats.jsonl"
    command = ("generate", "--model", folder, "--out", out, "--prompts", file, *KEEP)
    write(file, [*ROWS[:4], {"text": "x"}, *ROWS[5:]])
    complaint(FAILURE, *command)
    kept = tokens_of(out)
    write(file, [ROWS[7], *ROWS[1:]])
    assert "prompts_digest=" in complaint(USAGE, *command)
    write(file, [*ROWS, {"text": "x"}])
    complaint(FAILURE, *command)
    assert len(tokens_of(out)) == 6
    write(file, [*ROWS[:3], *ROWS[:3], *ROWS])
    assert "prompts_digest=" in complaint(USAGE, *command)
    write(file, ROWS)
    assert run(*command).exit_code == 0
    write(file, [*ROWS, *ROWS])
    assert "prompts_digest=" in complaint(USAGE, *command)
    assert tokens_of(out)[: len(kept)] == kept


def test_a_folder_without_a_conversation_holds_nothing_back(folder: Path, tmp_path: Path) -> None:
    """A limit that was too short, another model, other prompts: nothing came of them."""
    out = tmp_path / "out"
    file = write(tmp_path / "long.jsonl", [{"prompt": "Q" * 200, "response": "A"}])
    command = ("generate", "--out", out, "--prompts", file, *KEEP)
    other = model_folder(tmp_path / "other", CHATML, seed=1)
    complaint(FAILURE, *command, "--model", other, "--max-length", "96")
    generate(folder, out, "--prompts", file, *KEEP)
    assert len(tokens_of(out)) == 1
    assert Corpus(out).unfinished is None
