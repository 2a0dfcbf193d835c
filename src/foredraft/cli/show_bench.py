"""How the results of a benchmark look in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from foredraft.bench.plan import PLAIN
from foredraft.bench.rows import ALL, Rows, by_group
from foredraft.bench.tables import NOTHING, identical, marked


def show_results(document: Mapping[str, Any], folder: Path, console: Console) -> None:
    """The speedup of each method on each suite, the figures of all suites together, and every note."""
    groups = by_group(document)
    if groups[ALL]:
        console.print(_speedups(groups))
        console.print(_figures(groups[ALL]))
    for note in document["notes"]:
        console.print(f"note: {note}", style="dim", highlight=False, markup=False, soft_wrap=True)
    console.print(f"report: {folder / 'report.md'}", highlight=False, markup=False, soft_wrap=True)


def _speedups(groups: Mapping[str, Rows]) -> Table:
    """Suites, or categories where there is one suite, by method."""
    methods = [marked(row) for row in groups[ALL] if row["method"] != PLAIN]
    table = _table("speedup over plain decoding", methods)
    for group, rows in groups.items():
        cells = {marked(row): _number(row["speedup_vs_plain"], "x") for row in rows}
        table.add_row(group, *(cells.get(method, NOTHING) for method in methods))
    return table


def _figures(pool: Rows) -> Table:
    """How many prompts they are on stands there where that is not the same for all."""
    differ = len({row["prompts"] for row in pool}) > 1
    columns = ("tokens/s", "speedup", "95 % interval", "modelled", "tokens/pass", "identical")
    table = _table("all prompts", [*(("prompts",) if differ else ()), *columns])
    for row in pool:
        low, high = row["speedup_vs_plain_low"], row["speedup_vs_plain_high"]
        table.add_row(
            marked(row),
            *([str(row["prompts"])] if differ else []),
            _number(row["tokens_per_s"], digits=1),
            _number(row["speedup_vs_plain"], "x"),
            NOTHING if low is None or low == high else f"{low:.2f} to {high:.2f}",
            _modelled(row),
            _number(row["tokens_per_pass"]),
            identical(row),
        )
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    """A column of names that are never cut, and right-aligned figures."""
    table = Table(
        title=title,
        title_justify="left",
        box=None,
        pad_edge=False,
        collapse_padding=True,
        min_width=len(title),
    )
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    return table


def _modelled(row: Mapping[str, Any]) -> str:
    """In parentheses for peers, of which passes alone are priced."""
    value = _number(row["modelled_speedup_vs_plain"], "x")
    return f"({value})" if row["verify_ms"] is None and value != NOTHING else value


def _number(value: float | None, unit: str = "", digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}{unit}"
