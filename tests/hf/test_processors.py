"""Logits processors act as in `generate`: each has its effect, with padding, in greedy and sampled calls."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, WatermarkingConfig
from transformers.generation import logits_process as hf

from foredraft.errors import ConfigError, NumericsError
from foredraft.hf.processors import split_warpers
from tests.hf.calls import PROMPTS, batch, model, ours, plain

FREE = plain(eos_token_id=None)
LENGTH = max(map(len, PROMPTS))
FIRST = FREE[:, LENGTH].tolist()


class ByPlace(LogitsProcessor):
    """Favours another token in each row of the batch."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert len(scores) == len(PROMPTS)
        for row in range(len(scores)):
            scores[row, 20 + row + input_ids.shape[1] % 3] += 4.0  # in place, as many do
        return scores


class ByPadding(LogitsProcessor):
    """Looks at the ids that stand before the prompt."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        shift = torch.zeros_like(scores)
        for row, ids in enumerate(input_ids):
            shift[row, 40 + int((ids == 0).sum())] = 5.0
        return scores + shift


class Counting(LogitsProcessor):
    """Keeps state: how often it was called."""

    def __init__(self) -> None:
        self.calls = 0
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(input_ids[0].tolist())
        shift = torch.zeros_like(scores)
        shift[:, (self.calls * 31) % 97] = 6.0
        return scores + shift


def allowed(row: int, ids: Tensor) -> list[int]:
    """Other tokens in each row; it wants to see its own row alone."""
    assert ids[-1] in (*PROMPTS[row][-1:], *range(10 * row + 3, 10 * row + 13))
    return list(range(10 * row + 3, 10 * row + 13))


ASKED: dict[str, Callable[[], dict[str, Any]]] = {
    "repetition_penalty": lambda: {"repetition_penalty": 1.5},
    "no_repeat_ngram_size": lambda: {"no_repeat_ngram_size": 1},
    "encoder_repetition_penalty": lambda: {"encoder_repetition_penalty": 3.0},
    "encoder_no_repeat_ngram_size": lambda: {"encoder_no_repeat_ngram_size": 1},
    "bad_words_ids": lambda: {"bad_words_ids": [[FIRST[0]], FREE[2, 9:11].tolist()]},
    "sequence_bias": lambda: {"sequence_bias": [[[FIRST[1]], -50.0], [[4, 5], 9.0]]},
    "min_length": lambda: {"min_length": LENGTH + 8, "eos_token_id": FIRST},
    "min_new_tokens": lambda: {"min_new_tokens": 5, "eos_token_id": FIRST},
    "forced_eos_token_id": lambda: {"forced_eos_token_id": 50},
    "suppress_tokens": lambda: {"suppress_tokens": FIRST},
    "begin_suppress_tokens": lambda: {"begin_suppress_tokens": FIRST},
    "exponential_decay_length_penalty": lambda: {
        "exponential_decay_length_penalty": (3, 4.0),
        "eos_token_id": 60,
    },
    "prefix_allowed_tokens_fn": lambda: {"prefix_allowed_tokens_fn": allowed},
    "guidance_scale": lambda: {"guidance_scale": 1.9},
    "watermarking_config": lambda: {"watermarking_config": WatermarkingConfig(bias=6.0)},
    "by place": lambda: {"logits_processor": [ByPlace()]},
    "by padding": lambda: {"logits_processor": [ByPadding()]},
    "with state": lambda: {"logits_processor": [Counting()]},
    "two": lambda: {"repetition_penalty": 1.5, "logits_processor": [ByPadding()]},
    "in place of its own": lambda: {
        "repetition_penalty": 1.1,
        "logits_processor": [hf.RepetitionPenaltyLogitsProcessor(2.5)],
    },
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.filterwarnings("ignore")
def test_a_processor_has_the_effect_it_has_in_generate(name: str) -> None:
    """Greedily, in a batch with padding."""
    expected = plain(**ASKED[name]())
    assert torch.equal(ours(**ASKED[name]()), expected)
    without = plain(eos_token_id=ASKED[name]().get("eos_token_id", 2))
    assert expected.shape != without.shape or not torch.equal(expected, without)


@pytest.mark.parametrize("name", [name for name in ASKED if name not in ("by place",)])
@pytest.mark.filterwarnings("ignore")
def test_a_processor_sees_a_single_row_as_in_generate(name: str) -> None:
    inputs = batch(PROMPTS[:1])
    assert torch.equal(ours(inputs, **ASKED[name]()), plain(inputs, **ASKED[name]()))


@pytest.mark.parametrize("max_batch", [1, 8])
def test_own_state_is_kept_for_each_row(max_batch: int) -> None:
    """Each row has the calls that it would have in a batch of `generate`: one a token."""
    processor = Counting()
    got = ours(logits_processor=[processor], max_batch=max_batch)
    assert torch.equal(got, plain(logits_processor=[Counting()]))
    assert processor.seen == [got[0, :end].tolist() for end in range(LENGTH, got.shape[1])]


def test_a_processor_that_cannot_be_copied_serves_one_row() -> None:
    class Locked(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    inputs = batch(PROMPTS[:1])
    got = ours(inputs, logits_processor=[Locked()])
    assert torch.equal(got, plain(inputs, logits_processor=[Locked()]))
    with pytest.raises(ConfigError, match="Locked cannot be copied for each row"):
        ours(logits_processor=[Locked()])


def test_models_and_tokenizers_are_not_copied() -> None:
    class Holding(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.model = model()

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            assert self.model is model()
            return super().__call__(input_ids, scores)

    assert torch.equal(ours(logits_processor=[Holding()]), plain(logits_processor=[Counting()]))


def test_a_processor_that_returns_something_else() -> None:
    class Wrong(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Any:
            return scores[0]

    with pytest.raises(ConfigError, match=r"Wrong returned \[97\]") as caught:
        ours(logits_processor=[Wrong()])
    assert caught.value.__notes__ == ["row 0 of 3 of a batch"]
    with pytest.raises(ConfigError, match="Wrong") as alone:
        ours(batch(PROMPTS[:1]), logits_processor=[Wrong()])
    assert not hasattr(alone.value, "__notes__")


def test_warpers_at_the_end_become_options() -> None:
    penalty = hf.RepetitionPenaltyLogitsProcessor(1.2)
    warpers = [
        hf.TemperatureLogitsWarper(0.7),
        hf.TopKLogitsWarper(5),
        hf.TopPLogitsWarper(0.9),
        hf.MinPLogitsWarper(0.01),
    ]
    assert split_warpers([penalty, *warpers]) == (
        [penalty],
        {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.01},
    )
    assert split_warpers(warpers[1:2]) == ([], {"temperature": 1.0, "top_k": 5})
    assert split_warpers([]) == ([], {"temperature": 1.0})


@pytest.mark.parametrize(
    "last",
    [
        hf.LogitNormalization(),
        hf.TopPLogitsWarper(0.9, min_tokens_to_keep=2),
        hf.MinPLogitsWarper(0.1, filter_value=-1e4),
        hf.TypicalLogitsWarper(0.9),
        hf.TemperatureLogitsWarper(1e-9),
    ],
    ids=lambda p: type(p).__name__,
)
def test_warpers_that_our_options_do_not_stand_for_stay_in_order(last: Any) -> None:
    processors = [hf.TemperatureLogitsWarper(0.7), last]
    assert split_warpers(processors) == (processors, {"temperature": 1.0})


def test_nothing_left_to_choose_is_an_error() -> None:
    class Nothing(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            return torch.full_like(scores, -math.inf)

    with pytest.raises(NumericsError, match="forbids every token"):
        ours(logits_processor=[Nothing()])
