"""What comes back: a tensor, or a mapping with scores and logits, as `generate` gives them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.generation import GenerateDecoderOnlyOutput

from tests.hf.calls import PROMPTS, batch, model, ours, plain
from tests.hf.test_criteria import ByPlace

LENGTH = max(map(len, PROMPTS))
ALL = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
END = plain(eos_token_id=None)[0, LENGTH + 4].item()


def test_a_tensor_of_ids() -> None:
    got = ours()
    assert got.dtype == torch.int64
    assert not got.is_inference()
    assert torch.equal(got[:, :LENGTH], batch()["input_ids"])


@pytest.mark.parametrize(
    "asked",
    [{}, {"repetition_penalty": 1.4}, {"do_sample": True, "top_k": 1, "temperature": 0.7}],
    ids=str,
)
def test_scores_and_logits(asked: dict[str, Any]) -> None:
    """Up to the end of each row; behind it `generate` has those of padding, and we have zeros."""
    expected = plain(**ALL, **asked, eos_token_id=END)
    got = ours(**ALL, **asked, eos_token_id=END)
    assert isinstance(got, GenerateDecoderOnlyOutput)
    assert torch.equal(got.sequences, expected.sequences)
    assert got.cache is None
    pairs = {"scores": (got.scores, expected.scores), "logits": (got.logits, expected.logits)}
    for ours_, theirs in pairs.values():
        assert [s.shape for s in ours_] == [s.shape for s in theirs]
        for at, (mine, its) in enumerate(zip(ours_, theirs, strict=True)):
            goes_on = ~(got.sequences[:, LENGTH : LENGTH + at] == END).any(1)
            torch.testing.assert_close(mine[goes_on], its[goes_on], atol=1e-5, rtol=1e-5)
            assert not mine[~goes_on].any()
    assert got.sequences[:, LENGTH:].eq(END).any()
    differ = [not torch.equal(s, g) for s, g in zip(got.scores, got.logits, strict=True)]
    assert any(differ) == bool(asked)


def test_scores_of_rows_that_go_on_behind_their_end() -> None:
    """As they do in `generate` where there is no end token."""
    asked = {**ALL, "eos_token_id": None, "repetition_penalty": 1.4}
    expected = plain(**asked, stopping_criteria=[ByPlace()])
    got = ours(**asked, stopping_criteria=[ByPlace()])
    assert torch.equal(got.sequences, expected.sequences)
    torch.testing.assert_close(got.scores, expected.scores, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got.logits, expected.logits, atol=1e-5, rtol=1e-5)


def test_what_was_not_asked_for_is_none() -> None:
    got = ours(return_dict_in_generate=True)
    assert list(got) == ["sequences"]
    scores = ours(return_dict_in_generate=True, output_scores=True)
    assert list(scores) == ["sequences", "scores"]
    assert isinstance(ours(output_scores=True), torch.Tensor)


def test_transition_scores() -> None:
    got = ours(return_dict_in_generate=True, output_scores=True, eos_token_id=None)
    expected = plain(return_dict_in_generate=True, output_scores=True, eos_token_id=None)
    torch.testing.assert_close(
        model().compute_transition_scores(got.sequences, got.scores, normalize_logits=True),
        model().compute_transition_scores(
            expected.sequences, expected.scores, normalize_logits=True
        ),
    )


def test_several_answers_to_each_prompt() -> None:
    asked = {"do_sample": True, "num_return_sequences": 2}
    got = ours(**asked, eos_token_id=None)
    assert got.shape == (6, LENGTH + 24)
    assert torch.equal(got[::2, :LENGTH], batch()["input_ids"])
    assert len({tuple(row.tolist()) for row in got}) == 6
    same = {"do_sample": True, "num_return_sequences": 2, "top_k": 1}
    assert torch.equal(ours(**same), plain(**same))
