"""The tables of a report, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foredraft.bench.plan import PLAIN
from foredraft.bench.rows import Rows
from foredraft.bench.speedups import HF
from foredraft.bench.tables import (
    NOTHING,
    identical,
    markdown_table,
    marked,
    ms,
    number,
    percent,
    speedup,
)

SPEED = (
    "method",
    "tokens/s",
    "vs plain",
    "vs plain, median prompt",
    f"vs {HF}",
    "modelled tokens/s",
    "modelled vs plain",
    "identical",
)
DRAFTS = (
    "method",
    "tokens/pass",
    "tau",
    "tau in loops",
    "tau outside",
    "acceptance",
    "by depth",
)
WASTE = (
    "method",
    "target passes",
    "draft passes",
    "drafted in vain",
    "modelled tokens/s",
    "oracle: draft passes",
    "oracle: drafted in vain",
    "oracle: modelled tokens/s",
)
TIMES = (
    "method",
    "draft ms",
    "target ms",
    "verify ms",
    "other ms",
    "ms/token",
    "prefill ms",
    "TTFT ms",
    "request ms",
    "request vs plain",
    "spread",
)


def group_table(groups: Mapping[str, Rows]) -> str:
    """The speedup of every method over plain decoding, in all suites together and in each group."""
    cells = {
        (marked(row), group): speedup(row, "speedup_vs_plain")
        for group, rows in groups.items()
        for row in rows
    }
    methods = [method for method in dict.fromkeys(m for m, _ in cells) if method != PLAIN]
    body = [
        [method, *(cells.get((method, group), NOTHING) for group in groups)] for method in methods
    ]
    return markdown_table(["method", *groups], body)


def speed_table(pool: Rows) -> str:
    """Speeds, measured and modelled; how many prompts they are on, where that is not the same for all."""
    differ = len({row["prompts"] for row in pool}) > 1
    body = [
        [
            marked(row),
            *([str(row["prompts"])] if differ else []),
            number(row["tokens_per_s"], 1),
            speedup(row, "speedup_vs_plain"),
            speedup(row, "speedup_vs_plain_median"),
            speedup(row, "speedup_vs_hf"),
            number(row["modelled_tokens_per_s"], 1),
            _modelled(row),
            identical(row),
        ]
        for row in pool
    ]
    return markdown_table([SPEED[0], *(["prompts"] if differ else []), *SPEED[1:]], body)


def draft_table(pool: Rows) -> str:
    """What became of drafts."""
    drafting = [row for row in pool if row["drafted_tokens"]]
    if not drafting:
        return "No method drafted."
    body = [
        [
            marked(row),
            number(row["tokens_per_pass"], 2),
            number(row["mean_acceptance_length"], 2),
            number(row["mean_acceptance_length_in_loops"], 2),
            number(row["mean_acceptance_length_outside_loops"], 2),
            percent(row["acceptance_rate"]),
            " ".join(percent(share) for share in row["accepted_per_depth"]),
        ]
        for row in drafting
    ]
    return markdown_table(DRAFTS, body)


def waste_table(pool: Rows) -> str:
    """What an emitted token took, and would have taken with every draft as deep as it was accepted."""
    body = [
        [
            marked(row),
            per_token(row, "target_passes"),
            per_token(row, "draft_passes"),
            number(row["waste"], 2),
            number(row["modelled_tokens_per_s"], 1),
            per_token(row, "oracle_draft_passes"),
            number(row["oracle_waste"], 2),
            number(row["oracle_modelled_tokens_per_s"], 1),
        ]
        for row in pool
        if row["drafted_tokens"]
    ]
    return markdown_table(WASTE, body) if body else ""


def per_token(row: Mapping[str, Any], name: str) -> str:
    """A count, per emitted token."""
    return number(row[name] / max(row["completion_tokens"], 1), 2)


def time_table(pool: Rows) -> str:
    """Where the time of rounds and of whole requests goes."""
    stages = ("draft_ms", "target_ms", "verify_ms", "other_ms")
    body = [
        [
            marked(row),
            *(ms(row[key]) for key in (*stages, "tpot_ms", "prefill_ms", "ttft_ms", "request_ms")),
            speedup(row, "request_speedup_vs_plain"),
            percent(row["spread"]),
        ]
        for row in pool
    ]
    return markdown_table(TIMES, body)


def _modelled(row: Mapping[str, Any]) -> str:
    """In parentheses and without a mark for peers, of which passes alone are priced."""
    value = row["modelled_speedup_vs_plain"]
    if row["verify_ms"] is None and value is not None:
        return f"({number(value, 2)})"
    return speedup(row, "modelled_speedup_vs_plain")
