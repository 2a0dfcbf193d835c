"""A drafter must mean the same tokens by the same ids, or be forced."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import foredraft
from foredraft import VocabularyError
from foredraft.drafters.vocabulary import check_same_vocabulary
from tests.tiny_folders import SPECIAL_TOKENS, WORDS, byte_tokenizer, save_folder

TOKENS = ("<pad>", "<s>", "</s>", "a", "b", "c", "d")
ANSWER: dict[str, Any] = {"max_new_tokens": 24, "ignore_eos": True}


class Tokenizer:
    """Knows nothing but what its ids mean."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return {token: token_id for token_id, token in enumerate(self._tokens)}


def complaint(target: Sequence[str], draft: Sequence[str]) -> str:
    with pytest.raises(VocabularyError) as caught:
        check_same_vocabulary(Tokenizer(target), Tokenizer(draft))
    return str(caught.value)


# --- two tokenizers ---------------------------------------------------------------------------------


def test_the_same_tokens_are_the_same_vocabulary() -> None:
    check_same_vocabulary(Tokenizer(TOKENS), Tokenizer(TOKENS))


@pytest.mark.parametrize("padded", ["target", "draft"])
def test_tokens_that_one_of_them_has_more_are_tolerated(padded: str) -> None:
    longer = Tokenizer([*TOKENS, "<extra_0>", "<extra_1>"])
    pair = (longer, Tokenizer(TOKENS)) if padded == "target" else (Tokenizer(TOKENS), longer)
    check_same_vocabulary(*pair)


def test_permuted_tokens_are_named_from_the_first_that_differs() -> None:
    """Case 61: the same tokens in another order."""
    permuted = (*TOKENS[:4], "d", "c", "b")
    assert "token 4 is 'd' there and 'b' in the target" in complaint(TOKENS, permuted)


def test_different_special_tokens_alone_are_a_difference() -> None:
    """Case 61."""
    message = complaint(TOKENS, ("<pad>", "<|im_start|>", "</s>", *TOKENS[3:]))
    assert "token 1 is '<|im_start|>' there and '<s>' in the target" in message


def test_the_error_says_how_to_go_on() -> None:
    message = complaint(TOKENS, TOKENS[::-1])
    assert "use a drafter of the same model family, or force_vocabulary=True" in message


# --- through load -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def foreign_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same number of tokens; the words have other ids."""
    tokenizer = byte_tokenizer(words=WORDS[::-1])
    return save_folder(tmp_path_factory.mktemp("foreign"), tokenizer)


@pytest.fixture(scope="module")
def renamed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other special tokens, and nothing else."""
    tokenizer = byte_tokenizer(special_tokens=("<pad>", "<bos>", "<eos>"))
    return save_folder(tmp_path_factory.mktemp("renamed"), tokenizer)


def test_a_drafter_with_permuted_tokens_is_refused(
    target_folder: Path, foreign_folder: Path
) -> None:
    first = len(byte_tokenizer(words=()))
    with pytest.raises(VocabularyError, match=f"token {first} is 'ma' there and 'th'"):
        foredraft.load(target_folder, drafter=foreign_folder, dtype="float32")


def test_a_drafter_with_other_special_tokens_is_refused(
    target_folder: Path, renamed_folder: Path
) -> None:
    with pytest.raises(VocabularyError, match=f"token 1 is '<bos>' there and '{SPECIAL_TOKENS[1]}"):
        foredraft.load(target_folder, drafter=renamed_folder, dtype="float32")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_forced_drafter_changes_no_token(
    target_folder: Path, foreign_folder: Path, temperature: float
) -> None:
    """Case 61: its ids are proposals, whatever they mean to it."""
    engine = foredraft.load(
        target_folder, drafter=foreign_folder, dtype="float32", force_vocabulary=True
    )
    request = ANSWER | {"temperature": temperature, "seed": 1}
    drafted = engine.generate("the cat sat", **request)
    assert drafted.stats.drafted_tokens > 0
    assert drafted.token_ids == engine.without_drafts().generate("the cat sat", **request).token_ids


def test_a_drafter_padded_past_the_tokenizer_is_accepted(
    tmp_path: Path, target_folder: Path
) -> None:
    """Case 60: its head has more rows than the tokenizer has tokens."""
    folder = save_folder(tmp_path, vocab_size=320)
    engine = foredraft.load(target_folder, drafter=folder, dtype="float32")
    assert engine.generate("the cat", **ANSWER).stats.drafted_tokens > 0
