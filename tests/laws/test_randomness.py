"""The seeded generator: its values have the laws they claim, and depend on nothing but their purpose."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats

from foredraft.sampling import randomness
from foredraft.sampling.randomness import SeededRandomness

NUM_VALUES = 20_000
P_VALUE = 1e-3
"""Seeds are fixed, so a test either always passes or never; a wrong law gives p far below this."""
CORRELATION = 4 / np.sqrt(NUM_VALUES)
"""Four standard errors of the correlation of independent values."""


def uniforms(random: SeededRandomness, count: int = NUM_VALUES) -> np.ndarray:
    """The stream of uniforms, as `categorical` over many equal weights shows it."""
    bins = torch.ones(10_000)
    return np.array([random.categorical(bins) for _ in range(count)]) / 10_000


def noise(seed: int = 1, choice: int = 0, position: int = 5, count: int = NUM_VALUES) -> np.ndarray:
    return SeededRandomness(seed, choice).gumbel(position, count).numpy()


# --- laws -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**64 - 1])
def test_noise_over_tokens_is_standard_gumbel(seed: int) -> None:
    assert stats.kstest(noise(seed), "gumbel_r").pvalue > P_VALUE


def test_noise_over_positions_is_standard_gumbel() -> None:
    random = SeededRandomness(3)
    rows = torch.stack([random.gumbel(position, 4) for position in range(NUM_VALUES // 4)])
    for token in range(4):
        assert stats.kstest(rows[:, token].numpy(), "gumbel_r").pvalue > P_VALUE


def test_noise_over_seeds_is_standard_gumbel() -> None:
    values = [float(SeededRandomness(seed).gumbel(0, 1)) for seed in range(NUM_VALUES // 4)]
    assert stats.kstest(values, "gumbel_r").pvalue > P_VALUE


def neighbours() -> Iterator[tuple[str, np.ndarray]]:
    """Rows of noise whose purposes differ by one, in every way."""
    row = noise()
    yield "base", row
    yield "next token", np.roll(row, 1)
    yield "next position", noise(position=6)
    yield "next seed", noise(seed=2)
    yield "next choice", noise(choice=1)
    yield "seed and choice exchanged", noise(seed=0, choice=1)
    yield "negative seed", noise(seed=-1)


def test_noise_of_different_purposes_is_independent() -> None:
    for (one, first), (other, second) in combinations(neighbours(), 2):
        assert abs(np.corrcoef(first, second)[0, 1]) < CORRELATION, (one, other)


def test_noise_of_any_two_tokens_is_independent_over_positions() -> None:
    random = SeededRandomness(11)
    rows = torch.stack([random.gumbel(position, 6) for position in range(NUM_VALUES)]).numpy()
    correlations = np.corrcoef(rows.T) - np.eye(6)
    assert np.abs(correlations).max() < CORRELATION


def test_a_choice_by_noise_follows_the_law() -> None:
    """argmax(log p + G), the chi-square test of 20,000 positions."""
    law = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    random = SeededRandomness(4)
    choices = [int((law.log() + random.gumbel(t, 4)).argmax()) for t in range(NUM_VALUES)]
    counts = np.bincount(choices, minlength=4)
    assert stats.chisquare(counts, law.numpy() * NUM_VALUES).pvalue > P_VALUE


def test_uniforms_are_uniform_and_independent() -> None:
    values = uniforms(SeededRandomness(5))
    counts = np.histogram(values, bins=50, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > P_VALUE
    for lag in (1, 2, 3):
        assert abs(np.corrcoef(values[lag:], values[:-lag])[0, 1]) < CORRELATION


def test_uniforms_are_independent_of_the_noise() -> None:
    values = uniforms(SeededRandomness(1))
    for row in (noise(), noise(position=0), noise(position=1)):
        assert abs(np.corrcoef(values, row)[0, 1]) < CORRELATION


@pytest.mark.parametrize("prob", [0.01, 0.3, 0.9])
def test_bernoulli_has_its_probability(prob: float) -> None:
    random = SeededRandomness(6)
    hits = sum(random.bernoulli(prob) for _ in range(NUM_VALUES))
    assert stats.binomtest(hits, NUM_VALUES, prob).pvalue > P_VALUE


def test_categorical_has_its_law_and_never_draws_weight_zero() -> None:
    weights = torch.tensor([0.0, 2.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    random = SeededRandomness(7)
    counts = np.bincount([random.categorical(weights) for _ in range(NUM_VALUES)], minlength=6)
    assert counts[[0, 2, 5]].sum() == 0
    expected = np.array([2, 1, 1]) / 4 * NUM_VALUES
    assert stats.chisquare(counts[[1, 3, 4]], expected).pvalue > P_VALUE


# --- the ends ---------------------------------------------------------------------------------------


class FixedUniform(SeededRandomness):
    """Every uniform is the same."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self._value = value

    def _uniform(self) -> float:
        return self._value


SMALLEST, LARGEST = 2.0**-54, 1 - 2.0**-53


@pytest.mark.parametrize("value", [SMALLEST, LARGEST])
def test_certain_and_impossible_events(value: float) -> None:
    random = FixedUniform(value)
    assert random.bernoulli(1.0)
    assert not random.bernoulli(0.0)


@pytest.mark.parametrize("value", [SMALLEST, LARGEST])
@pytest.mark.parametrize("scale", [1e-300, 0.1, 1.0, 3.0])
def test_weight_zero_is_not_drawn_at_the_ends(value: float, scale: float) -> None:
    weights = torch.tensor([0, 0.1, 0, 0.7, 0.2, 0, 0], dtype=torch.float64) * scale
    assert FixedUniform(value).categorical(weights) in (1, 3, 4)


def test_the_largest_uniform_is_below_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """`bernoulli(1.0)` has to be true for every pattern of bits that the generator can give."""
    monkeypatch.setattr(randomness, "_mix", lambda value: 2**64 - 1)
    assert SeededRandomness(0).bernoulli(1.0)


@pytest.mark.parametrize("bits", [0, -1])
def test_noise_is_finite_for_every_pattern_of_bits(
    monkeypatch: pytest.MonkeyPatch, bits: int
) -> None:
    """Infinite noise would choose a token whatever its probability."""
    monkeypatch.setattr(randomness, "_mix_in_place", lambda values, scratch: values.fill_(bits))
    assert torch.isfinite(SeededRandomness(0).gumbel(0, 3)).all()


# --- counter-based ----------------------------------------------------------------------------------


def test_noise_does_not_depend_on_what_was_drawn_before() -> None:
    fresh, used = SeededRandomness(8), SeededRandomness(8)
    for position in reversed(range(200)):  # more rows than are kept
        used.gumbel(position, 7)
        used.bernoulli(0.5)
    assert torch.equal(fresh.gumbel(3, 7), used.gumbel(3, 7))
    assert torch.equal(used.gumbel(3, 7), used.gumbel(3, 7))


def test_uniforms_do_not_depend_on_noise_that_was_read() -> None:
    fresh, used = SeededRandomness(8), SeededRandomness(8)
    for position in range(10):
        used.gumbel(position, 7)
    assert np.array_equal(uniforms(fresh, 100), uniforms(used, 100))


def test_noise_of_a_token_does_not_depend_on_the_vocabulary() -> None:
    random = SeededRandomness(9)
    assert torch.equal(random.gumbel(2, 5), random.gumbel(2, 50)[:5])


def test_interleaved_requests_do_not_disturb_each_other() -> None:
    """Case 47: a request's noise is its own."""
    one, other = SeededRandomness(1), SeededRandomness(2)
    mixed = [(one.categorical(torch.ones(99)), other.categorical(torch.ones(99))) for _ in "abcdef"]
    for column, seed in enumerate((1, 2)):
        alone = SeededRandomness(seed)
        assert [pair[column] for pair in mixed] == [
            alone.categorical(torch.ones(99)) for _ in "abcdef"
        ]


def test_global_generators_are_left_alone() -> None:
    """Case 47."""
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    drawn = SeededRandomness(10)
    drawn.gumbel(0, 100)
    drawn.bernoulli(0.5)
    drawn.categorical(torch.ones(5))
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
    assert before[2] == random.getstate()
