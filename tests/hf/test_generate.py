"""`generate` with drafts gives what `generate` gives: models, batches, padding, methods."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import foredraft
from foredraft.backends.hf import HFTarget
from foredraft.drafters.ngram import NgramDrafter
from foredraft.hf import CustomGenerate
from foredraft.policies.fixed import FixedPolicy
from foredraft.verifiers.rejection import RejectionVerifier
from tests.drafters.eagle_rounds import make_head
from tests.hf.calls import DEFAULTS, PROMPTS, batch, custom, model, ours, plain
from tests.tiny_models import TREE_MODELS, tiny_bloom, tiny_llama


def test_it_is_reached_from_the_package() -> None:
    assert foredraft.hf.CustomGenerate is CustomGenerate
    assert "hf" in dir(foredraft)


@pytest.mark.parametrize("name", TREE_MODELS)
@pytest.mark.filterwarnings("ignore")
def test_models_of_every_kind(name: str) -> None:
    """Alone, and in a batch with padding on the left."""
    made = TREE_MODELS[name]()
    speculative = CustomGenerate(NgramDrafter(1, 3), FixedPolicy((2, 2)))
    for prompts in (PROMPTS[:1], PROMPTS):
        inputs = batch(prompts)
        expected = made.generate(**inputs, **DEFAULTS)
        got = made.generate(**inputs, **DEFAULTS, custom_generate=speculative)
        assert torch.equal(got, expected)
    assert speculative.last_stats is not None
    assert speculative.last_stats.completion_tokens > speculative.last_stats.target_passes / 2


def test_a_model_that_scores_chains_alone() -> None:
    made = tiny_bloom()
    got = made.generate(**batch(), **DEFAULTS, custom_generate=CustomGenerate(method="ngram"))
    assert torch.equal(got, made.generate(**batch(), **DEFAULTS))


@settings(max_examples=8)
@given(
    st.lists(st.lists(st.integers(3, 96), min_size=1, max_size=9), min_size=1, max_size=5),
    st.integers(1, 3),
)
def test_every_row_is_its_solo_run(prompts: list[list[int]], max_batch: int) -> None:
    """Rows wait, join and end at different times; nothing else shows of the batch."""
    together = ours(batch(prompts), max_batch=max_batch)
    length = max(map(len, prompts))
    for row, prompt in zip(together, prompts, strict=True):
        alone = plain(batch([prompt]))[0, len(prompt) :]
        assert torch.equal(row[length : length + len(alone)], alone)
        assert not row[length + len(alone) :].any()


def test_rounds_accept_drafts() -> None:
    ours(eos_token_id=None)
    stats = custom().last_stats
    assert stats is not None
    assert stats.requests == len(PROMPTS)
    assert stats.completion_tokens == 24 * len(PROMPTS)
    assert stats.mean_acceptance_length is not None
    assert stats.mean_acceptance_length > 3


HEAD = make_head(tiny_llama(), "eagle3")
MADE: dict[str, dict[str, Any]] = {
    "by name": {"method": "ngram:depth=3"},
    "with a tree": {"method": "ngram", "tree": "2,1"},
    "no drafter": {"drafter": "none"},
    "a drafter": {"drafter": NgramDrafter(1, 3)},
    "a policy": {"method": "ngram", "policy": FixedPolicy((3, 2))},
    "a verifier": {"method": "speculative", "verifier": "rejection", "drafter": tiny_llama(seed=3)},
    "a verifier's part": {"drafter": NgramDrafter(1, 3), "verifier": RejectionVerifier()},
    "a head": {"drafter": HEAD, "method": "eagle2:depth=3:nodes=6"},
    "all but by copies": {"method": "hybrid", "drafter": HEAD},
}


@pytest.mark.parametrize("name", MADE)
def test_whatever_drafts(name: str) -> None:
    assert torch.equal(
        plain(custom_generate=CustomGenerate(**MADE[name]), repetition_penalty=1.1),
        plain(repetition_penalty=1.1),
    )


def test_a_method_for_one_call() -> None:
    made = CustomGenerate(method="ngram")
    expected = plain()
    assert torch.equal(plain(custom_generate=made, method="autoregressive"), expected)
    assert made.last_stats is not None
    assert made.last_stats.drafted_tokens == 0
    assert torch.equal(plain(custom_generate=made), expected)
    assert made.last_stats.drafted_tokens > 0


def test_prompts_without_a_mask() -> None:
    """`generate` reads padding off the pad token then."""
    ids = batch()["input_ids"]
    assert torch.equal(ours({"input_ids": ids}), plain({"input_ids": ids}))
    assert torch.equal(ours({"inputs": ids}), plain({"inputs": ids}))


def test_positions_that_count_from_the_prompt_may_be_given() -> None:
    inputs = batch()
    positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    assert torch.equal(ours(inputs, position_ids=positions), plain())


def test_a_draft_model_as_target_of_ours_is_shared() -> None:
    draft = HFTarget(tiny_llama(seed=3))
    made = CustomGenerate(draft, method="speculative")
    assert torch.equal(plain(custom_generate=made), plain())
    assert model() is not draft.model
