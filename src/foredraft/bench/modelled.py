"""Modelled time: counted rounds priced by a table of what passes cost (see docs/metrics.md)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foredraft.bench.folder import COSTS, Run
from foredraft.bench.records import AnswerRecord
from foredraft.costs import CostTable
from foredraft.errors import ConfigError
from foredraft.results import RoundRecord, Statistics

FLAT = "flat"
FLAT_PASS_S = 0.025
"""A pass of the flat table, which is about its unit of time alone: ratios do not depend on it."""
FLAT_LEVEL = 0.1
"""What a draft pass costs in passes of the target, by the flat table."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """A cost table and where it is from: figures of one table compare, those of two tables do not."""

    table: CostTable
    source: str
    """The file of the run's own table, or what was given in its place."""

    def as_dict(self) -> dict[str, Any]:
        """Where it is from and how it was measured, ready for JSON."""
        return {"source": self.source, "provenance": dict(self.table.provenance)}


def pricing_of(run: Run, costs: str | None) -> Pricing | None:
    """What prices a run's rounds: the table named by `costs`, else the run's own; None without either.

    Raises:
        ConfigError: as in `read_costs`.
    """
    if costs is not None:
        return Pricing(read_costs(costs, run.methods), costs)
    return Pricing(run.costs, COSTS) if run.costs is not None else None


def is_peer(stats: Statistics) -> bool:
    """Whether another tool made these rounds: what it verifies with is no stage that is seen."""
    return "verify" not in stats.stages


def has_price(stats: Statistics, costs: CostTable, method: str) -> bool:
    """Whether the table can price all these rounds.

    It cannot where passes are not seen, and where draft models made passes that it does not know.
    """
    return modelled_s(stats, costs, method) is not None


def modelled_s(stats: Statistics, costs: CostTable, method: str) -> float | None:
    """Seconds of all rounds by the table; None where it cannot price them.

    Of peers only passes are priced: what their hosts do was not measured.
    """
    if "target" not in stats.stages:
        return None
    price = costs.passes_s if is_peer(stats) else costs.round_s
    return _sum(price(r, method) for r in stats.rounds)


def oracle_rounds(stats: Statistics) -> Statistics:
    """The rounds had every draft been as deep as it was accepted, and none been made where nothing was.

    Their times stay those that were measured.
    """
    return dataclasses.replace(stats, rounds=tuple(map(_as_deep_as_accepted, stats.rounds)))


def oracle_s(stats: Statistics, costs: CostTable, method: str) -> float | None:
    """`modelled_s` of `oracle_rounds`; where these have no draft, drafting has no host work either."""
    if not has_price(stats, costs, method):
        return None
    price = costs.passes_s if is_peer(stats) else costs.round_s
    return _sum(price(r, method if r.num_accepted else None) for r in oracle_rounds(stats).rounds)


def modelled_tokens_per_s(stats: Statistics, costs: CostTable | None, method: str) -> float | None:
    """Emitted tokens / modelled seconds; None without a table or where it cannot price the rounds."""
    return _rate(stats, modelled_s(stats, costs, method) if costs else None)


def oracle_tokens_per_s(stats: Statistics, costs: CostTable | None, method: str) -> float | None:
    """Emitted tokens / oracle seconds; None as in `modelled_tokens_per_s`."""
    return _rate(stats, oracle_s(stats, costs, method) if costs else None)


def modelled_totals(costs: CostTable) -> Callable[[Sequence[AnswerRecord]], tuple[float, float]]:
    """Totals for `speedups.pair`: a prompt's emitted tokens and modelled seconds, 0 where it has no price."""

    def totals(answers: Sequence[AnswerRecord]) -> tuple[float, float]:
        stats = Statistics.pool(answer.stats for answer in answers)
        return float(stats.completion_tokens), modelled_s(stats, costs, answers[0].method) or 0.0

    return totals


def oracle_totals(costs: CostTable) -> Callable[[Sequence[AnswerRecord]], tuple[float, float]]:
    """As `modelled_totals`, with the oracle's seconds."""

    def totals(answers: Sequence[AnswerRecord]) -> tuple[float, float]:
        stats = Statistics.pool(answer.stats for answer in answers)
        return float(stats.completion_tokens), oracle_s(stats, costs, answers[0].method) or 0.0

    return totals


def read_costs(text: str, methods: Sequence[str]) -> CostTable:
    """A cost table named on the command line.

    Args:
        text: the path of a table that `foredraft calibrate` wrote, or `flat[:level=0.1]`: every pass
            costs the same, whatever its width and context, and a draft pass `level` of it.
        methods: whose draft passes the flat table prices.

    Raises:
        ConfigError: there is no such file, it holds no cost table, or the level cannot be read.
    """
    name, _, option = text.partition(":")
    if name == FLAT:
        level = _read_level(text, option)
        return CostTable.flat(FLAT_PASS_S, level * FLAT_PASS_S, methods)
    try:
        return CostTable.from_dict(json.loads(Path(text).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"costs {text!r} is no readable cost table ({error}); give {FLAT}, {FLAT}:level=0.1, or a "
            "file that `foredraft calibrate --out FILE` wrote"
        ) from None


def _as_deep_as_accepted(record: RoundRecord) -> RoundRecord:
    depth = record.num_accepted
    return dataclasses.replace(
        record, widths=record.widths[: depth + 1], draft_rows=record.draft_rows[:depth]
    )


def _sum(prices: Iterable[float | None]) -> float | None:
    """None where one of them is."""
    total = 0.0
    for price in prices:
        if price is None:
            return None
        total += price
    return total


def _rate(stats: Statistics, seconds: float | None) -> float | None:
    return stats.completion_tokens / seconds if seconds else None


def _read_level(text: str, option: str) -> float:
    if not option:
        return FLAT_LEVEL
    name, _, value = option.partition("=")
    try:
        level = float(value)
    except ValueError:
        level = 0.0
    if name != "level" or not 0 < level < float("inf"):
        raise ConfigError(
            f"costs {text!r} cannot be read; write {FLAT}:level=0.1, where the level is what a draft pass "
            "costs in passes of the target, over 0"
        )
    return level
