"""Decision models of known behaviour, and a table model that shows hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foredraft.backends.table import TableModel, TableState
from foredraft.policies.decision_net import DecisionConfig, DecisionNet, sizes_for
from foredraft.policies.decision_rules import Kind

HIDDEN_SIZE = 4


def net(
    kind: Kind = "hard", seed: int = 0, hidden_size: int = HIDDEN_SIZE, **config: Any
) -> DecisionNet:
    """Random weights, whose predictions differ between rows."""
    torch.manual_seed(seed)
    made = DecisionNet(DecisionConfig(kind, sizes_for(kind, hidden_size), **config))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(3)
    return made.eval().requires_grad_(False)


class ScriptedNet(DecisionNet):
    """Predicts what a function of one row's features says."""

    def __init__(
        self, predict: Callable[[list[float]], float], kind: Kind = "soft", **config: Any
    ) -> None:
        super().__init__(DecisionConfig(kind, sizes_for(kind, HIDDEN_SIZE), **config))
        self.predict = predict
        self.asked: list[list[list[float]]] = []

    def __deepcopy__(self, memo: Any) -> ScriptedNet:
        """Itself, without weights: tests look at what it was asked."""
        return self

    def forward(self, features: Tensor) -> Tensor:
        rows: list[list[float]] = features.tolist()
        self.asked.append(rows)
        return torch.tensor([self.predict(row) for row in rows])


class Showing(TableModel):
    """Its hidden state is (last token, length, 0, 1): what a test wants to know of a row."""

    hidden_size = HIDDEN_SIZE

    def start_showing(self, capacity: int) -> ShowingTableState:
        return ShowingTableState(self)


class ShowingTableState(TableState):
    last: Tensor | None = None
    num_passes = 0

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        first = len(self._pending)
        logits = super().score(token_ids, parents)
        rows = [
            [float(token), float(len(self.committed) + len(self._path(first + i))), 0.0, 1.0]
            for i, token in enumerate(token_ids)
        ]
        self.last = torch.tensor(rows)
        self.num_passes += 1
        return logits

    def last_hidden(self) -> Tensor | None:
        return self.last


def showing(table: np.ndarray) -> Showing:
    """A table that shows hidden states."""
    return Showing(torch.from_numpy(table))
