"""Speedups: paired within a run, with intervals from resampling its prompts (see docs/metrics.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foredraft.bench.pairing import same_turns
from foredraft.bench.plan import PLAIN
from foredraft.bench.records import AnswerRecord, PromptRecord
from foredraft.errors import ConfigError

HF = "hf"
BASELINES = {"plain": PLAIN, "hf": HF}
"""What methods are divided by: the name in `speedup_vs_*`, and the method."""

LEVEL = 0.95
RESAMPLES = 2000
SEED = 0
"""Intervals are a function of the records alone."""

Floats = NDArray[np.float64]
Totals = Callable[[Sequence[AnswerRecord]], tuple[float, float]]
"""Tokens and seconds of a prompt's answers by one method."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its interval; both ends None where one prompt leaves nothing to resample."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Pairs:
    """What a method and a baseline took for the same prompts; a conversation is one prompt.

    Attributes:
        tokens, seconds, baseline_tokens, baseline_seconds: [P] totals of each prompt, over the turns that
            both answered. Prompts of which one side's totals hold a 0 are left out.
    """

    tokens: Floats
    seconds: Floats
    baseline_tokens: Floats
    baseline_seconds: Floats

    @property
    def ratios(self) -> Floats:
        """[P] how many times as fast as the baseline the method answered each prompt."""
        return (self.tokens * self.baseline_seconds) / (self.seconds * self.baseline_tokens)


def decoding(answers: Sequence[AnswerRecord]) -> tuple[float, float]:
    """Emitted tokens and decode seconds; without the first token where it came out of prefill."""
    tokens = sum(answer.stats.completion_tokens for answer in answers)
    return float(tokens), sum(answer.stats.decode_s for answer in answers)


def whole_requests(answers: Sequence[AnswerRecord]) -> tuple[float, float]:
    """All tokens of the answers, and the seconds of prefill and decoding together."""
    tokens = sum(answer.num_tokens for answer in answers)
    return float(tokens), sum(request_s(answer) for answer in answers)


def request_s(answer: AnswerRecord) -> float:
    """Seconds from the request to the answer's end."""
    return answer.stats.prefill_s + answer.stats.decode_s


def pair(
    records: Sequence[PromptRecord], method: str, baseline: str, totals: Totals = decoding
) -> Pairs:
    """The prompts that both answered, with the tokens and seconds that `totals` finds in their answers."""
    kept: list[tuple[float, float, float, float]] = []
    for record in records:
        both = list(same_turns(record.of(method), record.of(baseline)))
        if both:
            mine, other = zip(*both, strict=True)
            total = (*totals(mine), *totals(other))
            kept += [total] if all(total) else []
    columns = np.array(kept, dtype=np.float64).reshape(-1, 4).T
    return Pairs(*columns)


def pooled_speedup(pairs: Pairs) -> Interval | None:
    """The ratio of pooled tokens per second; None without a common prompt."""

    def log_ratio(tokens: Any, seconds: Any, base_tokens: Any, base_seconds: Any, axis: int) -> Any:
        sums = [np.log(x.sum(axis=axis)) for x in (tokens, base_seconds, seconds, base_tokens)]
        return sums[0] + sums[1] - sums[2] - sums[3]

    samples = (pairs.tokens, pairs.seconds, pairs.baseline_tokens, pairs.baseline_seconds)
    return ratio_interval(samples, log_ratio)


def median_speedup(pairs: Pairs) -> Interval | None:
    """The median of the prompts' own ratios, between percentiles of its resamples; None without a prompt.

    The percentiles are as far out for few prompts as Student's t is (Hesterberg, 2015).
    """
    prompts = len(pairs.ratios)
    if not prompts:
        return None
    value = float(np.median(pairs.ratios))
    if prompts == 1:
        return Interval(value, None, None)
    tail = float(scipy_stats().norm.sf(_reach(prompts)))
    ends = np.quantile(_resample((pairs.ratios,), np.median), (tail, 1 - tail))
    return Interval(value, *ends.tolist())


def ratio_interval(samples: Sequence[Floats], log_statistic: Callable[..., Any]) -> Interval | None:
    """A ratio with its interval of level `LEVEL`; None without a prompt.

    Prompts are resampled for the standard error of the log ratio, and Student's t gives the reach. Under
    stalls of the machine this covers the truth as often as it says; percentiles cover it less, and
    bias-corrected ones far less.

    Args:
        samples: arrays [P]; a prompt's values stay together.
        log_statistic: takes the arrays and `axis`, works on whole batches of resamples, and gives the log
            of the ratio.

    Raises:
        ConfigError: scipy is not installed.
    """
    prompts = len(samples[0])
    if not prompts:
        return None
    log = float(log_statistic(*samples, axis=-1))
    if prompts == 1:
        return Interval(math.exp(log), None, None)
    reach = _reach(prompts) * float(_resample(samples, log_statistic).std(ddof=1))
    return Interval(math.exp(log), math.exp(log - reach), math.exp(log + reach))


def _resample(samples: Sequence[Floats], statistic: Callable[..., Any]) -> Floats:
    """[R] the statistic of every resample."""
    found = scipy_stats().bootstrap(
        tuple(samples),
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        method="percentile",  # of its own interval, which is not used: the cheapest
        rng=np.random.default_rng(SEED),
    )
    resamples: Floats = found.bootstrap_distribution
    return resamples


def _reach(prompts: int) -> float:
    """Half an interval in standard errors of resampling, which are too small by the root of (P - 1) / P."""
    quantile = float(scipy_stats().t.ppf((1 + LEVEL) / 2, prompts - 1))
    return quantile * math.sqrt(prompts / (prompts - 1))


def scipy_stats() -> Any:
    """`scipy.stats`, or the sentence that says how to get it."""
    try:
        from scipy import stats
    except ImportError:
        raise ConfigError(
            "figures with intervals need scipy; install it with pip install 'foredraft[bench]'"
        ) from None
    return stats
