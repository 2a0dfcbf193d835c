"""Sampled calls follow the law of `generate`, and torch's global generator decides what they draw."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from transformers import LogitsProcessor

from foredraft.backends.hf import HFTarget
from foredraft.drafters.ngram import NgramDrafter
from foredraft.hf import CustomGenerate
from tests.hf.calls import PROMPTS, batch, custom, model, ours, plain
from tests.tiny_models import tiny_llama

SAMPLED = {"do_sample": True, "temperature": 1.3, "eos_token_id": None}
ROWS = 10
CALLS = 30
PROMPT = [[5, 6, 7, 5]]
LENGTH = len(PROMPT[0])


def seeded(seed: int, **asked: Any) -> Tensor:
    made = asked.pop("made", custom())
    model()  # which seeds its weights
    torch.manual_seed(seed)
    return plain(**SAMPLED, **asked, custom_generate=made)


def test_the_global_seed_reproduces_a_call() -> None:
    """The first of an object too, which builds its engine."""
    made = [CustomGenerate(HFTarget(tiny_llama()), method="speculative") for _ in range(2)]
    answers = [seeded(1, made=one) for one in (*made, made[0])]
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])
    assert not torch.equal(answers[0], seeded(2))
    torch.manual_seed(1)
    first, second = ours(**SAMPLED), ours(**SAMPLED)
    assert not torch.equal(first, second)


def test_a_greedy_call_draws_nothing() -> None:
    torch.manual_seed(1)
    expected = torch.rand(())
    torch.manual_seed(1)
    ours()
    assert torch.rand(()) == expected


def test_rows_have_noise_of_their_own_and_the_first_is_its_solo_run() -> None:
    torch.manual_seed(3)
    same = ours(batch([PROMPTS[0]] * 3), **SAMPLED)
    assert len({tuple(row.tolist()) for row in same}) == 3
    torch.manual_seed(3)
    assert torch.equal(ours(batch([PROMPTS[0]]), **SAMPLED)[0], same[0])


def test_drafts_do_not_change_what_a_seed_gives() -> None:
    """With exact verification."""
    answers = []
    for drafter in ("none", "ngram", tiny_llama(seed=3)):
        torch.manual_seed(5)
        made = CustomGenerate(drafter)
        answers.append(plain(**SAMPLED, top_k=9, custom_generate=made, max_new_tokens=12))
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])


class Tilt(LogitsProcessor):
    """Moves the law by the tokens so far."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        shift = torch.zeros_like(scores)
        shift.scatter_(1, (input_ids[:, -1:] * 7 + 1) % 97, 2.0)
        return scores + shift


LAWS: dict[str, dict[str, Any]] = {
    "own": {"top_k": 3, "logits_processor": [Tilt()]},
    "penalty": {"top_k": 4, "top_p": 0.9, "repetition_penalty": 1.6},
    "in another order": {"top_k": 3, "renormalize_logits": True},
}
MADE: dict[str, Any] = {
    "exact": lambda: CustomGenerate(HFTarget(tiny_llama(seed=3)), method="speculative"),
    "rejection": lambda: CustomGenerate(
        HFTarget(tiny_llama(seed=3)), method="speculative", verifier="rejection"
    ),
    "copies": lambda: CustomGenerate(NgramDrafter(1, 2)),
}


def law_of(asked: dict[str, Any]) -> dict[tuple[int, ...], float]:
    """The law of the first two tokens, from the processors that `generate` makes."""

    def grab(model: Any, input_ids: Tensor, logits_processor: Any, **rest: Any) -> Any:
        return logits_processor

    process = model().generate(
        **batch(PROMPT), **SAMPLED, **asked, pad_token_id=0, max_new_tokens=2, custom_generate=grab
    )

    @torch.no_grad()
    def after(ids: list[int]) -> Tensor:
        text = torch.tensor([ids])
        law: Tensor = process(text, model()(text).logits[:, -1].float())[0].double().softmax(-1)
        return law

    first = after(PROMPT[0])
    found = {}
    for token in first.nonzero().flatten().tolist():
        second = after([*PROMPT[0], token])
        for other in second.nonzero().flatten().tolist():
            found[token, other] = float(first[token] * second[other])
    return found


@pytest.mark.parametrize(
    ("name", "how"), [("own", "exact"), ("penalty", "rejection"), ("in another order", "copies")]
)
def test_the_law_of_two_tokens(name: str, how: str) -> None:
    torch.manual_seed(11)
    made, law = MADE[how](), law_of(LAWS[name])
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(CALLS):
        got = plain(
            batch(PROMPT),
            **SAMPLED,
            **LAWS[name],
            num_return_sequences=ROWS,
            max_new_tokens=3,
            custom_generate=made,
        )
        counts.update(tuple(row[LENGTH : LENGTH + 2].tolist()) for row in got)
    assert set(counts) <= set(law)
    total = CALLS * ROWS
    large = [pair for pair, p in law.items() if p * total >= 5]
    observed = [counts[pair] for pair in large]
    expected = [law[pair] * total for pair in large]
    observed.append(total - sum(observed))
    expected.append(total - sum(expected))
    if expected[-1] < 1e-6:
        observed, expected = observed[:-1], expected[:-1]
    assert len(observed) > 3
    assert chisquare(observed, expected, sum_check=False).pvalue > 1e-3
