"""Whether two measurements of the same prompts differ by more than noise (see docs/metrics.md).

All figures are of log ratios, one a prompt, so that swapping the two measurements mirrors every result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foredraft.bench.speedups import Floats, scipy_stats

ALPHA = 0.02
"""How often, of all comparisons of a run with itself, one is let to say that something changed."""
SMALLEST_EFFECT = 0.03
"""Two runs on a shared machine differ by this much without a cause."""
OUTLIER_DEVIATIONS = 3.5
"""A prompt so many robust standard deviations from the median of its suite is set aside .."""
STALL = 1.5
""".. if it is also off by this factor: a machine that stalled, and not a change that is looked for."""
MAD_TO_DEVIATION = 1.4826
"""The standard deviation of normal noise in units of its median absolute deviation."""
FASTER, SLOWER, NO_DIFFERENCE = "faster", "slower", "no difference"


@dataclass(frozen=True, slots=True)
class Estimate:
    """How many times as fast the second measurement is.

    Attributes:
        ratio: the geometric mean over prompts.
        low, high: its Student interval of level 1 - `ALPHA`; None where fewer than two prompts count.
        p_value: of the signed-rank test that nothing changed.
        prompts, set_aside: prompts that count, and those left out as stalls.
    """

    ratio: float
    low: float | None
    high: float | None
    p_value: float
    prompts: int
    set_aside: int


def estimate(logs: Floats, suites: Sequence[str]) -> Estimate:
    """The change that these prompts show together.

    Args:
        logs: [P] log of the ratio for each prompt, at least one.
        suites: [P] the suite of each: outliers are told within their own suite, so that a change of a whole
            suite counts.
    """
    kept = logs[_plausible(logs, suites)]
    log, reach = float(kept.mean()), _reach(kept)
    return Estimate(
        ratio=math.exp(log),
        low=None if reach is None else math.exp(log - reach),
        high=None if reach is None else math.exp(log + reach),
        p_value=_p_value(kept),
        prompts=len(kept),
        set_aside=len(logs) - len(kept),
    )


def correct(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for looking at all of them together (Benjamini and Hochberg)."""
    if not p_values:
        return []
    return [float(p) for p in scipy_stats().false_discovery_control(list(p_values))]


def verdict(found: Estimate, corrected_p: float) -> str:
    """`no difference`, `x % faster` or `x % slower`."""
    if found.low is None or found.high is None or found.low <= 1 <= found.high:
        return NO_DIFFERENCE
    if corrected_p > ALPHA or abs(math.log(found.ratio)) < math.log1p(SMALLEST_EFFECT):
        return NO_DIFFERENCE
    change = FASTER if found.ratio > 1 else SLOWER
    return f"{100 * abs(found.ratio - 1):.0f} % {change}"


def _plausible(logs: Floats, suites: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """[P] which prompts are no stalls."""
    names = np.array(suites)
    centres = np.array([np.median(logs[names == name]) for name in names])
    off = np.abs(logs - centres)
    deviation = MAD_TO_DEVIATION * float(np.median(off))
    within: np.ndarray[tuple[int], np.dtype[np.bool_]] = off <= max(
        OUTLIER_DEVIATIONS * deviation, math.log(STALL)
    )
    return within


def _reach(logs: Floats) -> float | None:
    """Half the width of Student's interval of the mean."""
    if len(logs) < 2:
        return None
    quantile = scipy_stats().t.ppf(1 - ALPHA / 2, len(logs) - 1)
    return float(quantile * logs.std(ddof=1) / math.sqrt(len(logs)))


def _p_value(logs: Floats) -> float:
    if not logs.any():  # the same run twice: ranks of nothing
        return 1.0
    return float(scipy_stats().wilcoxon(logs).pvalue)
