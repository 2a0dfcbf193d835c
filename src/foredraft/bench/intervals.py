"""Figures of prompts with their intervals, from resampling the prompts (see docs/metrics.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import ConfigError

LEVEL = 0.95
RESAMPLES = 2000
SEED = 0
"""Intervals are a function of the records alone."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its interval; both ends None where one prompt leaves nothing to resample."""

    value: float
    low: float | None
    high: float | None


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
    log = difference_interval(samples, log_statistic)
    if log is None or log.low is None or log.high is None:
        return log and Interval(math.exp(log.value), None, None)
    return Interval(*map(math.exp, (log.value, log.low, log.high)))


def difference_interval(
    samples: Sequence[Floats], statistic: Callable[..., Any]
) -> Interval | None:
    """A figure that may have any sign, with its two-sided interval; None without a prompt.

    Args:
        samples: arrays [P]; a prompt's values stay together.
        statistic: takes the arrays and `axis`, works on whole batches of resamples, and gives the figure.
    """
    prompts = len(samples[0])
    if not prompts:
        return None
    value = float(statistic(*samples, axis=-1))
    if prompts == 1:
        return Interval(value, None, None)
    reach = reach_of(prompts) * float(resample(samples, statistic).std(ddof=1))
    return Interval(value, value - reach, value + reach)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """The mean of what prompts show, each counting once; None without one."""
    return difference_interval((np.array(values, dtype=np.float64),), np.mean)


def named(name: str, interval: Interval | None) -> dict[str, float | None]:
    """A figure and the ends of its interval, ready for JSON."""
    if interval is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def resample(samples: Sequence[Floats], statistic: Callable[..., Any]) -> Floats:
    """[R] the statistic of every resample of the prompts.

    Raises:
        ConfigError: scipy is not installed.
    """
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


def reach_of(prompts: int) -> float:
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
