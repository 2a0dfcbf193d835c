"""Adaptive drafts change no token, whatever they cost and whatever they follow."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from foredraft import Engine, GenerationOptions
from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel
from foredraft.costs import PassCosts
from foredraft.methods import parse_method
from foredraft.policies.adaptive import AdaptivePolicy
from foredraft.policies.prices import Prices
from tests.drafters.eagle_rounds import make_head
from tests.tiny_models import VOCAB_SIZE, tiny_llama

MODEL = tiny_llama()
TARGET = HFTarget(MODEL)
MODELS: dict[str, Any] = {
    "copies": None,
    "head": make_head(MODEL, "eagle3"),
    "reduced head": make_head(MODEL, "reduced"),
    "itself": TARGET,
    "another": HFTarget(tiny_llama(seed=3)),
}
PROMPTS = {
    "one token": [5],
    "loop": [7, 8, 9] * 6,
    "plain": [3, 14, 15, 92, 6, 5, 35],
}
OPTIONS = {
    "greedy": GenerationOptions(max_new_tokens=24, ignore_eos=True),
    "sampled": GenerationOptions(max_new_tokens=24, temperature=1.0, seed=5, ignore_eos=True),
    "penalised": GenerationOptions(
        max_new_tokens=24, temperature=0.8, top_p=0.9, repetition_penalty=1.3, seed=6
    ),
}
CHEAP = Prices(PassCosts((1, 64), (0,), ((1.0, 1.01),)), PassCosts((1,), (0,), ((1e-3,),)))
DEAR = Prices(PassCosts((1, 2), (0,), ((1.0, 1.9),)), PassCosts((1,), (0,), ((0.9,),)))


def engine(
    target: Any = TARGET, model: Any = None, prices: Prices | None = None, options: str = ""
) -> Engine:
    parts = parse_method(f"adaptive{options}").build(model)
    policy = parts.policy
    assert isinstance(policy, AdaptivePolicy)
    if prices is not None:
        own = prices if model is not None else Prices(prices.target)
        policy = policy.priced(own)
    return Engine(target, parts.drafter, policy, parts.verifier)


@pytest.mark.parametrize("prices", [CHEAP, DEAR, None], ids=["cheap", "dear", "assumed"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("model", MODELS)
def test_answers_are_plain_decodings(model: str, options: str, prices: Prices | None) -> None:
    adaptive = engine(model=MODELS[model], prices=prices)
    for prompt in PROMPTS.values():
        plain = adaptive.without_drafts().generate(prompt, OPTIONS[options])
        assert adaptive.generate(prompt, OPTIONS[options]).token_ids == plain.token_ids


def test_every_seed_has_its_text() -> None:
    target = TableModel.random(6, 2, sharpness=2.0, seed=1)
    adaptive = engine(target, TableModel.random(6, 2, sharpness=2.0, seed=2), CHEAP)
    for seed in range(200):
        options = GenerationOptions(max_new_tokens=12, temperature=1.0, seed=seed)
        plain = adaptive.without_drafts().generate([1, 2], options)
        assert adaptive.generate([1, 2], options).token_ids == plain.token_ids


def test_a_perfect_drafter_is_used_where_it_pays_and_not_where_it_does_not() -> None:
    options = OPTIONS["greedy"].replace(max_new_tokens=60)
    prompt = PROMPTS["plain"]
    cheap = engine(model=TARGET, prices=CHEAP).generate(prompt, options).stats
    dear = engine(model=TARGET, prices=DEAR).generate(prompt, options).stats
    assert cheap.mean_acceptance_length is not None
    assert cheap.mean_acceptance_length > 4
    assert sum(len(r.draft_rows) for r in dear.rounds) == 0


def test_a_useless_drafter_is_dropped() -> None:
    """Over 500 tokens its passes are seldom made."""
    target = TableModel.random(VOCAB_SIZE, 1, sharpness=8.0, seed=1)
    other = TableModel.random(VOCAB_SIZE, 1, sharpness=8.0, seed=9)
    level = PassCosts((1,), (0,), ((0.1,),))
    prices = Prices(PassCosts((1, 64), (0,), ((1.0, 1.6),)), level)
    options = GenerationOptions(max_new_tokens=500, temperature=1.0, seed=3)
    parts = parse_method("adaptive:copies=1:min=5:refine=no").build(other)
    assert isinstance(parts.policy, AdaptivePolicy)
    adaptive = Engine(target, parts.drafter, parts.policy.priced(prices), parts.verifier)
    stats = adaptive.generate([1, 2, 3], options).stats
    spent = sum(
        prices.target(sum(r.widths), 0) + sum(0.1 for _ in r.draft_rows) for r in stats.rounds
    )
    assert stats.completion_tokens == 500
    assert spent <= 1.05 * 500


def test_equal_texts_get_equal_drafts_where_prices_are_not_refined() -> None:
    adaptive = engine(model=MODELS["head"], prices=CHEAP, options=":refine=no")
    first, second = (
        adaptive.generate(PROMPTS["loop"], OPTIONS["greedy"]).stats.rounds for _ in range(2)
    )
    assert [(r.widths, r.draft_rows) for r in first] == [(r.widths, r.draft_rows) for r in second]


@pytest.mark.parametrize(("nodes", "depth"), list(itertools.product((1, 3), (1, 2))))
def test_bounds_are_kept(nodes: int, depth: int) -> None:
    adaptive = engine(
        model=TARGET, prices=CHEAP, options=f":nodes={nodes}:depth={depth}:copies={depth}"
    )
    for r in adaptive.generate(PROMPTS["loop"], OPTIONS["greedy"]).stats.rounds:
        assert sum(r.widths) - 1 <= nodes
        assert len(r.widths) - 1 <= depth


def test_a_chain_target_gets_chains() -> None:
    class Chains(TableModel):
        scores_trees = False

    target = Chains.random(VOCAB_SIZE, 2, sharpness=3.0, seed=5)
    with pytest.warns(UserWarning, match="kept to chains"):
        adaptive = engine(target, target, CHEAP)
    result = adaptive.generate([1, 2, 3, 1, 2], OPTIONS["sampled"])
    assert all(max(r.widths) == 1 for r in result.stats.rounds)
    plain = adaptive.without_drafts().generate([1, 2, 3, 1, 2], OPTIONS["sampled"])
    assert result.token_ids == plain.token_ids
