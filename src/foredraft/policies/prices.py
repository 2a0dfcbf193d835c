"""What the passes of a round cost, as a policy reads it while it drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.config import MAX_TREE_NODES
from foredraft.costs import CostTable, DraftCosts, PassCosts
from foredraft.protocols import RoundOutcome

BUCKET = 64
"""Contexts are priced in steps of so many tokens: the price of a pass hardly changes from one to the next."""
ASSUMED_LEVEL = 0.1
"""Of a target pass, where nothing was measured."""
LEARNING_RATE = 0.05
"""Of live corrections: some 20 rounds count."""
MOST_CORRECTION = 3.0
"""A price is never taken for more than so many times dearer or cheaper than it was measured."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds of the parts of a round.

    Attributes:
        target: passes of the target.
        level: passes of the draft model or head; None where drafts cost none.
        host_s: of a round beside its passes, with or without a draft.
        draft_host_s: what a draft adds to that.
    """

    target: PassCosts
    level: PassCosts | None = None
    host_s: float = 0.0
    draft_host_s: float = 0.0

    @classmethod
    def of(cls, table: CostTable, method: str) -> Prices:
        """Those of a method in a table."""
        draft = table.draft_costs(method) or DraftCosts(0.0)
        return cls(table.target, draft.passes, table.host_s, draft.host_s)

    @classmethod
    def assumed(cls, *, has_model: bool) -> Prices:
        """Those of a large GPU: passes cost the same whatever their width, a level a tenth of one."""
        level = PassCosts((1,), (0,), ((ASSUMED_LEVEL,),)) if has_model else None
        return cls(PassCosts((1,), (0,), ((1.0,),)), level)


class LivePrices:
    """Prices of one request, corrected by how long its own rounds take.

    Targets and drafts have one factor each: what the machine is busy with makes all passes of a model dearer
    alike, and the shape of the table stays.

    Args:
        prices: as measured before.
        refine: correct them; False keeps them, so that equal texts get equal drafts.
    """

    def __init__(self, prices: Prices, *, refine: bool) -> None:
        self._prices, self._refine = prices, refine
        self._target = self._draft = 1.0
        self._bucket, self._passes, self._levels = -1, [0.0], [0.0]

    def at(self, context: int) -> None:
        """Later prices are those behind so many cached tokens."""
        bucket = context // BUCKET
        if bucket != self._bucket:
            self._bucket, self._passes, self._levels = bucket, [0.0], [0.0]

    def pass_s(self, rows: int) -> float:
        """Seconds of a target pass of so many rows."""
        return self._target * self._read(self._prices.target, self._passes, rows)

    def level_s(self, rows: int) -> float:
        """Seconds of a draft pass of so many rows; 0 where drafts cost none."""
        if self._prices.level is None:
            return 0.0
        return self._draft * self._read(self._prices.level, self._levels, rows)

    def round_s(self, rows: int, draft_rows: Sequence[int], *, drafted: bool) -> float:
        """Seconds of a round: the target's pass, draft passes and the host."""
        levels_s = sum(map(self.level_s, draft_rows))
        host_s = self._prices.host_s + (self._prices.draft_host_s if drafted else 0.0)
        return self.pass_s(rows) + levels_s + host_s

    def learn(self, outcome: RoundOutcome) -> None:
        """Correct prices by what a round took; its context is the one that was set last."""
        if not self._refine:
            return
        rows, draft_rows = len(outcome.tree), outcome.tree.draft_rows
        self._target = _corrected(self._target, outcome.target_s, self.pass_s(rows))
        if draft_rows:
            priced_s = sum(map(self.level_s, draft_rows)) + self._prices.draft_host_s
            self._draft = _corrected(self._draft, outcome.draft_s, priced_s)

    def _read(self, costs: PassCosts, known: list[float], rows: int) -> float:
        while len(known) <= min(rows, MAX_TREE_NODES):
            known.append(costs(len(known), self._bucket * BUCKET + BUCKET // 2))
        return known[min(rows, MAX_TREE_NODES)]


def _corrected(factor: float, seconds: float, priced_s: float) -> float:
    """The factor, nearer to what would have priced this round right."""
    ratio = seconds / priced_s if priced_s > 0 else 1.0
    ratio = min(max(ratio, 1 / MOST_CORRECTION), MOST_CORRECTION)
    moved: float = factor * ratio**LEARNING_RATE
    return min(max(moved, 1 / MOST_CORRECTION), MOST_CORRECTION)
