"""How good predictions of acceptance are: calibration, and how well they tell tokens apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

BINS = 10


@dataclass(frozen=True, slots=True)
class Bin:
    """Predictions of a tenth of 0 .. 1."""

    predicted: float
    """Their mean."""
    observed: float
    """Mean label of their rows."""
    count: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Of predictions on rows with labels in 0 .. 1."""

    ece: float
    """Expected calibration error: |predicted - observed| of ten bins, by their counts."""
    brier: float
    """Mean squared difference to the label."""
    auc: float | None
    """How often an accepted token has a higher prediction than a rejected one, ties one half; a label between
    0 and 1 counts as that much of an accepted token. None where only one of the two is there."""
    base_rate: float
    """Mean label."""
    rows: int

    def as_dict(self) -> dict[str, Any]:
        """Rounded, for files."""
        return {k: round(v, 5) if isinstance(v, float) else v for k, v in asdict(self).items()}


def figures(predicted: Tensor, labels: Tensor) -> Figures:
    """The figures of predictions [R] on labels [R]."""
    predicted, labels = predicted.double(), labels.double()
    bins = reliability(predicted, labels)
    ece = sum(part.count * abs(part.predicted - part.observed) for part in bins) / len(labels)
    return Figures(
        ece=ece,
        brier=float((predicted - labels).square().mean()),
        auc=auc(predicted, labels),
        base_rate=float(labels.mean()),
        rows=len(labels),
    )


def reliability(predicted: Tensor, labels: Tensor, bins: int = BINS) -> Sequence[Bin]:
    """The bins that hold anything, from low to high predictions."""
    place = (predicted * bins).long().clamp(0, bins - 1)
    found = []
    for index in range(bins):
        mine = place == index
        if bool(mine.any()):
            means = float(predicted[mine].mean()), float(labels[mine].mean())
            found.append(Bin(*means, int(mine.sum())))
    return found


def auc(predicted: Tensor, labels: Tensor) -> float | None:
    """Area under the ROC curve, see `Figures.auc`."""
    accepted, rejected = float(labels.sum()), float((1 - labels).sum())
    if accepted == 0 or rejected == 0:
        return None
    _, place = torch.unique(predicted, return_inverse=True)
    count = int(place.max()) + 1
    high = labels.new_zeros(count).index_add_(0, place, labels)
    low = labels.new_zeros(count).index_add_(0, place, 1 - labels)
    below = low.cumsum(0) - low
    return float((high * (below + low / 2)).sum() / (accepted * rejected))
