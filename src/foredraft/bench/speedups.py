"""Speedups: paired within a run, with intervals from resampling its prompts (see docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foredraft.bench.intervals import (
    Floats,
    Interval,
    ratio_interval,
    reach_of,
    resample,
    scipy_stats,
)
from foredraft.bench.pairing import same_turns
from foredraft.bench.plan import PLAIN
from foredraft.bench.records import AnswerRecord, PromptRecord

HF = "hf"
BASELINES = {"plain": PLAIN, "hf": HF}
"""What methods are divided by: the name in `speedup_vs_*`, and the method."""

Totals = Callable[[Sequence[AnswerRecord]], tuple[float, float]]
"""Tokens and seconds of a prompt's answers by one method."""


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
    records: Sequence[PromptRecord],
    method: str,
    baseline: str,
    totals: Totals = decoding,
    baseline_totals: Totals | None = None,
) -> Pairs:
    """The prompts that both answered, with the tokens and seconds that `totals` finds in their answers.

    `baseline_totals` finds those of the baseline, where they are found in another way.
    """
    kept: list[tuple[float, float, float, float]] = []
    for record in records:
        both = list(same_turns(record.of(method), record.of(baseline)))
        if both:
            mine, other = zip(*both, strict=True)
            total = (*totals(mine), *(baseline_totals or totals)(other))
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
    tail = float(scipy_stats().norm.sf(reach_of(prompts)))
    ends = np.quantile(resample((pairs.ratios,), np.median), (tail, 1 - tail))
    return Interval(value, *ends.tolist())
