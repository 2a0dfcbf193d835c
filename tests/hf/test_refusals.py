"""What cannot be honoured is one clear sentence that names it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from foredraft.drafters.ngram import NgramDrafter
from foredraft.errors import ConfigError, ForedraftError, PromptError
from foredraft.hf import CustomGenerate
from tests.hf.calls import batch, model, ours, plain
from tests.tiny_models import tiny_llama

ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 4}, "num_beams=4 asks for beam search"),
    "lookup": ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3 asks for assisted"),
    "early exit": ({"assistant_early_exit": 1}, "assistant_early_exit=1 asks for assisted"),
    "quantised": ({"cache_implementation": "offloaded"}, "cache_implementation='offloaded'"),
    "a cache": ({"cache": DynamicCache()}, "a cache of your own"),
    "attentions": (
        {"return_dict_in_generate": True, "output_attentions": True},
        "output_attentions=True",
    ),
    "hidden": (
        {"return_dict_in_generate": True, "output_hidden_states": True},
        "output_hidden_states=True",
    ),
    "embeddings": ({"inputs_embeds": torch.zeros(3, 8, 32)}, "inputs_embeds"),
    "a batch of none": ({"max_batch": 0}, "max_batch=0"),
    "a method": ({"method": "ngrm"}, "did you mean 'ngram'"),
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.filterwarnings("ignore")
def test_a_call(name: str) -> None:
    asked, words = ASKED[name]
    with pytest.raises(ForedraftError, match=words):
        plain(custom_generate=CustomGenerate(method="ngram"), **asked)


def test_right_padding() -> None:
    inputs = {
        "input_ids": torch.tensor([[5, 6], [7, 0]]),
        "attention_mask": torch.tensor([[1, 1], [1, 0]]),
    }
    with pytest.raises(PromptError, match="row 1 of the batch has padding on its right"):
        ours(inputs)


def test_positions() -> None:
    with pytest.raises(PromptError, match="position_ids"):
        ours(position_ids=torch.arange(8).expand(3, 8))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_batch": 0}, "max_batch=0"),
        ({"treee": "2"}, "did you mean 'tree'"),
        ({"model": "x"}, "unknown option 'model'"),
    ],
)
def test_an_object(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CustomGenerate(**given)


@pytest.mark.parametrize("asked", [{"method": "ngram"}, {"tree": "2,1"}])
def test_a_part_and_a_name(asked: dict[str, Any]) -> None:
    made = CustomGenerate(NgramDrafter(1, 3), **asked)
    with pytest.raises(ConfigError, match="drafter that is a part"):
        plain(custom_generate=made)


def test_a_verifier_that_reads_rejected_tokens_takes_no_processors() -> None:
    made = CustomGenerate(tiny_llama(seed=3), method="speculative", verifier="traversal")
    assert torch.equal(plain(custom_generate=made), plain())
    with pytest.raises(ConfigError, match="TraversalVerifier"):
        plain(custom_generate=made, repetition_penalty=1.2)


def test_cache_layouts_that_change_no_answer_are_taken() -> None:
    inputs = batch()
    expected = plain()
    for asked in ({"use_cache": False}, {"cache_implementation": "dynamic"}):
        assert torch.equal(ours(inputs, **asked), expected)
    assert model().generation_config.cache_implementation is None
