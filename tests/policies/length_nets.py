"""Length predictors of known behaviour, and a table model that shows hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foredraft.backends.table import TableModel, TableState
from foredraft.policies.length_net import LengthConfig, LengthNet, Past

HIDDEN_SIZE = 2
LAYERS = 3


def length_net(seed: int = 0, **config: Any) -> LengthNet:
    """Random weights, whose predictions differ between texts."""
    torch.manual_seed(seed)
    made = LengthNet(LengthConfig(**{"hidden_size": 6, "taps": (0, 2), "width": 5} | config))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(3)
    return made.eval().requires_grad_(False)


class ScriptedLength(LengthNet):
    """Predicts what a function of the last token before the root and its number of tokens says."""

    def __init__(self, predict: Callable[[int, int], float], **config: Any) -> None:
        given = {"hidden_size": HIDDEN_SIZE, "taps": (0, LAYERS), "width": 2} | config
        super().__init__(LengthConfig(**given))
        self.predict = predict
        self.asked: list[list[float]] = []

    def __deepcopy__(self, memo: Any) -> ScriptedLength:
        """Itself: tests look at what it was asked."""
        return self

    def forward(self, inputs: Tensor, past: Past | None = None) -> tuple[Tensor, Tensor | None]:
        rows: list[list[float]] = inputs.tolist()
        self.asked += rows
        return torch.tensor([self.predict(int(row[0]), int(row[1])) for row in rows]), None


class Tapped(TableModel):
    """A table model whose features are the token and its place in the text, twice."""

    def start_tapped(self, capacity: int, taps: Sequence[int]) -> TappedState:
        return TappedState(self, len(taps))


class TappedState(TableState):
    def __init__(self, model: TableModel, count: int) -> None:
        super().__init__(model)
        self._count, self._taken = count, 0

    def take_features(self) -> Tensor:
        new = list(enumerate(self.committed))[self._taken :]
        self._taken = len(self.committed)
        rows = [[float(token), float(place)] * self._count for place, token in new]
        return torch.tensor(rows).reshape(-1, HIDDEN_SIZE * self._count)


def tapped(table: np.ndarray) -> Tapped:
    """A table that shows features."""
    return Tapped(torch.from_numpy(table))
