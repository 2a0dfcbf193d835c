"""`foredraft data` as it is typed: corpora that a model writes, what is refused, and what is shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from foredraft.train import openings
from foredraft.train.corpus import Corpus
from tests.tiny_folders import save_folder
from tests.train.data_commands import (
    FAILURE,
    USAGE,
    WRITE,
    complaint,
    generate,
    model_folder,
    run,
    tokens_of,
    write,
)
from tests.train.stock_templates import CHATML, ZEPHYR, Stock


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("target"), CHATML)


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
        (("--seed", "1"), "--seed 0"),
        (("--top-p", "0.5"), "--top-p 0.95"),
        (("--max-length", "97"), "--max-length 96"),
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
    told = "holds a corpus made with --openings "
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


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "give --tokens"),
        (("--tokens", "0"), "--tokens 0"),
        (("--tokens", "9", "--batch", "0"), "--batch 0"),
        (("--tokens", "9", "--greedy-share", "2"), "--greedy-share 2.0"),
        (("--tokens", "9", "--temperatures", "hot"), "--temperatures 'hot'"),
        (("--tokens", "9", "--temperatures", "0,1"), "--temperatures (0.0, 1.0)"),
        (("--tokens", "9", "--top-p", "0"), "--top-p 0.0"),
        (("--tokens", "9", "--answers", "invent"), "--answers 'invent'"),
        (("--tokens", "9", "--answers", "keep"), "--answers 'keep' needs"),
        (("--tokens", "9", "--max-length", "9999"), "more than the model's context of 2048"),
        (("--prompts", "no.jsonl"), "no file 'no.jsonl'"),
        (("--prompts", "x.jsonl", "--more-turns", "0.1"), "--more-turns has no meaning"),
        (("--prompts", "x.jsonl", "--documents", "0.1"), "--documents has no meaning"),
        (("--tokens", "9", "--documents", "2"), "--documents 2.0"),
        (("--tokens", "9", "--max-document-tokens", "63"), "--max-document-tokens 63"),
        (
            ("--tokens", "9", "--openings", "none", "--documents", "0.5"),
            "--documents belongs to the built-in openings",
        ),
        (("--tokens", "9", "--taps", "1"), "ask for --keep-states too"),
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
