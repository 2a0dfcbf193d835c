"""What each row of each step of an EAGLE head should predict.

Row j of step i predicts token j + 2 + i, of which the target's law stands at token j + 1 + i. There is
something to predict where the assistant wrote that token, and a loss if it is among those that are taught.
(The published code asks that of the target's own choice. In greedy text that is the token; where text was
sampled, asking for the choice would take logits of the whole vocabulary.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from foredraft.train.objective import Batch


@dataclass(frozen=True, slots=True)
class StepLabels:
    """The labels of one step's rows.

    Attributes:
        counts: bool [B, R], which rows have a loss.
        taught_rows: int64 [n], for each of these the row of the teacher's logits.
        asked: scalar, how many rows should predict something, tokens that are not taught included.
    """

    counts: Tensor
    taught_rows: Tensor
    asked: Tensor


class EagleLabels:
    """The labels of a batch.

    Args:
        batch: the texts.
        known: bool [V], the tokens that are taught.
    """

    def __init__(self, batch: Batch, known: Tensor) -> None:
        length = batch.token_ids.shape[1]
        inside = torch.arange(length, device=batch.lengths.device) < batch.lengths[:, None]
        self._asked = batch.labelled & inside
        self._asked[:, :2] = False  # no pair stands before them
        self._predicted = self._asked & known[batch.token_ids]
        self._place = self._predicted.flatten().cumsum(0).view_as(self._predicted) - 1

    def taught(self, final: Tensor) -> Tensor:
        """The final states [P, h], of [B, T, h], from which the target predicts what is taught."""
        return final[:, :-1][self._predicted[:, 1:]]

    def of_all_rows(self) -> StepLabels:
        """Labels of step 0: [B, T - 1] rows, the last of which predicts nothing."""
        counts, asked = self._first(self._predicted), self._first(self._asked)
        place = F.pad(self._place[:, 2:], (0, 1))
        return StepLabels(counts, place[counts], asked.sum())

    def some_rows(self, share: float) -> Tensor:
        """int64 [B, R]: rows to go on from, drawn among those that count, others where there are too few."""
        counts = self._first(self._predicted)
        most = int(counts.sum(1).max())
        wanted = max(1, min(math.ceil(share * most), counts.shape[1]))
        ranking = torch.rand(counts.shape, device=counts.device) + counts
        return ranking.topk(wanted, dim=1).indices.sort(dim=1).values

    def of_rows(self, rows: Tensor, step: int) -> StepLabels:
        """Labels of a later step for these rows [B, R]; a row whose first step did not count has none."""
        length = self._predicted.shape[1]
        target = rows + 2 + step
        here = (target < length) & self._first(self._predicted).gather(1, rows)
        target = target.clamp_max(length - 1)
        asked, counts = (here & of.gather(1, target) for of in (self._asked, self._predicted))
        return StepLabels(counts, self._place.gather(1, target)[counts], asked.sum())

    def _first(self, tokens: Tensor) -> Tensor:
        """bool [B, T] of tokens as [B, T - 1] of the rows that predict them in step 0."""
        return F.pad(tokens[:, 2:], (0, 1))
