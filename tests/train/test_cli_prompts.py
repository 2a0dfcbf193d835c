"""`foredraft data generate` on users' conversations: answered or kept, cut, gone on with, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foredraft.train import answering
from foredraft.train.corpus import Corpus
from tests.train.data_commands import (
    CHATS,
    FAILURE,
    SMALL,
    USAGE,
    complaint,
    generate,
    model_folder,
    texts_of,
    tokens_of,
    write,
)
from tests.train.stock_templates import CHATML


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("target"), CHATML)


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    return write(tmp_path / "chats.jsonl", CHATS)


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
