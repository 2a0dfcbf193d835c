"""Writes what a reproduction shows, beside what was published: `results.json` and `report.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foredraft.bench.folder import Run, RunFolder
from foredraft.bench.reproduce.adaeagle.report import ADAEAGLE_REPORT
from foredraft.bench.reproduce.improved_mcsd.report import IMPROVED_MCSD_REPORT
from foredraft.bench.reproduce.paper_report import Document, PaperReport
from foredraft.bench.reproduce.plan import ADAEAGLE, IMPROVED_MCSD, ReproducePlan
from foredraft.errors import ConfigError
from foredraft.files import write_json, write_text

RESULTS, REPORT = "results.json", "report.md"
REPORTS: Mapping[str, PaperReport] = {
    IMPROVED_MCSD: IMPROVED_MCSD_REPORT,
    ADAEAGLE: ADAEAGLE_REPORT,
}


def write_reproduction(plan: ReproducePlan, path: Path) -> dict[str, Any]:
    """Make `results.json` and `report.md` from the runs that have a finished prompt.

    Returns:
        What `results.json` holds.

    Raises:
        ConfigError: no prompt is finished yet.
    """
    paper = REPORTS[plan.paper]
    runs = [(t, path / name, _finished(path / name)) for t, name in plan.folders.items()]
    parts = [paper.part(plan, run, at, t) for t, at, run in runs if run is not None]
    if not parts:
        raise ConfigError(f"{path} has no finished prompt yet; the same command goes on")
    document = {
        "provenance": next(run.plan["provenance"] for _, _, run in runs if run is not None),
        "plan": plan.as_dict(),
        "paper": {"citation": paper.citation, "tables": [t.as_dict() for t in paper.tables]},
        "rows": [row for part in parts for row in part["rows"]],
        **paper.extras(parts),
        "notes": [*plan.notes, *dict.fromkeys(note for part in parts for note in part["notes"])],
    }
    write_json(path / RESULTS, document)
    write_text(path / REPORT, report_text(document, path))
    return document


def _finished(folder: Path) -> Run | None:
    """The run in a folder; None before its first prompt is finished."""
    if not folder.exists() or RunFolder(folder).read_plan() is None:
        return None
    run = RunFolder(folder).read()
    return run if run.methods else None


def report_text(document: Document, path: Path) -> str:
    """The whole report in Markdown.

    Args:
        document: what `results.json` holds.
        path: the folder of the reproduction.
    """
    paper = REPORTS[document["plan"]["paper"]]
    sections: Sequence[str] = (
        f"# Reproduction of {document['plan']['paper']}: {document['plan']['model']}",
        f"```\n{document['provenance']['command']}\n```",
        *paper.sections(document, path),
        "## As published",
        paper.citation + ".",
        *(table.text() for table in paper.tables),
        "## Notes",
        "\n".join(f"- {note}" for note in paper.notes(document)) or "None.",
        "## How to read this",
        paper.how_to_read,
    )
    return "\n\n".join(section.strip() for section in sections if section) + "\n"
