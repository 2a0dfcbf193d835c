"""How likely a drafter thinks each path of its own tree: sums of logs, worked out when they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.tree import TreeBuilder


@dataclass(frozen=True, slots=True)
class _Level:
    """Children of one level that nobody has asked about yet."""

    logits: Tensor
    """[F, C] they were drawn from."""
    drawn: list[list[int]]
    """[F][..] columns."""
    first: int
    """The first child's node."""


class PathScores:
    """The log-probability of the path from the root to each node of a tree that is being grown."""

    def __init__(self, builder: TreeBuilder) -> None:
        self._builder = builder
        self._scores = [0.0] * builder.num_roots
        self._unread: list[_Level] = []

    def add(self, logits: Tensor, drawn: list[list[int]], first: int) -> None:
        """Note a level.

        Args:
            logits: [F, C] after the nodes that were drawn from; their softmax is what is believed there.
            drawn: the columns of each node's children, in the order in which they became nodes.
            first: node of the first of these children.
        """
        self._unread.append(_Level(logits, drawn, first))

    def of(self, nodes: Sequence[int]) -> list[float]:
        """The score of each node; 0 for roots, and never more than its parent's."""
        for level in self._unread:
            self._read(level)
        self._unread.clear()
        return [self._scores[node] for node in nodes]

    def _read(self, level: _Level) -> None:
        rows = [row for row, columns in enumerate(level.drawn) for _ in columns]
        if not rows:
            return
        logits, columns = level.logits, [c for row in level.drawn for c in row]
        place = torch.tensor([rows, columns], device=logits.device)
        chosen = logits[place[0], place[1]].float() - logits.float().logsumexp(-1)[place[0]]
        assert level.first == len(self._scores)
        for node, log_q in enumerate(chosen.tolist(), level.first):
            above = self._scores[self._builder.parents[node]]
            self._scores.append(above + min(log_q, 0.0))  # rounding may give a little more than 0
