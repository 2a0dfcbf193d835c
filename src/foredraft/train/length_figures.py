"""How good predicted lengths are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LengthFigures:
    """Of predictions 0 to k_max on rounds with labels."""

    mae: float
    """Mean absolute error."""
    under: float
    """Share of rounds whose prediction is below the label."""
    over: float
    """Share whose prediction is above it."""
    predicted: float
    """Mean prediction."""
    observed: float
    """Mean label."""
    rounds: int

    def as_dict(self) -> dict[str, Any]:
        """Rounded, for files."""
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items()}


def length_figures(predicted: Tensor, observed: Tensor) -> LengthFigures:
    """The figures of predictions [R] on labels [R]."""
    error = predicted.double() - observed.double()
    return LengthFigures(
        mae=float(error.abs().mean()),
        under=float((error < 0).double().mean()),
        over=float((error > 0).double().mean()),
        predicted=float(predicted.double().mean()),
        observed=float(observed.double().mean()),
        rounds=len(error),
    )


@dataclass(frozen=True, slots=True)
class Predicted:
    """What was observed where one length was predicted."""

    length: int
    observed: float
    """Mean label."""
    count: int


def calibration(predicted: Tensor, observed: Tensor) -> list[Predicted]:
    """By predicted length, those that were predicted at all."""
    found = []
    for length in torch.unique(predicted).tolist():
        mine = observed[predicted == length].double()
        found.append(Predicted(int(length), round(float(mine.mean()), 4), len(mine)))
    return found
