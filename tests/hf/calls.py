"""`generate` on a tiny model, as it is and speculatively: what tests of `foredraft.hf` share."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from foredraft.backends.hf import HFTarget
from foredraft.hf import CustomGenerate
from tests.tiny_models import tiny_llama

PROMPTS = ([5, 6, 7, 8, 5, 6], [9], [30, 31, 32, 33, 34, 30, 31, 32])
"""Of different lengths; the first and the last repeat themselves."""
DEFAULTS = {"max_new_tokens": 24, "eos_token_id": 2, "pad_token_id": 0}


@functools.cache
def model() -> Any:
    return tiny_llama()


@functools.cache
def custom() -> CustomGenerate:
    """Drafts with a model of the same weights: nearly all is accepted, several tokens a round."""
    return CustomGenerate(HFTarget(tiny_llama()), method="speculative")


def batch(prompts: Sequence[Sequence[int]] = PROMPTS) -> dict[str, Tensor]:
    """The prompts, padded on the left."""
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(p)) + list(p) for p in prompts]
    mask = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def plain(inputs: dict[str, Tensor] | None = None, **asked: Any) -> Any:
    """What `generate` gives."""
    return model().generate(**(inputs or batch()), **DEFAULTS | asked)


def ours(inputs: dict[str, Tensor] | None = None, **asked: Any) -> Any:
    """What it gives with drafts."""
    return plain(inputs, custom_generate=custom(), **asked)


class Letters:
    """A tokenizer whose every token is one letter, with as much of the interface as stop strings need."""

    def get_vocab(self) -> dict[str, int]:
        return {chr(0x100 + token): token for token in range(97)}

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        return "".join(tokens)

    def _convert_id_to_token(self, token: int) -> str:
        return chr(0x100 + token)

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - 0x100 for letter in text]}

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        return "".join(chr(0x100 + int(token)) for token in token_ids)
