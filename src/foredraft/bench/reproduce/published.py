"""Tables as papers print them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foredraft.bench.tables import markdown_table


@dataclass(frozen=True, slots=True)
class Published:
    """One printed table.

    Attributes:
        title: what it shows and where it stands.
        columns: of the figures.
        rows: figures by method, in the order of the columns.
    """

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float, ...]]

    def figure(self, row: str, column: str) -> float | None:
        """What the paper prints for a method; None where it prints nothing."""
        values = self.rows.get(row)
        return None if values is None else values[self.columns.index(column)]

    def cells(self) -> Sequence[Sequence[str]]:
        """The table's cells, methods first."""
        return [[name, *(_cell(value) for value in values)] for name, values in self.rows.items()]

    def text(self) -> str:
        """Title and table, in Markdown."""
        return f"{self.title}:\n\n{markdown_table(('', *self.columns), self.cells())}"

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        rows = {name: list(values) for name, values in self.rows.items()}
        return {"title": self.title, "columns": list(self.columns), "rows": rows}


def _cell(value: float) -> str:
    """Counts as they are, other figures to two digits."""
    return str(value) if isinstance(value, int) else f"{value:.2f}"
