"""The gain of a decision model, by hand and against loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foredraft.train.decision_gain import best_depth, fixed_stay, gain_of, ratio_interval
from foredraft.train.decision_objective import Chains, RoundCosts


def rounds(accept: list[list[float]], prompts: list[int]) -> Chains:
    values = torch.tensor(accept, dtype=torch.float64)
    return Chains(
        torch.zeros(*values.shape, 4),
        values,
        torch.ones_like(values).bool(),
        torch.tensor(prompts),
    )


def test_the_best_depth_is_that_of_a_loop_over_all() -> None:
    data = rounds([[0.9, 0.8, 0.1], [0.9, 0.6, 0.2]], [0, 1])
    by_hand = []
    for depth in (1, 2, 3):
        tokens = [
            1 + sum(float(np.prod(row[:i])) for i in range(1, depth + 1))
            for row in data.accept.tolist()
        ]
        by_hand.append(sum(tokens) / (2 * (1 + 0.3 * depth)))
    assert best_depth(data, RoundCosts.flat(0.3, 3)) == 1 + int(np.argmax(by_hand)) == 2
    assert best_depth(data, RoundCosts.flat(0.0, 3)) == 3
    assert best_depth(data, RoundCosts.flat(9.0, 3)) == 1
    assert fixed_stay(data, 2).tolist() == [[1, 0, 0]] * 2


def test_a_gain_by_hand() -> None:
    data = rounds([[1.0, 1.0], [0.0, 0.0]], [3, 8])
    stay = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    gain = gain_of(stay, data, RoundCosts.flat(0.5, 2), 1, seed=0)
    assert gain.model == pytest.approx((3 + 1) / (2 + 1.5))
    assert gain.fixed == pytest.approx((2 + 1) / (1.5 + 1.5))
    assert gain.whole == pytest.approx((3 + 1) / (2 + 2))
    assert gain.ratio == pytest.approx(gain.model / gain.fixed)
    assert (gain.fixed_depth, gain.prompts) == (1, 2)
    # resamples: both prompts, the first twice, or the second twice, for which the two do the same
    ratios = [gain.ratio, (3 / 2) / (2 / 1.5), 1.0]
    assert gain.interval == pytest.approx((min(ratios), max(ratios)))


def test_one_prompt_has_no_interval() -> None:
    gain = gain_of(
        torch.ones(2, 2), rounds([[1.0, 1.0]] * 2, [4, 4]), RoundCosts.flat(0.5, 2), 1, 0
    )
    assert gain.interval is None
    assert "interval" not in gain.as_dict()


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Prompts of the same law under both rates: the true ratio is 1.1."""
    random, covered = np.random.default_rng(0), 0
    for trial in range(200):
        time = random.uniform(5, 15, 40)
        difficulty = random.uniform(0.5, 1.5, 40)  # shared by both: the draws are paired
        fixed = np.stack([time * difficulty, time], 1)
        noise = random.normal(1, 0.05, 40)
        model = np.stack([1.1 * time * difficulty * noise, time], 1)
        interval = ratio_interval(model, fixed, trial, 500)
        assert interval is not None
        covered += interval[0] <= 1.1 <= interval[1]
        assert interval[1] - interval[0] < 0.06  # unpaired it would be some 0.25
    assert 0.88 <= covered / 200 <= 0.99
