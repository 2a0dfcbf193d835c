"""Modelled time: counted rounds priced by a table of what passes cost (see docs/metrics.md)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from foredraft.costs import CostTable
from foredraft.errors import ConfigError
from foredraft.results import RoundRecord, Statistics

FLAT = "flat"
FLAT_PASS_S = 0.025
"""A pass of the flat table, which is about its unit of time alone: ratios do not depend on it."""
FLAT_LEVEL = 0.1
"""What a draft pass costs in passes of the target, by the flat table."""


def modelled_s(stats: Statistics, costs: CostTable, method: str) -> float | None:
    """Seconds of all rounds by the table; None where the table cannot price them.

    That is so for peers whose passes are not seen, and for draft models that the table does not know.
    """
    if not _can_price(stats, costs, method):
        return None
    return sum(costs.round_s(r, method) for r in stats.rounds)


def oracle_s(stats: Statistics, costs: CostTable, method: str) -> float | None:
    """`modelled_s` had every draft been as deep as it was accepted: the best length in hindsight."""
    if not _can_price(stats, costs, method):
        return None
    return sum(costs.round_s(_as_deep_as_accepted(r), method) for r in stats.rounds)


def modelled_tokens_per_s(stats: Statistics, costs: CostTable | None, method: str) -> float | None:
    """Emitted tokens / modelled seconds; None without a table or where it cannot price the rounds."""
    return _rate(stats, modelled_s(stats, costs, method) if costs else None)


def oracle_tokens_per_s(stats: Statistics, costs: CostTable | None, method: str) -> float | None:
    """Emitted tokens / oracle seconds; None as in `modelled_tokens_per_s`."""
    return _rate(stats, oracle_s(stats, costs, method) if costs else None)


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


def _can_price(stats: Statistics, costs: CostTable, method: str) -> bool:
    drafts_with_model = any(r.draft_rows for r in stats.rounds)
    return "target" in stats.stages and (method in costs.drafts or not drafts_with_model)


def _as_deep_as_accepted(record: RoundRecord) -> RoundRecord:
    depth = record.num_accepted
    return dataclasses.replace(
        record, widths=record.widths[: depth + 1], draft_rows=record.draft_rows[:depth]
    )


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
