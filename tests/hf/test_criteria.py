"""Stopping criteria act as in `generate`: token by token, row by row, drafts cut at the first that stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import StoppingCriteria
from transformers.generation.stopping_criteria import EosTokenCriteria, StopStringCriteria

from foredraft.errors import ConfigError
from foredraft.hf import CustomGenerate
from tests.hf.calls import PROMPTS, Letters, batch, custom, model, ours, plain

FREE = plain(eos_token_id=None)
LENGTH = max(map(len, PROMPTS))


class Own(StoppingCriteria):
    """Ends each row by a function of its ids, and keeps what it was shown."""

    def __init__(self, ends: Callable[[Tensor], bool]) -> None:
        self.ends = ends
        self.seen: list[Tensor] = []
        self.scores: list[Any] = []

    def __call__(self, input_ids: Tensor, scores: Any, **given: Any) -> Tensor:
        self.seen.append(input_ids)
        self.scores.append(scores)
        return torch.tensor([self.ends(row) for row in input_ids])


class ByPlace(StoppingCriteria):
    """Another length in each row of the batch."""

    def __call__(self, input_ids: Tensor, scores: Any, **given: Any) -> Tensor:
        assert len(input_ids) == len(PROMPTS)
        return torch.tensor([input_ids.shape[1] >= LENGTH + 3 + 4 * row for row in range(3)])


class AtOnce(StoppingCriteria):
    """One answer for the whole batch."""

    def __call__(self, input_ids: Tensor, scores: Any, **given: Any) -> Any:
        return input_ids.shape[1] >= LENGTH + 7


class OwnEnd(EosTokenCriteria):
    """An end token that counts from the sixth token on alone."""

    def __call__(self, input_ids: Tensor, scores: Any, **given: Any) -> Tensor:
        return super().__call__(input_ids, scores) & (input_ids.shape[1] > LENGTH + 6)


ENDS = [FREE[0, LENGTH + 4].item(), FREE[1, LENGTH + 9].item(), FREE[2, LENGTH + 14].item()]
SUM = int(FREE[0, LENGTH:].sum() % 7)
ASKED: dict[str, Callable[[], dict[str, Any]]] = {
    "an end token": lambda: {"eos_token_id": ENDS[0]},
    "several": lambda: {"eos_token_id": ENDS},
    "one out of range": lambda: {"eos_token_id": [ENDS[1], 4000, -1]},
    "no end token": lambda: {"eos_token_id": None, "max_new_tokens": 5},
    "max_length": lambda: {"max_length": LENGTH + 11, "max_new_tokens": None},
    "one token": lambda: {"max_new_tokens": 1},
    "max_time": lambda: {"max_time": 0.0},
    "own": lambda: {"stopping_criteria": [Own(lambda row: int(row.sum()) % 7 == SUM)]},
    "own by place": lambda: {"stopping_criteria": [ByPlace()]},
    "own at once": lambda: {"stopping_criteria": [AtOnce()]},
    "own without end tokens": lambda: {"stopping_criteria": [ByPlace()], "eos_token_id": None},
    "own and end tokens": lambda: {"stopping_criteria": [ByPlace()], "eos_token_id": ENDS},
    "own end tokens": lambda: {
        "stopping_criteria": [OwnEnd(torch.tensor(ENDS))],
        "eos_token_id": None,
    },
    "end tokens of another class": lambda: {
        "stopping_criteria": [EosTokenCriteria(ENDS)],
        "eos_token_id": 3,
    },
    "stop strings": lambda: {
        "stopping_criteria": [StopStringCriteria(Letters(), [Letters().decode(FREE[0, 12:15])])]
    },
    "all at once": lambda: {
        "stopping_criteria": [AtOnce(), Own(lambda row: row[-1] in ENDS[1:])],
        "eos_token_id": ENDS[0],
        "repetition_penalty": 1.2,
    },
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.filterwarnings("ignore")
def test_a_criterion_has_the_effect_it_has_in_generate(name: str) -> None:
    expected = plain(**ASKED[name]())
    assert torch.equal(ours(**ASKED[name]()), expected)
    assert not torch.equal(expected, plain(eos_token_id=None))


def test_a_criterion_sees_every_token_once_and_none_behind_the_end() -> None:
    """Though the draft that it ends goes on."""
    inputs = batch(PROMPTS[:1])
    free = plain(inputs, eos_token_id=None)
    own = Own(lambda row: len(row) == 6 + 7)
    got = ours(inputs, eos_token_id=None, stopping_criteria=[own])
    assert torch.equal(got, free[:, : 6 + 7])
    assert [ids[0].tolist() for ids in own.seen] == [free[0, :n].tolist() for n in range(7, 14)]
    assert own.scores == [None] * 7
    stats = custom().last_stats
    assert stats is not None
    assert stats.cut_rounds == 1
    assert stats.completion_tokens == 7


def test_a_criterion_sees_scores_where_they_are_returned() -> None:
    asked = {"return_dict_in_generate": True, "output_scores": True, "repetition_penalty": 1.2}

    class Sure(StoppingCriteria):
        """Ends a row at the first token that is clearly ahead."""

        def __call__(self, input_ids: Tensor, scores: Any, **given: Any) -> Tensor:
            assert len(scores) == input_ids.shape[1] - LENGTH
            best = scores[-1].topk(2).values
            return best[:, 0] - best[:, 1] > 0.6

    expected = plain(stopping_criteria=[Sure()], **asked)
    got = ours(stopping_criteria=[Sure()], **asked)
    assert torch.equal(got.sequences, expected.sequences)
    assert got.sequences.shape[1] < FREE.shape[1]


def test_stop_strings_of_the_call() -> None:
    stops = [Letters().decode(FREE[0, 12:15]), Letters().decode(FREE[2, 20:21])]
    expected = plain(stop_strings=stops, tokenizer=Letters())
    made = CustomGenerate(method="ngram", tokenizer=Letters())
    assert torch.equal(plain(custom_generate=made, stop_strings=stops), expected)
    only = plain(stop_strings=stops[0], tokenizer=Letters())
    assert torch.equal(plain(custom_generate=made, stop_strings=stops[0]), only)
    assert not torch.equal(expected, FREE)
    with pytest.raises(ConfigError, match=r"CustomGenerate\(tokenizer="):
        ours(stop_strings=stops)


def test_a_criterion_that_answers_for_other_rows() -> None:
    class Wrong(StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Any, **given: Any) -> Tensor:
            return torch.zeros(2, dtype=torch.bool)

    with pytest.raises(ConfigError, match="Wrong gave 2 answers for 3 rows"):
        ours(stopping_criteria=[Wrong()])


def test_an_error_in_a_criterion_comes_through() -> None:
    def fail(row: Tensor) -> bool:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ours(stopping_criteria=[Own(fail)])
    assert torch.equal(ours(), plain())


def test_the_context_ends_an_answer() -> None:
    """Where the model has no positions left, rows end one by one, each at its own place."""
    from tests.tiny_models import tiny_rope

    short = tiny_rope("dynamic")  # of 32 tokens
    inputs = batch([list(range(3, 30)), [5, 6]])
    made = CustomGenerate(method="ngram")
    asked = {"eos_token_id": 2, "pad_token_id": 0, "suppress_tokens": [2, 0]}
    got = short.generate(**inputs, custom_generate=made, max_new_tokens=9, **asked)
    assert got.shape == (2, 27 + 9)
    without = short.generate(
        **inputs, custom_generate=made, max_new_tokens=9, suppress_tokens=[2, 0], eos_token_id=None
    )
    assert torch.equal(without, got)
    assert (got[0] == 0).tolist() == [False] * 32 + [True] * 4
    assert not (got[1, 27:] == 0).any()
    assert model() is not short
