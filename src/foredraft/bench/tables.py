"""Cells, and tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NOTHING = "–"
FASTER, SLOWER, NO_DIFFERENCE, UNKNOWN = "▲", "▼", "≈", "?"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is names and whose others are figures."""
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def speedup(row: Mapping[str, Any], name: str) -> str:
    """A speedup with its interval and the mark of what it shows: faster, slower or no difference."""
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    if value is None:
        return NOTHING
    if low is None:
        return f"{value:.2f} {UNKNOWN}"
    if low == high == 1:  # the baseline itself
        return "1"
    return f"{value:.2f} [{low:.2f}, {high:.2f}] {_mark(low, high)}"


def marked(row: Mapping[str, Any]) -> str:
    """The method, with a mark that goes wherever a lossy one's figures go."""
    return f"{row['method']} (lossless: no)" if row["lossless"] == "no" else str(row["method"])


def identical(row: Mapping[str, Any]) -> str:
    """What became of the answers: `yes`, `n/a`, or how many of those that were judged differ."""
    counts = row["identical_counts"]
    judged = sum(counts.values()) - counts["n/a"]
    differing = [
        f"{counts[kind]} {kind}{'s' if counts[kind] > 1 else ''}"
        for kind in ("bug", "tie")
        if counts[kind]
    ]
    return f"{', '.join(differing)} of {judged}" if differing else str(row["identical"])


def number(value: float | None, digits: int) -> str:
    """A figure to so many digits behind the point."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def ms(value: float | None) -> str:
    """Milliseconds to three digits that count."""
    if value is None:
        return NOTHING
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def percent(value: float | None) -> str:
    """A share in whole per cent."""
    return NOTHING if value is None else f"{100 * value:.0f} %"


def _mark(low: float, high: float) -> str:
    if low > 1:
        return FASTER
    return SLOWER if high < 1 else NO_DIFFERENCE


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
