"""The folder for a repository of the hub, loaded as `generate` loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, dynamic_module_utils

from foredraft.errors import ConfigError
from tests.hf.calls import DEFAULTS, PROMPTS, Letters, batch, model, plain
from tests.hf.test_streaming import Recorder
from tests.tiny_models import tiny_llama

FOLDER = Path(__file__).parents[2] / "examples" / "custom_generate"
FREE = plain(eos_token_id=None)


@pytest.fixture(autouse=True)
def modules_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library copies the folder's code to where it keeps such modules."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path))


def from_folder(**asked: Any) -> Any:
    return model().generate(
        **batch(), **DEFAULTS | asked, custom_generate=str(FOLDER), trust_remote_code=True
    )


def test_the_folder_is_as_the_hub_wants_it() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\n")
    assert "- custom_generate\n" in card.split("---")[1]
    assert (FOLDER / "custom_generate" / "generate.py").is_file()
    assert (FOLDER / "custom_generate" / "requirements.txt").read_text().split() == ["foredraft"]


@pytest.mark.parametrize(
    "asked",
    [
        {"method": "ngram"},
        {"method": "ngram", "tree": "2,1", "max_batch": 2},
        {"drafter": "none", "repetition_penalty": 1.3},
        {"assistant_model": tiny_llama(seed=3), "method": "speculative"},
        {"method": "ngram", "generation_config": GenerationConfig(no_repeat_ngram_size=2)},
    ],
    ids=lambda asked: ",".join(asked),
)
@pytest.mark.filterwarnings("ignore")
def test_it_gives_what_generate_gives(asked: dict[str, Any]) -> None:
    own = ("method", "tree", "max_batch", "drafter", "assistant_model")
    expected = plain(**{name: value for name, value in asked.items() if name not in own})
    assert torch.equal(from_folder(**asked), expected)


@pytest.mark.filterwarnings("ignore")
def test_streamer_and_tokenizer_of_the_call() -> None:
    length = max(map(len, PROMPTS))
    stops = [Letters().decode(FREE[0, length + 4 : length + 7])]
    theirs, mine = Recorder(), Recorder()
    words = Letters()
    expected = plain(streamer=theirs, stop_strings=stops, tokenizer=words)
    got = from_folder(streamer=mine, stop_strings=stops, tokenizer=words, method="ngram")
    assert torch.equal(got, expected)
    assert not torch.equal(got, FREE)
    assert mine.got == theirs.got
    config = GenerationConfig(stop_strings=stops)
    got = from_folder(generation_config=config, tokenizer=words, method="ngram")
    assert torch.equal(got, expected)
    assert config.stop_strings == stops


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"assistant_tokenizer": Letters()}, "assistant_tokenizer"),
        ({"assistant_model": tiny_llama(), "drafter": "ngram"}, "leave one out"),
    ],
    ids=["tokenizer", "two"],
)
def test_what_it_cannot_take(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_folder(**asked)
