"""What stopping by a model gains over the best depth that never changes.

Thresholds and depths are chosen on other prompts than those that the gain is reported on, see `split`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foredraft.train.decision_objective import Chains, RoundCosts, expected, tokens_per_pass_time
from foredraft.train.metrics import line_of

RESAMPLES = 10_000
CONFIDENCE = 0.95
BATCH = 500
"""Resamples at a time: their table of draws stays small."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Gain:
    """Tokens in the time of a target pass, on rounds that nothing was chosen by.

    Attributes:
        whole: of drafts of the full depth.
        fixed_depth: the depth, from 1 to the full one, that was best on the prompts that chose.
        fixed: of drafts of that depth.
        model: of drafts that the model ends.
        ratio: model / fixed.
        interval: of the ratio: 95 %, by bootstrap over whole prompts; None of fewer than two prompts.
        prompts: that it is reported on.
    """

    whole: float
    fixed_depth: int
    fixed: float
    model: float
    ratio: float
    interval: tuple[float, float] | None
    prompts: int

    def as_dict(self) -> dict[str, Any]:
        """Rounded, for files."""
        return line_of(asdict(self))


@dataclass(frozen=True, slots=True)
class GainLine:
    """The last line of `metrics.jsonl` of a run that knows costs."""

    kind: str
    step: int
    epoch: int
    """Whose weights were kept."""
    gain: Gain

    def as_dict(self) -> dict[str, Any]:
        """The line."""
        gain = self.gain.as_dict()
        return {"kind": self.kind, "step": self.step, "epoch": self.epoch, **gain}


def fixed_stay(chains: Chains, depth: int) -> Tensor:
    """The decisions [C, D] under which every draft has `depth` levels, or as many as were drafted."""
    stay = torch.zeros_like(chains.accept)
    stay[:, : depth - 1] = 1
    return stay


def best_depth(chains: Chains, costs: RoundCosts) -> int:
    """The depth with the most tokens in the time of a pass; the smallest of equals."""
    depths = range(1, chains.accept.shape[1] + 1)
    return max(
        depths, key=lambda d: float(tokens_per_pass_time(fixed_stay(chains, d), chains, costs))
    )


def gain_of(stay: Tensor, chains: Chains, costs: RoundCosts, fixed_depth: int, seed: int) -> Gain:
    """What decisions are worth beside a depth.

    Args:
        stay: [C, D] of the model, 0 or 1.
        chains: the rounds to report on, at least one.
        costs: of them.
        fixed_depth: chosen on others.
        seed: of the bootstrap.
    """
    fixed_stays = fixed_stay(chains, fixed_depth)
    whole = float(tokens_per_pass_time(torch.ones_like(stay), chains, costs))
    model, fixed = (_by_prompt(s, chains, costs) for s in (stay, fixed_stays))
    rates = [float(sums[:, 0].sum() / sums[:, 1].sum()) for sums in (model, fixed)]
    return Gain(
        whole=whole,
        fixed_depth=fixed_depth,
        fixed=rates[1],
        model=rates[0],
        ratio=rates[0] / rates[1],
        interval=ratio_interval(model, fixed, seed),
        prompts=len(model),
    )


def ratio_interval(
    model: Array, fixed: Array, seed: int, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """The interval of the ratio of two rates: percentiles over resampled prompts, the same for both.

    Args:
        model: [P, 2] tokens and time of each prompt.
        fixed: of the same prompts.
        seed: of the draws.
        resamples: how many.

    Returns:
        None of fewer than two prompts.
    """
    count = len(model)
    if count < 2:
        return None
    random = np.random.default_rng(seed)
    ratios: list[Array] = []
    for done in range(0, resamples, BATCH):
        size = (min(BATCH, resamples - done), count)
        drawn = random.integers(count, size=size)
        (m_tokens, m_time), (f_tokens, f_time) = (
            _columns(sums[drawn].sum(1)) for sums in (model, fixed)
        )
        ratios.append((m_tokens / m_time) / (f_tokens / f_time))
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(ratios), (outside, 1 - outside))
    return float(low), float(high)


def _by_prompt(stay: Tensor, chains: Chains, costs: RoundCosts) -> Array:
    """[P, 2] sums of tokens and of time of each prompt's rounds."""
    each = torch.stack(expected(stay, chains, costs), 1).double().cpu()
    _, place = torch.unique(chains.prompts.cpu(), return_inverse=True)
    sums = each.new_zeros(int(place.max()) + 1, 2).index_add_(0, place, each)
    found: Array = sums.numpy()
    return found


def _columns(sums: Array) -> Sequence[Array]:
    return sums[:, 0], sums[:, 1]
