"""Commands and code on the pages: the commands exist with these options, and the code is Python."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from foredraft.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")]
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROGRAM = "foredraft"
ENDS = {"|", ">", "&&", ";"}


def blocks(page: Path, language: str) -> Iterator[str]:
    """The code of a page in one language; that of the shell has none."""
    for found, code in BLOCK.findall(page.read_text(encoding="utf-8")):
        if found == language:
            yield code


def commands(page: Path) -> Iterator[list[str]]:
    """The words behind `foredraft` in each command of a page, to its end."""
    for code in blocks(page, ""):
        for line in code.replace("\\\n", " ").splitlines():
            yield from commands_of(line)


def commands_of(line: str) -> Iterator[list[str]]:
    """Likewise, of a line; `[more]` stands for what a reader may add."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return  # prose, or what a program prints
    for place, word in enumerate(words):
        if Path(word).name == PROGRAM and (place == 0 or words[place - 1] in ENDS | {"-m"}):
            rest = words[place + 1 :]
            end = next((i for i, w in enumerate(rest) if w in ENDS), len(rest))
            yield [w for w in rest[:end] if not w.startswith("[")]


def faults(words: list[str], command: Any) -> list[str]:
    """What of these words the command line does not know."""
    while words and hasattr(command, "commands"):
        if words[0].startswith("-"):
            break
        if words[0] not in command.commands:
            return [f"no command {words[0]!r}"]
        command, words = command.commands[words[0]], words[1:]
    known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
    given = [word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)]
    return [f"no option {option} of {command.name}" for option in given if option not in known]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_the_commands_exist(page: Path) -> None:
    root = typer.main.get_command(app)
    assert not [fault for words in commands(page) for fault in faults(words, root)]


def test_many_commands_are_found() -> None:
    assert sum(1 for page in PAGES for _ in commands(page)) > 50


@pytest.mark.parametrize(
    "line",
    [
        "foredraft generat --prompt x",
        "foredraft bench rum",
        "echo x | foredraft generate --promt -",
        "python -m foredraft chat --temprature 1",
    ],
)
def test_what_does_not_exist_is_caught(line: str) -> None:
    (words,) = commands_of(line)
    assert faults(words, typer.main.get_command(app))


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_the_code_is_python(page: Path) -> None:
    for code in blocks(page, "python"):
        compile(code, str(page), "exec", dont_inherit=True)
