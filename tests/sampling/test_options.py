"""What `GenerationOptions` refuses, and how it says so."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from foredraft.config import GenerationOptions
from foredraft.errors import ConfigError

NAN, INF = math.nan, math.inf
NO_NUMBERS: list[Any] = ["0.5", None, True, NAN, INF, -INF]
REFUSED: dict[str, list[Any]] = {
    "max_new_tokens": [0, -1, 1.5, True, None, "5"],
    "min_new_tokens": [-1, 1.5, True, None, 257],
    "temperature": [*NO_NUMBERS, -0.1, 1e-6],
    "top_k": [-1, 1.5, True, None],
    "top_p": [*NO_NUMBERS, 0, 0.0, 1.01, -0.5],
    "min_p": [*NO_NUMBERS, -0.01, 1.01],
    "repetition_penalty": [*NO_NUMBERS, 0, 0.0, -1.0],
    "presence_penalty": NO_NUMBERS,
    "frequency_penalty": NO_NUMBERS,
    "logit_bias": [{5: INF}, {5: NAN}, {5: "1"}, {5: None}, {5: True}],
    "bad_words": ["word", [""], [[]], [[3], []]],
    "suppress_tokens": [],
    "logits_processors": [],
    "seed": [1.5, True, "1"],
    "choice": [-1, 1.5, True, None],
    "eos_token_ids": [],
    "ignore_eos": [],
    "stop": ["word", [""], [b"word"], ["a", ""], [3]],
    "logprobs": [-1, 1.5, True],
    "prompt_logprobs": [-1, 1.5, True],
}
OF_A_WRONG_KIND: dict[str, list[Any]] = {
    "temperature": [10**400],
    "logit_bias": [None, [(5, 1.0)], {"5": 1.0}, {-1: 1.0}],
    "bad_words": [5, None, [5], [["a"]], [[-1]]],
    "suppress_tokens": [5, "ab", None, ["5"], [-1]],
    "logits_processors": [5, None, [5], print],
    "eos_token_ids": [2, "2", ["2"], [-1]],
    "ignore_eos": ["no", 2, None],
    "stop": [5, None],
}
"""Values of another kind than the option's."""
ACCEPTED: dict[str, list[Any]] = {
    "max_new_tokens": [1, 10**6, np.int64(3)],
    "min_new_tokens": [0, 256],
    "temperature": [0, 0.0, 1, 0.7, np.float64(0.7), np.float32(0.5)],
    "top_k": [0, 1, 10**9],
    "top_p": [1, 1.0, 1e-9, np.float64(0.9)],
    "min_p": [0, 1, 0.05],
    "repetition_penalty": [1, 2, 0.5],
    "presence_penalty": [-3, 0, 2.5],
    "frequency_penalty": [-3, 0, 2.5],
    "logit_bias": [{}, {5: 1}, {5: -INF, 6: -2.5}],
    "bad_words": [(), ["word", (1, 2), (3,)]],
    "suppress_tokens": [(), [1, 2]],
    "logits_processors": [(), [lambda input_ids, scores: scores]],
    "seed": [None, 0, -1, 2**70],
    "choice": [0, 7],
    "eos_token_ids": [None, (), [2, 3]],
    "ignore_eos": [True, False],
    "stop": [(), ["a", "bc"]],
    "logprobs": [None, 0, 20],
    "prompt_logprobs": [None, 0, 20],
}


def pairs(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}-{place}")
        for name, values in table.items()
        for place, value in enumerate(values)
    ]


def test_every_option_is_here() -> None:
    names = [f.name for f in dataclasses.fields(GenerationOptions)]
    assert list(REFUSED) == names
    assert list(ACCEPTED) == names
    assert all(REFUSED[name] or OF_A_WRONG_KIND[name] for name in names)


@pytest.mark.parametrize(("name", "value"), pairs(REFUSED))
def test_values_out_of_range_are_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        GenerationOptions(**{name: value})
    message = str(caught.value)
    assert f"{name}={value!r} is not allowed; give " in message
    with pytest.raises(ConfigError, match=name):
        GenerationOptions().replace(**{name: value})


@pytest.mark.parametrize(("name", "value"), pairs(OF_A_WRONG_KIND))
def test_values_of_a_wrong_kind_are_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        GenerationOptions(**{name: value})


@pytest.mark.parametrize(("name", "value"), pairs(ACCEPTED))
def test_values_at_the_edges_are_kept(name: str, value: Any) -> None:
    for options in (
        GenerationOptions(**{name: value}),
        GenerationOptions().replace(**{name: value}),
    ):
        kept = getattr(options, name)
        assert kept == (tuple(value) if isinstance(value, list) and type(kept) is tuple else value)


def test_no_fewer_tokens_than_no_more() -> None:
    with pytest.raises(ConfigError, match=r"min_new_tokens=9 .* at most max_new_tokens=8"):
        GenerationOptions(max_new_tokens=8, min_new_tokens=9)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("temprature", "temperature"),
        ("max_tokens", "max_new_tokens"),
        ("topp", "top_p"),
        ("repition_penalty", "repetition_penalty"),
        ("stops", "stop"),
    ],
)
def test_an_unknown_option_gets_the_likely_one(wrong: str, right: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown generation option '{wrong}'.*'{right}'"):
        GenerationOptions().replace(**{wrong: 1})


def test_an_unlikely_option_gets_all_names() -> None:
    with pytest.raises(ConfigError) as caught:
        GenerationOptions().replace(xyzzy=1)
    assert all(f.name in str(caught.value) for f in dataclasses.fields(GenerationOptions))


def test_options_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GenerationOptions().temperature = 1.0  # type: ignore[misc]
