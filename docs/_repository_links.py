"""Pages link to files of the repository; the site takes these files along.

Links stay as they work in the repository itself. A folder is its README, its report or its results; a
file of `docs` is its page. What pages name is added to the site, with what those pages name in turn.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
ROOT = DOCS.parent
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\))")
FACES = ("README.md", "report.md", "results.json", "recipe.json", "corpus.json")
"""What a folder shows of itself, by preference."""


def on_files(files: Files, config: Any) -> Files:
    """Add what pages link to outside of the documentation."""
    known = {file.src_uri for file in files}
    waiting = [DOCS / file.src_uri for file in files if file.is_documentation_page()]
    while waiting:
        page = waiting.pop()
        for target in targets_of(page):
            uri = uri_of(target)
            if uri not in known:
                known.add(uri)
                files.append(File.generated(config, uri, abs_src_path=str(target)))
                if target.suffix == ".md":
                    waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links to where the files are in the site."""
    source = Path(page.file.abs_src_path)
    start = os.path.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        target = target_of(source, match[1])
        if target is None:
            return match[0]  # the strict build complains
        return os.path.relpath(uri_of(target), start or ".") + (match[2] or "")

    return LINK.sub(moved, markdown)


def targets_of(page: Path) -> Iterator[Path]:
    """Every file that a page links to."""
    for match in LINK.finditer(page.read_text(encoding="utf-8")):
        target = target_of(page, match[1])
        if target is not None:
            yield target


def target_of(page: Path, link: str) -> Path | None:
    """The file that a link means; None if there is none."""
    target = Path(os.path.normpath(page.parent / link))
    if target.is_dir():
        target = next((target / face for face in FACES if (target / face).is_file()), target)
    return target if target.is_file() and target.is_relative_to(ROOT) else None


def uri_of(target: Path) -> str:
    """Where a file is in the site: pages of the documentation at its root."""
    base = DOCS if target.is_relative_to(DOCS) else ROOT
    return target.relative_to(base).as_posix()
