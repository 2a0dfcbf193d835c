"""The objective that counts costs, worked out by hand, by enumeration and by finite differences."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from foredraft import ConfigError
from foredraft.costs import CostTable, DraftCosts, PassCosts
from foredraft.train.decision_figures import auc, figures, reliability
from foredraft.train.decision_objective import (
    Chains,
    RoundCosts,
    balanced_weights,
    bce_loss,
    chains_of,
    expected,
    stays,
    tokens_per_pass_time,
    tuned_threshold,
)
from foredraft.train.decision_rounds import RecordedRows
from tests.policies.decision_models import net

COSTS = RoundCosts(1.0, (0.3, 0.2, 0.25))


def chains(accept: Any, drafted: Any = None, features: Any = None) -> Chains:
    accept = torch.tensor(accept, dtype=torch.float64)
    drafted = torch.ones_like(accept) if drafted is None else torch.tensor(drafted)
    features = torch.zeros(*accept.shape, 4) if features is None else features
    return Chains(features, accept, drafted.bool(), torch.zeros(len(accept), dtype=torch.int64))


def by_enumeration(
    stay: list[float], accept: list[float], costs: RoundCosts
) -> tuple[float, float]:
    """E[tokens] and E[time] over every sequence of stops, and of acceptances."""
    depth, tokens, time = len(accept), 0.0, 0.0
    for goes_on in product((0, 1), repeat=depth - 1):
        weight = 1.0
        length = 1
        for level, on in enumerate(goes_on):
            if length == level + 1:  # reached
                weight *= stay[level] if on else 1 - stay[level]
                length += on
            else:
                weight *= 0.5  # a decision that is never made: either way counts half
        time += weight * (costs.base + sum(costs.levels[:length]))
        for kept in product((0, 1), repeat=length):
            chance = weight
            for level, yes in enumerate(kept):
                chance *= accept[level] if yes else 1 - accept[level]
            num_accepted = next((i for i, yes in enumerate(kept) if not yes), length)
            tokens += chance * (1 + num_accepted)
    return tokens, time


def test_expected_tokens_and_time_are_those_of_every_outcome() -> None:
    stay, accept = [0.7, 0.4, 0.9], [0.8, 0.5, 0.6]
    tokens, time = expected(torch.tensor([stay], dtype=torch.float64), chains([accept]), COSTS)
    assert (float(tokens), float(time)) == pytest.approx(by_enumeration(stay, accept, COSTS))


def test_levels_that_were_not_drafted_give_and_cost_nothing() -> None:
    stay = torch.full((1, 3), 0.9, dtype=torch.float64)
    cut = chains([[0.8, 0.5, 0.0]], [[1, 1, 0]])
    tokens, time = expected(stay, cut, COSTS)
    assert float(tokens) == pytest.approx(1 + 0.8 + 0.9 * 0.4)
    assert float(time) == pytest.approx(1 + 0.3 + 0.9 * 0.2)


def test_its_gradient_is_that_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    accept = torch.rand(5, 3, generator=generator, dtype=torch.float64)
    logits = torch.randn(5, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    data = chains(
        accept.tolist(),
        torch.rand(5, 3, generator=generator).gt(0.2).int().cummin(1).values.tolist(),
    )
    assert torch.autograd.gradcheck(
        lambda raw: tokens_per_pass_time(raw.sigmoid(), data, COSTS), (logits,), atol=1e-7
    )


def test_its_gradient_is_the_one_that_reinforce_estimates() -> None:
    """E[reward x d log pi] over all stops of a chain, enumerated."""
    stay = torch.tensor([0.7, 0.4, 0.9], dtype=torch.float64, requires_grad=True)
    accept = [0.8, 0.5, 0.6]
    tokens, _ = expected(stay[None], chains([accept]), COSTS)
    (gradient,) = torch.autograd.grad(tokens.sum(), stay)
    estimated = torch.zeros(3, dtype=torch.float64)
    survive = torch.tensor(accept, dtype=torch.float64).cumprod(0)
    for length in (1, 2, 3):
        probability, score = 1.0, torch.zeros(3, dtype=torch.float64)
        for level in range(min(length, 2)):
            s = float(stay.detach()[level])
            goes_on = level + 1 < length
            probability *= s if goes_on else 1 - s
            score[level] = 1 / s if goes_on else -1 / (1 - s)
        estimated += probability * (1 + float(survive[:length].sum())) * score
    torch.testing.assert_close(gradient, estimated)


@pytest.mark.parametrize(("rule", "kept"), [("any", [1, 1, 0]), ("path", [1, 0, 0])])
def test_thresholds_decide_as_the_policy_does(rule: Any, kept: list[int]) -> None:
    predicted = torch.tensor([[0.6, 0.6, 0.4]])
    assert stays(predicted, 0.4, rule).tolist() == [kept]  # not above 0.4: stop


def test_the_tuned_threshold_is_the_best_of_all() -> None:
    predicted = torch.tensor([[0.9, 0.9, 0.9], [0.3, 0.3, 0.3]], dtype=torch.float64)
    data = chains([[0.9, 0.9, 0.9], [0.1, 0.1, 0.1]])
    threshold, most = tuned_threshold(predicted, data, COSTS, "any")
    assert 0.3 <= threshold < 0.9
    whole = tokens_per_pass_time(torch.ones(2, 3, dtype=torch.float64), data, COSTS)
    assert most > float(whole)


def test_costs_of_a_table_are_those_of_its_passes() -> None:
    target = PassCosts((1, 4), (512,), ((0.02, 0.05),))
    draft = PassCosts((1,), (512,), ((0.004,),))
    table = CostTable(target, 0.002, {"speculative": DraftCosts(0.001, draft)})
    costs = RoundCosts.from_table(table, 3)
    assert costs.base == pytest.approx(0.023 / 0.02)
    assert costs.levels == pytest.approx(((0.01 + 0.004) / 0.02,) * 3)
    with pytest.raises(
        ConfigError, match=r"no method that drafts with this drafter \(its methods: ngram"
    ):
        RoundCosts.from_table(CostTable(target, 0.002, {"ngram": DraftCosts(0.001)}), 3)


def test_a_table_of_several_drafters_does_not_price_the_wrong_one() -> None:
    def passes(seconds: float) -> PassCosts:
        return PassCosts((1,), (512,), ((seconds,),))

    drafts = {
        "eagle2": DraftCosts(0.0, passes(0.002)),
        "mcsd": DraftCosts(0.003, passes(0.004)),
        "speculative": DraftCosts(0.001, passes(0.004)),
    }
    table = CostTable(passes(0.02), 0.0, drafts)
    for methods in (None, ("eagle2", "mcsd")):
        with pytest.raises(ConfigError, match=r"prices several drafters \(eagle2, mcsd"):
            RoundCosts.from_table(table, 2, methods)
    model = RoundCosts.from_table(table, 2, ("mcsd", "speculative"))
    assert model.levels == pytest.approx((0.2, 0.2))
    assert model.base == pytest.approx(0.021 / 0.02)
    assert RoundCosts.from_table(table, 2, ("eagle2",)).levels == pytest.approx((0.1, 0.1))


def test_chains_are_the_first_children_of_each_round() -> None:
    rows = RecordedRows(
        features=torch.arange(6.0)[:, None],
        labels=torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
        depths=torch.tensor([0, -1, 1, 0, 0, 1]),
        rounds=torch.tensor([0, 0, 0, 1, 5, 5]),
        prompts=torch.tensor([0, 0, 0, 0, 1, 1]),
    )
    found = chains_of(rows, rows.prompts == 0, 3)
    assert found.features[:, :, 0].tolist() == [[0, 2, 0], [3, 0, 0]]
    assert found.drafted.tolist() == [[True, True, False], [True, False, False]]
    torch.testing.assert_close(found.accept, torch.tensor([[0.1, 0.3, 0.0], [0.4, 0.0, 0.0]]))
    assert chains_of(rows, rows.prompts >= 0, 3).prompts.tolist() == [0, 0, 1]
    assert len(chains_of(rows, rows.prompts == 7, 3)) == 0


def test_balanced_labels_weigh_the_same() -> None:
    labels = torch.tensor([1.0, 0.0, 0.0, 0.0])
    weights = balanced_weights(labels)
    assert float((weights * labels).sum()) == pytest.approx(float((weights * (1 - labels)).sum()))
    assert balanced_weights(torch.ones(3)).tolist() == [1, 1, 1]


def test_cross_entropy_with_soft_labels_against_its_formula() -> None:
    made, features = net("hard"), torch.rand(6, 11, generator=torch.Generator().manual_seed(0))
    labels, weights = torch.linspace(0, 1, 6), torch.linspace(1, 2, 6)
    s = made(features).double()
    each = -(labels * s.log() + (1 - labels) * (1 - s).log())
    expected_loss = float((each * weights).sum() / weights.sum())
    assert float(bce_loss(made, features, labels, weights)) == pytest.approx(
        expected_loss, rel=1e-5
    )


def test_auc_against_every_pair() -> None:
    generator = torch.Generator().manual_seed(1)
    predicted = torch.randint(0, 6, (40,), generator=generator).double() / 5
    labels = torch.rand(40, generator=generator).double()
    above = (predicted[:, None] > predicted).double() + (
        predicted[:, None] == predicted
    ).double() / 2
    pairs = labels[:, None] * (1 - labels)
    assert auc(predicted, labels) == pytest.approx(float((above * pairs).sum() / pairs.sum()))
    assert auc(predicted, torch.ones(40).double()) is None


def test_figures_by_hand() -> None:
    predicted = torch.tensor([0.05, 0.05, 0.95, 1.0])
    labels = torch.tensor([0.0, 1.0, 1.0, 1.0])
    found = figures(predicted, labels)
    assert found.ece == pytest.approx(0.5 * abs(0.05 - 0.5) + 0.5 * abs(0.975 - 1.0))
    assert found.brier == pytest.approx((0.05**2 + 0.95**2 + 0.05**2) / 4)
    assert found.base_rate == 0.75
    assert [part.count for part in reliability(predicted, labels)] == [2, 2]
