"""`foredraft data` as it is typed: the three ways to a corpus, going on, and what is refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from foredraft.cli.main import app
from foredraft.train import answering, openings
from foredraft.train.corpus import Corpus
from tests.tiny_folders import save_folder
from tests.train.stock_templates import CHATML, ZEPHYR, Stock

FAILURE, USAGE, INTERRUPTED = 1, 2, 130
SMALL = ("--dtype", "float32", "--batch", "8", "--max-length", "96")
WRITE = (*SMALL, "--max-user-tokens", "24", "--max-reply-tokens", "24", "--greedy-share", "0.3")
CHATS = [
    {"messages": [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]},
    {"turns": ["on", "the mat"]},
    {"prompt": "the mat", "response": "the cat sat"},
]


def model_folder(folder: Path, stock: Stock, **changes: Any) -> Path:
    """A tiny model with a chat template."""
    return save_folder(folder, stock.tokenizer(), **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("target"), CHATML)


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    return write(tmp_path / "chats.jsonl", CHATS)


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    """A JSONL file."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def run(*arguments: str | Path) -> Result:
    """The command in this process; faults of ours are raised."""
    done = CliRunner().invoke(app, ["data", *map(str, arguments)], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def generate(model: Path, out: Path, *arguments: str | Path) -> Result:
    """A corpus that is made."""
    done = run("generate", "--model", model, "--out", out, *arguments)
    assert done.exit_code == 0, done.stderr
    return done


def complaint(code: int, *arguments: str | Path) -> str:
    """The last line on stderr of a command that is refused."""
    done = run(*arguments)
    assert done.exit_code == code, done.output
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: ")
    return line


def tokens_of(folder: Path) -> list[list[int]]:
    """Every conversation of a corpus."""
    return [sample.token_ids.tolist() for sample in Corpus(folder)]


def texts_of(folder: Path, stock: Stock) -> list[list[str]]:
    """What the assistant wrote in each conversation."""
    tokenizer = stock.tokenizer()
    return [
        [tokenizer.decode(sample.token_ids[a:b].tolist()) for a, b in sample.spans]
        for sample in Corpus(folder)
    ]


# --- a model that writes everything ---------------------------------------------------------------


def test_a_model_writes_a_corpus(folder: Path, tmp_path: Path) -> None:
    done = generate(folder, tmp_path / "out", *WRITE, "--tokens", "600")
    corpus = Corpus(tmp_path / "out")
    assert corpus.num_tokens >= 600
    assert corpus.lengths.max() <= 96
    assert corpus.manifest["seed"] == 0
    assert f"{corpus.num_tokens:,}" in done.stdout
    assert f"{corpus.num_labelled:,} tokens" in done.stdout


def test_hidden_states_are_kept_when_asked_for(folder: Path, tmp_path: Path) -> None:
    """Of each shard those of every tap and of the last layer; nothing in the corpus changes."""
    command = (*WRITE, "--tokens", "2500", "--documents", "0.5")
    generate(folder, tmp_path / "plain", *command)
    generate(folder, tmp_path / "kept", *command, "--keep-states", "--taps", "0,1")
    assert tokens_of(tmp_path / "kept") == tokens_of(tmp_path / "plain")
    again = generate(folder, tmp_path / "plain", *command, "--keep-states")
    shards = len(Corpus(tmp_path / "kept").manifest["shards"])
    assert shards > 1
    assert f"{shards} of {shards} shards were written without the hidden states" in again.stderr
    kept = sorted(file.name for file in (tmp_path / "kept" / "states").glob("*/*.states"))
    assert kept == sorted([f"tap-{tap}.states" for tap in (0, 1, 2)] * shards)


def test_the_same_command_goes_on_and_ends_the_same(folder: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    generate(folder, whole, *WRITE, "--tokens", "1500")
    generate(folder, parts, *WRITE, "--tokens", "300")
    first = tokens_of(parts)
    generate(folder, parts, *WRITE, "--tokens", "1500")
    assert len(first) < len(tokens_of(whole))
    assert tokens_of(parts) == tokens_of(whole)
    assert Corpus(parts).manifest == Corpus(whole).manifest


def test_another_seed_writes_another_corpus(folder: Path, tmp_path: Path) -> None:
    for seed in ("1", "2"):
        generate(folder, tmp_path / seed, *WRITE, "--tokens", "200", "--seed", seed)
    assert tokens_of(tmp_path / "1") != tokens_of(tmp_path / "2")


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (("--seed", "1"), "seed=0"),
        (("--top-p", "0.5"), "top_p=0.95"),
        (("--max-length", "97"), "max_length=96"),
        (("--dtype", "bfloat16"), "model_dtype='float32'"),
    ],
)
def test_other_options_on_the_same_folder_are_refused(
    folder: Path, tmp_path: Path, changed: tuple[str, ...], name: str
) -> None:
    generate(folder, tmp_path, *WRITE, "--tokens", "100")
    command = ("generate", "--model", folder, "--out", tmp_path, *WRITE, "--tokens", "100")
    assert name in complaint(USAGE, *command, *changed)


def test_other_words_to_go_on_with_are_noticed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("generate", "--model", folder, "--out", tmp_path, *WRITE, "--tokens", "100")
    assert run(*command).exit_code == 0
    told = "holds a corpus made with openings="
    assert re.search(told, complaint(USAGE, *command, "--openings", "none"))
    monkeypatch.setattr(openings, "FOLLOW_UPS", ("and the mat",))
    assert re.search(told, complaint(USAGE, *command))


def test_a_user_is_led_by_words_or_left_alone() -> None:
    tokenizer = CHATML.tokenizer()
    for texts, read in (
        (openings.OPENINGS, openings.read_openings("builtin", tokenizer)),
        (openings.FOLLOW_UPS, openings.read_follow_ups("builtin", tokenizer)),
    ):
        assert [tokenizer.decode(ids) for ids in read if ids] == list(texts)
        assert read.count(()) / len(read) == pytest.approx(openings.LEFT_ALONE, abs=0.01)
    assert openings.read_openings("none", tokenizer) == ((),)
    assert openings.read_follow_ups("none", tokenizer) == ((),)


def test_openings_of_a_users_own_lead_first_turns_alone(tmp_path: Path) -> None:
    tokenizer, file = CHATML.tokenizer(), tmp_path / "openings.txt"
    file.write_text("the cat\n\nsat on\n", encoding="utf-8")
    read = openings.read_openings(str(file), tokenizer)
    assert [tokenizer.decode(ids) for ids in read if ids] == ["the cat", "sat on"]
    assert openings.read_follow_ups(str(file), tokenizer) == ((),)


@pytest.mark.parametrize(
    ("stock", "seed", "name"),
    [
        (ZEPHYR, 0, "tokenizer="),
        (CHATML, 1, "weights="),
        (
            Stock(CHATML.template.replace("You are", "Be"), CHATML.specials, CHATML.end),
            0,
            "opening=|tokenizer=",
        ),
    ],
    ids=["tokenizer", "weights", "template"],
)
def test_a_model_changed_in_place_is_noticed(
    tmp_path: Path, stock: Stock, seed: int, name: str
) -> None:
    model, out = model_folder(tmp_path / "model", CHATML), tmp_path / "out"
    generate(model, out, *WRITE, "--tokens", "100")
    model_folder(model, stock, seed=seed, vocab_size=len(CHATML.tokenizer()))
    line = complaint(USAGE, "generate", "--model", model, "--out", out, *WRITE, "--tokens", "100")
    assert re.search(f"made with .*({name}|end_ids=)", line)


# --- users' conversations -------------------------------------------------------------------------


def test_the_model_answers_prompts_turn_by_turn(folder: Path, chats: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = generate(folder, out, *SMALL, "--prompts", chats, "--max-reply-tokens", "16")
    tokenizer = CHATML.tokenizer()
    texts = [tokenizer.decode(ids) for ids in tokens_of(out)]
    assert len(texts) == 3
    for text, row in zip(texts, ("the cat", "on", "the mat"), strict=True):
        assert text.startswith(
            "<|im_start|>system\nYou are helpful<|im_end|>\n<|im_start|>user\n"
            f"{row}<|im_end|>\n<|im_start|>assistant\n"
        )
    assert "the cat sat" not in "".join(texts)
    assert "replies by the model" in done.stdout


def test_kept_replies_are_labelled_to_their_ends(folder: Path, tmp_path: Path) -> None:
    rows = [CHATS[0], CHATS[2]]
    file = write(tmp_path / "chats.jsonl", rows)
    done = generate(folder, tmp_path / "out", "--prompts", file, "--answers", "keep")
    assert texts_of(tmp_path / "out", CHATML) == [["sat<|im_end|>"], ["the cat sat<|im_end|>"]]
    assert "warning: the replies are not the target's own" in done.stderr


def test_kept_replies_go_on_where_they_ended(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "KEPT_PER_SHARD", 3)
    rows = [{"prompt": f"Q{i}", "response": f"A{i}"} for i in range(8)]
    file = write(tmp_path / "chats.jsonl", rows)
    keep = ("--prompts", file, "--answers", "keep")
    generate(folder, tmp_path / "parts", *keep, "--tokens", "10")
    assert len(Corpus(tmp_path / "parts")) == 3
    generate(folder, tmp_path / "parts", *keep)
    generate(folder, tmp_path / "whole", *keep)
    assert tokens_of(tmp_path / "parts") == tokens_of(tmp_path / "whole")
    assert [len(texts) for texts in texts_of(tmp_path / "whole", CHATML)] == [1] * 8


def test_what_does_not_fit_is_cut_or_dropped_and_counted(folder: Path, tmp_path: Path) -> None:
    tokenizer = CHATML.tokenizer()
    start = len(tokenizer("<|im_start|>system\nYou are helpful<|im_end|>\n")["input_ids"])
    limit = start + 40
    rows = [
        {"prompt": "Q", "response": "A"},
        {"prompt": "Q", "response": "A" * 100},
        {"prompt": "Q" * 100, "response": "A"},
    ]
    file = write(tmp_path / "chats.jsonl", rows)
    keep = ("--prompts", file, "--answers", "keep", "--max-length", str(limit))
    done = generate(folder, tmp_path / "out", *keep)
    corpus = Corpus(tmp_path / "out")
    assert [len(ids) for ids in tokens_of(tmp_path / "out")][1] == limit
    assert [
        {k: s[k] for k in ("samples", "dropped", "truncated")} for s in corpus.manifest["shards"]
    ] == [{"samples": 2, "dropped": 1, "truncated": 1}]
    words = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "1 end in the middle of a reply" in words["cut"]
    assert "1 without a reply" in words["dropped"]


def test_a_prompt_that_leaves_no_room_is_dropped(folder: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "chats.jsonl", [{"prompt": "Q" * 200}, {"prompt": "Q"}])
    generate(folder, tmp_path / "out", *SMALL, "--prompts", file)
    corpus = Corpus(tmp_path / "out")
    assert len(corpus) == 1
    assert corpus.manifest["shards"][0]["dropped"] == 1


def test_prompts_that_end_early_are_warned_of(folder: Path, chats: Path, tmp_path: Path) -> None:
    done = generate(folder, tmp_path / "out", *SMALL, "--prompts", chats, "--tokens", "100000")
    assert "the prompts are at their end" in done.stderr


def test_changed_prompts_are_noticed(folder: Path, chats: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("--prompts", chats, "--answers", "generate", *SMALL)
    generate(folder, out, *command)
    write(chats, CHATS[::-1])
    line = complaint(USAGE, "generate", "--model", folder, "--out", out, *command)
    assert "prompts_digest=" in line


@pytest.mark.parametrize(
    ("rows", "options", "code", "reason"),
    [
        ([], (), FAILURE, "holds no conversation"),
        ([{"text": "x"}], (), FAILURE, "line 1 has none of"),
        ([{"prompt": "Q" * 200}], (), FAILURE, "nothing to learn from"),
        ([{"prompt": "Q"}], ("--answers", "keep"), FAILURE, "line 1 has no reply"),
        (
            [{"prompt": "Q", "response": "A<|im_end|>"}],
            ("--answers", "keep"),
            USAGE,
            "line 1: a reply contains",
        ),
    ],
)
def test_prompts_without_use_are_errors(
    folder: Path,
    tmp_path: Path,
    rows: list[dict[str, Any]],
    options: tuple[str, ...],
    code: int,
    reason: str,
) -> None:
    file = write(tmp_path / "chats.jsonl", rows)
    command = ("generate", "--model", folder, "--out", tmp_path / "out", "--prompts", file)
    assert reason in complaint(code, *command, "--max-length", "96", *options)


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "say how many tokens"),
        (("--tokens", "0"), "num_tokens=0"),
        (("--tokens", "9", "--batch", "0"), "batch=0"),
        (("--tokens", "9", "--greedy-share", "2"), "greedy_share=2.0"),
        (("--tokens", "9", "--temperatures", "hot"), "--temperatures 'hot'"),
        (("--tokens", "9", "--temperatures", "0,1"), "temperatures=(0.0, 1.0)"),
        (("--tokens", "9", "--top-p", "0"), "top_p=0.0"),
        (("--tokens", "9", "--answers", "invent"), "answers='invent'"),
        (("--tokens", "9", "--answers", "keep"), "answers='keep' needs"),
        (("--tokens", "9", "--max-length", "9999"), "more than the model's context of 2048"),
        (("--prompts", "no.jsonl"), "no file 'no.jsonl'"),
        (("--prompts", "x.jsonl", "--more-turns", "0.1"), "--more-turns has no meaning"),
        (("--prompts", "x.jsonl", "--documents", "0.1"), "--documents has no meaning"),
        (("--tokens", "9", "--documents", "2"), "documents=2.0"),
        (("--tokens", "9", "--max-document-tokens", "63"), "max_document_tokens=63"),
        (
            ("--tokens", "9", "--openings", "none", "--documents", "0.5"),
            "--documents belongs to the built-in openings",
        ),
        (("--tokens", "9", "--taps", "1"), "ask for keep_states too"),
        (("--tokens", "9", "--keep-states", "--taps", "one"), "--taps 'one' is no list"),
        (("--prompts", "x.jsonl", "--answers", "keep", "--seed", "1"), "--seed has no meaning"),
    ],
)
def test_options_that_cannot_work_are_refused(
    folder: Path, tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    command = ("generate", "--model", folder, "--out", tmp_path / "out", *options)
    assert reason in complaint(USAGE, *command)
    assert not (tmp_path / "out").exists()


def test_a_template_without_a_frame_is_refused(tmp_path: Path) -> None:
    model = save_folder(tmp_path / "model")
    command = ("generate", "--model", model, "--out", tmp_path / "out", "--tokens", "9")
    line = complaint(USAGE, *command, "--max-length", "96")
    assert "give prompts of your own" in line


# --- show -----------------------------------------------------------------------------------------


def test_show_prints_conversations_with_their_replies_marked(folder: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"Q{i}", "response": f"[bold]A{i}"} for i in range(4)]
    file = write(tmp_path / "chats.jsonl", rows)
    generate(folder, tmp_path / "out", "--prompts", file, "--answers", "keep")
    shown = run("show", tmp_path / "out", "--samples", "2")
    assert shown.exit_code == 0
    for i in (0, 2):
        assert (
            f"user\nQ{i}<|im_end|>\n<|im_start|>assistant\n⟦[bold]A{i}<|im_end|>⟧" in shown.stdout
        )
    assert "Q1" not in shown.stdout
    assert "4 in 1 shard" in shown.stdout


def test_show_names_a_folder_without_a_corpus(tmp_path: Path) -> None:
    assert "holds no corpus" in complaint(FAILURE, "show", tmp_path)


# --- interrupts -----------------------------------------------------------------------------------


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
        _, said = process.communicate(timeout=20)
    assert process.returncode == INTERRUPTED, said
    corpus = Corpus(out)
    assert corpus.num_tokens > 0
    assert f"interrupted: {corpus.num_tokens:,} tokens are kept in {out}" in said.replace("\n", "")
    assert np.all(corpus.lengths > 0)
