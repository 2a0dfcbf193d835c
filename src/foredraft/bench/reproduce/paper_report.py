"""What one paper adds to the report of a reproduction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foredraft.bench.folder import Run
from foredraft.bench.reproduce.plan import ReproducePlan
from foredraft.bench.reproduce.published import Published

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PaperReport:
    """The parts of a report that differ from paper to paper.

    Attributes:
        citation: of the paper, with what it measured on.
        tables: as it prints them.
        part: the plan, a run, its folder and its temperature -> `rows` and `notes`, and whatever else the
            paper's document is made of.
        extras: all parts -> what `results.json` holds beside the common entries.
        sections: the document and the folder of the reproduction -> the report between its head and the
            published tables.
        notes: the document -> what a reader must know beside the figures.
        how_to_read: what columns mean.
    """

    citation: str
    tables: Sequence[Published]
    part: Callable[[ReproducePlan, Run, Path, float], dict[str, Any]]
    extras: Callable[[Sequence[Document]], dict[str, Any]]
    sections: Callable[[Document, Path], Iterator[str]]
    notes: Callable[[Document], Iterator[str]]
    how_to_read: str
