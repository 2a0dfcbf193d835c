"""How a comparison of two runs looks in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from foredraft.bench.changes import Change
from foredraft.bench.compare import Comparison, Facts
from foredraft.bench.noise import ALPHA, FASTER, SLOWER
from foredraft.bench.rows import ALL


def render_comparison(comparison: Comparison) -> RenderableType:
    """Differing settings first, then what changed, what no clock decides, and notes."""
    return Group(*_parts(comparison))


def _parts(comparison: Comparison) -> Iterator[RenderableType]:
    first, second = comparison.names
    yield Text(f"{second} against {first}, on {comparison.prompts} common prompts\n")
    if comparison.settings:
        yield _settings_table(comparison)
    for changes in _families(comparison.changes):
        yield _changes_table(changes)
    yield _facts_table(comparison.facts)
    yield from (Text(f"note: {note}") for note in comparison.notes)


def _families(changes: Sequence[Change]) -> Iterator[list[Change]]:
    for family in (
        [change for change in changes if change.suite == ALL],
        [change for change in changes if change.suite != ALL],
    ):
        if family:
            yield family


def _settings_table(comparison: Comparison) -> Table:
    rows = [(d.name, str(d.first), str(d.second)) for d in comparison.settings]
    return _table("settings that differ", ("setting", *comparison.names), rows)


def _changes_table(changes: Sequence[Change]) -> Table:
    level = f"{100 * (1 - ALPHA):.0f} % interval"
    header = ("method", "relative to", "prompts", "ratio", level, "p", "verdict")
    rows = [_change_cells(change) for change in changes]
    if changes[0].suite == ALL:
        return _table("speed over all prompts", header, rows)
    named = [(change.suite, *row) for change, row in zip(changes, rows, strict=True)]
    return _table("speed by suite", ("suite", *header), named)


def _change_cells(change: Change) -> tuple[str | Text, ...]:
    found = change.estimate
    interval = "" if found.low is None else f"{found.low:.3f} to {found.high:.3f}"
    return (
        _names(change.method, change.other),
        change.reference or "(absolute)",
        str(found.prompts),
        f"{found.ratio:.3f}",
        interval,
        f"{change.p_value:.2g}",
        Text(change.verdict, style=_style(change.verdict)),
    )


def _facts_table(facts: Sequence[Facts]) -> Table:
    header = ("method", "same answers", "same rounds", "modelled tokens/s", "tau", "acceptance")
    rows = [
        (
            _names(fact.method, fact.other),
            f"{fact.equal_answers} of {fact.answers}",
            f"{fact.equal_rounds} of {fact.answers}",
            _both(fact.modelled_tokens_per_s, ".1f"),
            _both(fact.mean_acceptance_length, ".2f"),
            _both(fact.acceptance_rate, ".3f"),
        )
        for fact in facts
    ]
    return _table("what no clock decides (first → second run)", header, rows)


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for name in header:
        table.add_column(name)
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def _names(method: str, other: str) -> str:
    return method if method == other else f"{method} → {other}"


def _both(values: tuple[float | None, float | None], form: str) -> str:
    texts = ["–" if value is None else format(value, form) for value in values]
    return texts[0] if texts[0] == texts[1] else " → ".join(texts)


def _style(verdict: str) -> str:
    if verdict.endswith(FASTER):
        return "green"
    return "red" if verdict.endswith(SLOWER) else "dim"
