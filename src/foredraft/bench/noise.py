"""Whether two measurements of the same prompts differ by more than noise (see docs/metrics.md).

All figures are of log ratios, one a prompt, so that swapping the two measurements mirrors every result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foredraft.bench.intervals import Floats, scipy_stats

ALPHA = 0.02
"""How often, of all comparisons of a run with itself, one is let to say that something changed."""
SMALLEST_EFFECT = 0.03
"""Two runs on a shared machine differ by this much without a cause."""
WIDEST_EFFECT = 0.10
"""Where the interval reaches further than this from its middle, a change that matters may hide in it."""
OUTLIER_DEVIATIONS = 3.5
"""A prompt so many robust standard deviations from the median of its suite is an outlier .."""
STALL = 1.5
""".. if it is also off by this factor: a machine that stalled, and not a change that is looked for."""
MAD_TO_DEVIATION = 1.4826
"""The standard deviation of normal noise in units of its median absolute deviation."""
FASTER, SLOWER, NO_DIFFERENCE, CANNOT_TELL = "faster", "slower", "no difference", "cannot tell"

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Estimate:
    """How many times as fast the second measurement is.

    Attributes:
        ratio: the geometric mean over prompts.
        low, high: its Student interval of level 1 - `ALPHA`; None where fewer than two prompts count.
        p_value: of the signed-rank test that nothing changed.
        prompts: how many prompts this is from.
    """

    ratio: float
    low: float | None
    high: float | None
    p_value: float
    prompts: int


@dataclass(frozen=True, slots=True)
class Finding:
    """What a set of prompts shows.

    Attributes:
        p_value: corrected for everything that is looked at beside it.
        verdict: `x % faster`, `x % slower`, `no difference` or `cannot tell`.
    """

    estimate: Estimate
    p_value: float
    verdict: str

    @property
    def kind(self) -> str:
        """The verdict without its figure."""
        return self.verdict.partition(" % ")[2] or self.verdict

    def contradicts(self, other: Finding) -> bool:
        """Whether both claim something, and not the same."""
        return self.kind != other.kind and CANNOT_TELL not in (self.kind, other.kind)


def estimate(logs: Floats) -> Estimate:
    """The change that prompts show together.

    Args:
        logs: [P] log of the ratio for each prompt, at least one.
    """
    log, reach = float(logs.mean()), _reach(logs)
    return Estimate(
        ratio=math.exp(log),
        low=None if reach is None else math.exp(log - reach),
        high=None if reach is None else math.exp(log + reach),
        p_value=_p_value(logs),
        prompts=len(logs),
    )


def judge(estimates: Sequence[Estimate]) -> list[Finding]:
    """What each of several estimates shows, when all of them are looked at together."""
    p_values = [found.p_value for found in estimates]
    findings = []
    for i, (found, p) in enumerate(zip(estimates, correct(p_values), strict=True)):
        least = [*p_values[:i], smallest_p(found.prompts), *p_values[i + 1 :]]
        findings.append(Finding(found, p, verdict(found, p, correct(least)[i])))
    return findings


def correct(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for looking at all of them together (Benjamini and Hochberg)."""
    if not p_values:
        return []
    return [float(p) for p in scipy_stats().false_discovery_control(list(p_values))]


def smallest_p(prompts: int) -> float:
    """The signed-rank test's p-value where every prompt changed in the same direction."""
    return float(2.0 ** (1 - prompts))


def verdict(found: Estimate, corrected_p: float, smallest_corrected_p: float) -> str:
    """`x % faster`, `x % slower`, `no difference` or `cannot tell`.

    Args:
        found: what was measured.
        corrected_p: its p-value, corrected.
        smallest_corrected_p: the same had every prompt changed in the same direction.
    """
    if found.low is None or found.high is None:
        return CANNOT_TELL
    if found.low == found.high == 1:  # not two measurements, but one
        return NO_DIFFERENCE
    tested, apart = corrected_p <= ALPHA, not found.low <= 1 <= found.high
    if abs(math.log(found.ratio)) >= math.log1p(SMALLEST_EFFECT):
        if tested and apart:
            return f"{100 * abs(found.ratio - 1):.0f} % {FASTER if found.ratio > 1 else SLOWER}"
        if tested or apart:
            return CANNOT_TELL
    wide = math.log(found.high / found.ratio) > math.log1p(WIDEST_EFFECT)
    return CANNOT_TELL if wide or smallest_corrected_p > ALPHA else NO_DIFFERENCE


def outliers(logs: Floats, suites: Sequence[str]) -> Flags:
    """[P] which prompts are further from the others than noise goes.

    Args:
        logs: [P] log of the ratio for each prompt, at least one.
        suites: [P] the suite of each: outliers are told within their own suite, so that a change of a whole
            suite is none.
    """
    names = np.array(suites)
    centres = {name: np.median(logs[names == name]) for name in set(suites)}
    off = np.abs(logs - np.array([centres[name] for name in suites]))
    deviation = MAD_TO_DEVIATION * float(np.median(off))
    found: Flags = off > max(OUTLIER_DEVIATIONS * deviation, math.log(STALL))
    return found


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
