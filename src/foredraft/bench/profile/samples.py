"""Repeated times of one thing, and ratios of two that took turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from foredraft.bench.intervals import Floats, named, ratio_interval


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of every repeat, in order."""

    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median."""
        return float(np.median(self.seconds))

    def as_dict(self) -> dict[str, Any]:
        """Median and quartiles in milliseconds, ready for JSON."""
        low, median, high = np.quantile(self.seconds, (0.25, 0.5, 0.75)) * 1000
        return {
            "median_ms": float(median),
            "q1_ms": float(low),
            "q3_ms": float(high),
            "repeats": len(self.seconds),
        }


def ratio(times: Times, base: Times, name: str) -> dict[str, float | None]:
    """Median / median of the base, with its 95 % interval; turn i of both is resampled together.

    Raises:
        ConfigError: scipy is not installed.
    """
    samples = tuple(np.array(t.seconds) for t in (times, base))
    return named(name, ratio_interval(samples, _log_ratio_of_medians))


def _log_ratio_of_medians(times: Floats, base: Floats, axis: int) -> Any:
    return np.log(np.median(times, axis=axis)) - np.log(np.median(base, axis=axis))


def rows_of(times: Mapping[str, Times], bases: Mapping[str, Times]) -> list[dict[str, Any]]:
    """A row for each name: its times, and its ratios to every base, as `vs_BASE`."""
    return [
        {"name": name, **own.as_dict()}
        | {
            k: v
            for base, other in bases.items()
            for k, v in ratio(own, other, f"vs_{base}").items()
        }
        for name, own in times.items()
    ]
