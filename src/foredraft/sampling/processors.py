"""The logits processors of a request, in the order of `transformers`' `generate`.

transformers' own classes do the work, so results equal it, ties included. Ours are the OpenAI-style
presence and frequency penalties, which it lacks, and a top-p that finds the same tokens sooner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.generation import logits_process as hf

from foredraft.config import GenerationOptions
from foredraft.errors import ConfigError

Encode = Callable[[str], Sequence[Sequence[int]]]
"""All token spellings of a word (with and without a leading space)."""


class AnswerPenalty(hf.LogitsProcessor):  # type: ignore[misc]
    """Presence and frequency penalties over the answer so far: `score -= presence + frequency * count`."""

    def __init__(self, prompt_length: int, presence: float, frequency: float) -> None:
        self.prompt_length, self.presence, self.frequency = prompt_length, presence, frequency

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """input_ids: int64 [B, T]; scores: float32 [B, V]."""
        answer = input_ids[:, self.prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(
            1, answer, torch.ones_like(answer, dtype=scores.dtype)
        )
        return scores - self.frequency * counts - self.presence * (counts > 0)


class QuickTopPWarper(hf.TopPLogitsWarper):  # type: ignore[misc]
    """Top-p from sorted values alone, on CPUs: torch takes some 40 times as long to sort with indices.

    What goes is the head of the ascending order, so its length says which scores go. Only if equal
    scores stand on both sides of the cut does their order count; the original then decides.
    """

    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        """input_ids are not read; scores: float32 or float64 [B, V]."""
        if scores.device.type != "cpu":
            return self._sorting(scores)
        ascending = torch.from_numpy(np.sort(scores.detach().numpy(), axis=-1))
        removed = ascending.softmax(-1).cumsum(-1) <= 1 - self.top_p
        removed[..., -self.min_tokens_to_keep :] = False
        num_removed = removed.sum(-1, keepdim=True)
        least_kept = ascending.gather(-1, num_removed)
        last_removed = ascending.gather(-1, (num_removed - 1).clamp(min=0))
        if bool(((num_removed > 0) & (last_removed == least_kept)).any()):
            return self._sorting(scores)
        return scores.masked_fill(scores < least_kept, self.filter_value)

    def _sorting(self, scores: Tensor) -> Tensor:
        filtered: Tensor = super().__call__(None, scores)
        return filtered


def resolve_bad_words(
    options: GenerationOptions, encode: Encode | None
) -> tuple[tuple[int, ...], ...]:
    """Bad words as token ids. Strings need a tokenizer; without one they are a `ConfigError`."""
    words: list[tuple[int, ...]] = []
    for word in options.bad_words:
        if not isinstance(word, str):
            words.append(tuple(word))
        elif encode is None:
            raise ConfigError(
                f"bad_words={word!r} needs a tokenizer; give the word's token ids instead"
            )
        else:
            words.extend(tuple(ids) for ids in encode(word) if ids)
    return tuple(dict.fromkeys(words))


def shaping_processors(
    options: GenerationOptions,
    *,
    prompt_length: int,
    eos_token_ids: Sequence[int],
    bad_words: Sequence[Sequence[int]],
    device: torch.device | str,
) -> list[Any]:
    """What changes logits before temperature: biases, penalties, bans, then the user's own."""
    processors: list[Any] = []
    if options.logit_bias:
        processors.append(
            hf.SequenceBiasLogitsProcessor(
                {(token,): float(b) for token, b in options.logit_bias.items()}
            )
        )
    if options.repetition_penalty != 1.0:
        processors.append(hf.RepetitionPenaltyLogitsProcessor(float(options.repetition_penalty)))
    if options.presence_penalty or options.frequency_penalty:
        processors.append(
            AnswerPenalty(prompt_length, options.presence_penalty, options.frequency_penalty)
        )
    if bad_words:
        processors.append(
            hf.NoBadWordsLogitsProcessor(
                [list(w) for w in bad_words], eos_token_id=list(eos_token_ids) or None
            )
        )
    if options.min_new_tokens and eos_token_ids:
        processors.append(
            hf.MinNewTokensLengthLogitsProcessor(
                prompt_length, options.min_new_tokens, list(eos_token_ids), device=str(device)
            )
        )
    if options.suppress_tokens:
        processors.append(
            hf.SuppressTokensLogitsProcessor(list(options.suppress_tokens), device=str(device))
        )
    return _merge(processors, list(options.logits_processors))


def sampling_warpers(options: GenerationOptions) -> list[Any]:
    """Temperature and filters; none when decoding greedily, where they cannot change the choice."""
    if options.temperature == 0:
        return []
    warpers: list[Any] = []
    if options.temperature != 1.0:
        warpers.append(hf.TemperatureLogitsWarper(float(options.temperature)))
    if options.top_k:
        warpers.append(hf.TopKLogitsWarper(options.top_k))
    if options.top_p < 1.0:
        warpers.append(QuickTopPWarper(float(options.top_p)))
    if options.min_p:
        warpers.append(hf.MinPLogitsWarper(float(options.min_p)))
    return warpers


def _merge(built_in: list[Any], own: list[Any]) -> list[Any]:
    """As in `generate`: an own processor takes the place of a built-in of its class, the others follow."""
    merged = [next((p for p in own if type(p) is type(b)), b) for b in built_in]
    for processor in own:
        if processor not in merged:
            merged.append(processor)
    return merged


def banned_ids(options: GenerationOptions, bad_words: Sequence[Sequence[int]]) -> frozenset[int]:
    """Tokens that can follow nothing at all."""
    biased = (token for token, bias in options.logit_bias.items() if bias == -math.inf)
    single = (word[0] for word in bad_words if len(word) == 1)
    return frozenset((*biased, *single, *options.suppress_tokens))
