"""Speedups: what is paired with what, and how often their intervals hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from foredraft.bench.intervals import (
    Interval,
    difference_interval,
    mean_interval,
    ratio_interval,
)
from foredraft.bench.plan import PLAIN
from foredraft.bench.speedups import Pairs, median_speedup, pair, pooled_speedup
from tests.bench.synthetic_runs import SILENCE, Noise, answer_of, noisy_run, prompt_of, round_of

COVERAGE_SEEDS = 150
RESAMPLING_ERROR = 0.02
"""Of an end: 2,000 resamples know a standard error to 1.6 %, which is a tenth of the reach here."""


def pooled(pairs: Pairs) -> Interval:
    """The pooled speedup of pairs that have one."""
    found = pooled_speedup(pairs)
    assert found is not None
    return found


def test_pooling_divides_sums_and_the_median_divides_prompts() -> None:
    """Plain decoding takes 1 s a token; the method is 2, 1 and 4 times as fast."""
    records = [
        prompt_of(
            answer_of(PLAIN, round_of(emitted=tokens, seconds=tokens)),
            answer_of("m", round_of(emitted=tokens, seconds=tokens / speed)),
            id=str(i),
        )
        for i, (tokens, speed) in enumerate([(8, 2), (8, 1), (8, 4)])
    ]
    pairs = pair(records, "m", PLAIN)
    assert pooled(pairs).value == pytest.approx(24 / (4 + 8 + 2))
    median = median_speedup(pairs)
    assert median is not None
    assert median.value == pytest.approx(2)
    assert pairs.ratios.tolist() == pytest.approx([2, 1, 4])


def test_answers_of_other_lengths_are_compared_by_the_token() -> None:
    record = prompt_of(
        answer_of(PLAIN, round_of(emitted=10, seconds=10)),
        answer_of("m", round_of(emitted=5, seconds=2.5)),
    )
    assert pooled(pair([record], "m", PLAIN)).value == pytest.approx(2)


def test_a_conversation_is_one_prompt_and_turns_of_one_side_do_not_count() -> None:
    record = prompt_of(
        answer_of(PLAIN, round_of(emitted=10, seconds=10), turn=0),
        answer_of(PLAIN, round_of(emitted=10, seconds=30), turn=1),
        answer_of(PLAIN, round_of(emitted=10, seconds=99), turn=2),
        answer_of("m", round_of(emitted=10, seconds=10), turn=1),
        answer_of("m", round_of(emitted=10, seconds=10), turn=0),
    )
    pairs = pair([record], "m", PLAIN)
    assert len(pairs.tokens) == 1
    assert pooled(pairs) == Interval(pytest.approx(2), None, None)


def test_prompts_of_one_side_are_left_out() -> None:
    """Also where a peer's only token came out of its prefill: it decoded nothing."""
    both = prompt_of(answer_of(PLAIN, round_of(seconds=2)), answer_of("hf", round_of(seconds=1)))
    alone = prompt_of(answer_of(PLAIN, round_of(seconds=9)), id="1")
    prefilled = prompt_of(answer_of(PLAIN, round_of(seconds=9)), answer_of("hf"), id="2")
    assert pair([both, alone, prefilled], "hf", PLAIN).ratios.tolist() == [2]


def test_without_a_common_prompt_there_is_no_speedup() -> None:
    pairs = pair([prompt_of(answer_of("m", round_of()))], "m", PLAIN)
    assert pooled_speedup(pairs) is None
    assert median_speedup(pairs) is None


def test_the_same_speed_everywhere_has_an_interval_of_no_width() -> None:
    run = noisy_run(0, {PLAIN: 1.0, "m": 0.5}, noise=SILENCE)
    found = pooled(pair(run.records, "m", PLAIN))
    assert (found.low, found.high) == pytest.approx((2, 2))


def test_intervals_are_functions_of_the_records() -> None:
    run = noisy_run(0, {PLAIN: 1.0, "m": 0.5})
    assert pooled_speedup(pair(run.records, "m", PLAIN)) == pooled_speedup(
        pair(run.records, "m", PLAIN)
    )


def test_the_interval_is_students_with_a_resampled_standard_error() -> None:
    """Of a mean that is known: t times the standard deviation over the root of the prompts."""
    logs = np.linspace(-0.3, 0.5, 12)
    found = ratio_interval((logs,), np.mean)
    reach = stats.t.ppf(0.975, 11) * logs.std(ddof=1) / np.sqrt(12)
    assert found is not None
    assert found.value == pytest.approx(np.exp(0.1))
    assert found.high == pytest.approx(np.exp(0.1 + reach), rel=RESAMPLING_ERROR)
    assert found.low == pytest.approx(np.exp(0.1 - reach), rel=RESAMPLING_ERROR)


@pytest.mark.parametrize("noise", [Noise(), Noise(stalls=0.0)], ids=["stalls", "no stalls"])
@pytest.mark.parametrize("prompts", [10, 40])
def test_intervals_cover_the_truth_about_as_often_as_they_say(noise: Noise, prompts: int) -> None:
    """The truth is 2; each interval is given for 95 %, and fixed seeds make the count exact."""
    covered = {"pooled": 0, "median": 0}
    for seed in range(COVERAGE_SEEDS):
        run = noisy_run(seed, {PLAIN: 1.0, "m": 0.5}, prompts=prompts, noise=noise)
        pairs = pair(run.records, "m", PLAIN)
        for name, found in (("pooled", pooled_speedup(pairs)), ("median", median_speedup(pairs))):
            assert found is not None
            assert found.low is not None
            assert found.high is not None
            covered[name] += found.low <= 2 <= found.high
    shares = {name: count / COVERAGE_SEEDS for name, count in covered.items()}
    assert all(0.92 <= share <= 0.995 for share in shares.values()), shares


# --- differences ------------------------------------------------------------------------------------


def test_the_interval_of_a_mean_is_students() -> None:
    values = np.random.default_rng(0).normal(-0.3, 1.0, 30)
    found = mean_interval(values.tolist())
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    wanted = stats.t.interval(0.95, 29, values.mean(), stats.sem(values))
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx(wanted, abs=RESAMPLING_ERROR)


def test_differences_may_have_either_sign_and_few_prompts() -> None:
    same = mean_interval([0.0] * 5)
    assert same == Interval(0.0, 0.0, 0.0)
    assert mean_interval([0.25]) == Interval(0.25, None, None)
    assert mean_interval([]) is None
    assert difference_interval((np.array([]),), np.mean) is None
