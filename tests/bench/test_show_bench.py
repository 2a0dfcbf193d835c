"""What the terminal shows of a benchmark."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

from rich.console import Console

from foredraft.bench.folder import Run
from foredraft.bench.modelled import pricing_of
from foredraft.bench.plan import PLAIN
from foredraft.bench.rows import results_document
from foredraft.cli.show_bench import show_results
from tests.bench.synthetic_runs import whole_run

METHODS = (PLAIN, "ngram", "hf", "llama.cpp")


def shown(run: Run, width: int = 120) -> list[str]:
    """The lines of a run's results."""
    console = Console(file=io.StringIO(), width=width)
    show_results(results_document(run, pricing_of(run, None)), Path("out"), console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.splitlines()


def line_of(lines: list[str], name: str) -> list[str]:
    """The cells of the last line of figures that begins with a name."""
    found = [line.split() for line in lines if line.split()[:1] == [name]]
    return [cells for cells in found if cells[-1] != "prompts"][-1]


def test_suites_or_else_categories_stand_below_one_another() -> None:
    lines = shown(whole_run(METHODS, ("chat", "code"), prompts=2))
    assert [len(line_of(lines, name)) for name in ("all", "chat", "code")] == [4, 4, 4]
    lines = shown(whole_run(METHODS, ("chat",), prompts=2))
    assert [len(line_of(lines, f"chat/{name}")) for name in ("short", "long")] == [4, 4]


def test_what_peers_leave_out_is_marked() -> None:
    lines = shown(whole_run(METHODS, ("chat",), prompts=2))
    assert line_of(lines, "ngram")[6].endswith("x")
    assert line_of(lines, "hf")[6].startswith("(")
    assert line_of(lines, "llama.cpp")[6] == "–"


def test_prompts_are_counted_where_they_are_not_the_same() -> None:
    run = whole_run(METHODS, ("chat", "code"), prompts=2)
    assert not any("prompts " in line for line in shown(run) if "tokens/s" in line)
    first, *others = run.records
    without = tuple(answer for answer in first.answers if answer.method != "hf")
    records = (dataclasses.replace(first, answers=without), *others)
    lines = shown(dataclasses.replace(run, records=records))
    assert [line_of(lines, name)[1] for name in ("ngram", "hf")] == ["4", "3"]


def test_notes_are_told_as_they_are_and_names_are_not_cut() -> None:
    """Brackets are no markup, and 80 columns hold a usual run."""
    run = whole_run(METHODS, ("chat",), prompts=2)
    lines = shown(dataclasses.replace(run, plan=run.plan | {"notes": ["see [red]this[/red]"]}), 80)
    assert "note: see [red]this[/red]" in lines
    assert line_of(lines, PLAIN)[0] == PLAIN
    assert not any("…" in line for line in lines)


def test_a_lossy_method_is_marked() -> None:
    run = whole_run((PLAIN, "mcsd"), ("chat", "code"), prompts=2)
    run.plan["lossy"] = ["mcsd"]
    assert sum("(lossless: no)" in line for line in shown(run)) == 2
