"""What the passes of a round cost, as a policy reads it while it drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.config import MAX_TREE_NODES
from foredraft.costs import CostTable, DraftCosts, PassCosts
from foredraft.protocols import ALONE, RoundOutcome

BUCKET = 64
"""Contexts are priced in steps of so many tokens: the price of a pass hardly changes from one to the next."""
ASSUMED_LEVEL = 0.1
"""Of a target pass, where nothing was measured."""
LEARNING_RATE = 0.05
"""Of live corrections: some 20 rounds count."""
FLAT_SHARE = 0.05
"""Passes whose rows add less than this share of one row's say little of what rows cost."""
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


class Correction:
    """How a machine's rounds differ from what was measured, learnt from all requests of a policy.

    Targets and drafts have a factor each: what a machine is busy with makes all passes of a model dearer
    alike. A third one is of what rows add to the target's pass, which a measurement beside other work gets
    wrong first.

    Requests in several threads may learn at the same time; a lost step is no harm.
    """

    def __init__(self) -> None:
        self.target = self.draft = self.rows = 1.0

    def learn_target(self, seconds: float, one_s: float, added_s: float) -> None:
        """A pass took so long, where `one_s` was measured for one row and `added_s` for the others."""
        priced_s = self.target * (one_s + self.rows * added_s)
        self.target = _corrected(self.target, seconds, priced_s)
        bounded_s = min(seconds, MOST_CORRECTION * priced_s)
        missing_s = bounded_s / self.target - one_s - self.rows * added_s
        step = LEARNING_RATE * missing_s * added_s / (added_s**2 + (FLAT_SHARE * one_s) ** 2)
        self.rows = _bounded(self.rows + step)

    def learn_draft(self, seconds: float, priced_s: float) -> None:
        """A draft took so long, where `priced_s` was measured for it."""
        self.draft = _corrected(self.draft, seconds, self.draft * priced_s)


class LivePrices:
    """Prices of one request, as rounds have corrected them.

    Args:
        prices: as measured before.
        correction: to go by and to teach; None keeps prices, so that equal texts get equal drafts.
    """

    def __init__(self, prices: Prices, correction: Correction | None = None) -> None:
        self._prices, self._teaches = prices, correction
        self._correction = correction or Correction()
        self._bucket, self._passes, self._levels = -1, [0.0], [0.0]
        self.company = ALONE

    def at(self, context: int) -> None:
        """Later prices are those behind so many cached tokens."""
        bucket = context // BUCKET
        if bucket != self._bucket:
            self._bucket, self._passes, self._levels = bucket, [0.0], [0.0]

    def pass_s(self, rows: int) -> float:
        """Seconds of a target pass of so many rows of ours, and those of the company."""
        one_s, added_s = self._parts(rows + self.company.rows)
        return self._correction.target * (one_s + self._correction.rows * added_s)

    def level_s(self, rows: int) -> float:
        """Seconds of a draft pass of so many rows; 0 where drafts cost none.

        In a company it is our share of a pass in which each has as many.
        """
        sharing = self.company.members + 1
        return self._correction.draft * self._measured_level_s(rows * sharing) / sharing

    def round_s(self, rows: int, draft_rows: Sequence[int], *, drafted: bool) -> float:
        """Seconds of a round of all: the target's pass, draft passes and each one's host work."""
        levels_s = sum(map(self.level_s, draft_rows))
        host_s = self._prices.host_s + (self._prices.draft_host_s if drafted else 0.0)
        return self.pass_s(rows) + (levels_s + host_s) * (self.company.members + 1)

    def learn(self, outcome: RoundOutcome) -> None:
        """Correct prices by what a round took; its context is the one that was set last.

        In a company, where each waits for the others, its times are not its own.
        """
        if self._teaches is None or self.company.members:
            return
        self._teaches.learn_target(outcome.target_s, *self._parts(len(outcome.tree)))
        if outcome.tree.draft_rows:
            levels_s = sum(map(self._measured_level_s, outcome.tree.draft_rows))
            self._teaches.learn_draft(outcome.draft_s, levels_s + self._prices.draft_host_s)

    def _parts(self, rows: int) -> tuple[float, float]:
        """Measured seconds of a pass of one row, and what the other rows add."""
        one_s = self._read(self._prices.target, self._passes, 1)
        return one_s, self._read(self._prices.target, self._passes, rows) - one_s

    def _measured_level_s(self, rows: int) -> float:
        if self._prices.level is None:
            return 0.0
        return self._read(self._prices.level, self._levels, rows)

    def _read(self, costs: PassCosts, known: list[float], rows: int) -> float:
        while len(known) <= min(rows, MAX_TREE_NODES):
            known.append(costs(len(known), self._bucket * BUCKET + BUCKET // 2))
        return known[min(rows, MAX_TREE_NODES)]


def _corrected(factor: float, seconds: float, priced_s: float) -> float:
    """The factor, nearer to what would have priced this round right."""
    ratio = _bounded(seconds / priced_s) if priced_s > 0 else 1.0
    moved: float = factor * ratio**LEARNING_RATE
    return _bounded(moved)


def _bounded(factor: float) -> float:
    return min(max(factor, 1 / MOST_CORRECTION), MOST_CORRECTION)
