"""How the results of a benchmark look in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ALL = "all"


def show_results(document: Mapping[str, Any], folder: Path, console: Console) -> None:
    """The speedup of each method on each suite, the figures of all suites together, and every note."""
    rows = document["rows"]
    if rows:
        console.print(_speedups(rows))
        console.print(_figures([row for row in rows if row["suite"] == ALL]))
    for note in document["notes"]:
        console.print(f"note: {note}", style="dim", highlight=False, soft_wrap=True)
    console.print(f"report: {folder / 'report.md'}", highlight=False, soft_wrap=True)


def _speedups(rows: Sequence[Mapping[str, Any]]) -> Table:
    suites = list(dict.fromkeys(row["suite"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    table = Table(title="speedup over plain decoding", title_justify="left", box=None)
    table.add_column("")
    for suite in suites:
        table.add_column(suite, justify="right")
    cell = {(row["suite"], row["method"]): _number(row["speedup_vs_plain"], "x") for row in rows}
    for method in methods:
        table.add_row(method, *(cell.get((suite, method), "-") for suite in suites))
    return table


def _figures(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="all prompts", title_justify="left", box=None)
    columns = ("", "tokens/s", "speedup", "95 % interval", "modelled", "tokens/pass", "identical")
    for name in columns:
        table.add_column(name, justify="right" if name else "left")
    for row in rows:
        low, high = row["speedup_vs_plain_low"], row["speedup_vs_plain_high"]
        table.add_row(
            row["method"],
            _number(row["tokens_per_s"], digits=1),
            _number(row["speedup_vs_plain"], "x"),
            "-" if low is None else f"{low:.2f} to {high:.2f}",
            _number(row["modelled_speedup_vs_plain"], "x"),
            _number(row["tokens_per_pass"]),
            _judgement(row),
        )
    return table


def _judgement(row: Mapping[str, Any]) -> str:
    """`yes`, or how many of the answers that were judged had a tie or a bug."""
    counts = row["identical_counts"]
    judged = sum(counts.values()) - counts["n/a"]
    kind: str = row["identical"]
    return f"{kind} ({counts[kind]} of {judged})" if kind in ("tie", "bug") else kind


def _number(value: float | None, unit: str = "", digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"
