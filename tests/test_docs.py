"""The pages: links lead somewhere, the site builds without a warning, the papers' figures are measured."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from foredraft.bench.reproduce.adaeagle import published as adaeagle
from foredraft.bench.reproduce.improved_mcsd import published as improved

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("examples/**/*.md")])
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)(?:#[^)\s]*)?\)")
NUMBER = re.compile(r"(?<![\w.:=(,-])\d+\.\d+(?![\w.])")


def links(page: Path) -> Iterator[str]:
    """The paths that a page links to; code shows links of others."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    yield from LINK.findall(text)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    broken = [link for link in links(page) if not (page.parent / link).exists()]
    assert not broken


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Every page is in the navigation; every link and every anchor on it is there."""
    if importlib.util.find_spec("material") is None:
        pytest.skip("the extra [docs] is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in (ROOT / "docs").glob("*.md"):
        assert (tmp_path / page.with_suffix(".html").name).is_file()
    assert (tmp_path / "benchmarks" / "improved-mcsd" / "report.html").is_file()


def test_every_page_is_listed() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert all(f" {page.name}\n" in listed for page in (ROOT / "docs").glob("*.md"))


# --- figures ------------------------------------------------------------------------------------------


def figures(text: str) -> set[str]:
    """Numbers with a decimal point, to two places."""
    return {f"{float(number):.2f}" for number in NUMBER.findall(text)}


def measured() -> set[str]:
    """What the reports of the two papers say, and what the papers print."""
    folders = [ROOT / "benchmarks" / name for name in ("adaeagle", "improved-mcsd")]
    reports = [file for folder in folders for file in folder.rglob("*.md")]
    found = {n for file in reports for n in figures(file.read_text(encoding="utf-8"))}
    tables = (*adaeagle.TABLES, *improved.TABLES)
    printed = {f"{value:.2f}" for t in tables for row in t.rows.values() for value in row if value}
    return found | printed


def test_the_papers_figures_are_those_of_the_results() -> None:
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    invented = figures(text) - measured()
    assert not invented
    assert len(figures(text)) > 60


def test_a_figure_that_nobody_measured_is_caught() -> None:
    assert figures("a speed of 9.87 [9.81, 9.93]") - measured() == {"9.87", "9.81", "9.93"}
