"""The suites of a benchmark: the built-in one, its categories, and JSONL files."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path

from foredraft.bench.questions import EXAMPLE, Question, Turn, parse_questions
from foredraft.errors import ConfigError, suggestion

__all__ = ["Question", "Suite", "Turn", "fingerprint", "read_suites"]

BUILTIN = "builtin"
RESERVED = (BUILTIN, "all")
"""Names that a file's suite never has: the built-in suite, and the pool of all suites in reports."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Questions under one name."""

    name: str
    questions: tuple[Question, ...]
    """In turn one of each category, so that the first N of them are a mixture for every N."""


def read_suites(text: str, limit: int | None) -> tuple[Suite, ...]:
    """The suites of a command line.

    Args:
        text: comma-separated `builtin`, `builtin/CATEGORY` or paths of JSONL files. A file's suite is
            called by the file's stem, with its folder in front where two would be called the same.
        limit: questions of each suite at most, spread evenly over its categories; None takes all.

    Raises:
        ConfigError: there is no such suite or file, one is named twice, a line of a file is not a
            question, or the limit is less than 1.
    """
    if limit is not None and limit < 1:
        raise ConfigError(
            f"limit={limit} leaves no question; give at least 1 (on the command line, 0 takes all)"
        )
    located = [_locate(name.strip()) for name in text.split(",")]
    names = _names(located)
    _refuse_repeated(located, names)
    return tuple(
        Suite(name, tuple(_mixed(_questions(place)))[:limit])
        for name, place in zip(names, located, strict=True)
    )


def fingerprint(suites: Sequence[Suite]) -> str:
    """A hash of names, ids and contents, in order: a run is resumed on the same questions only."""
    contents = [
        [suite.name, [[q.id, q.category, q.turns] for q in suite.questions]] for suite in suites
    ]
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()[:16]


# --- which suites -----------------------------------------------------------------------------------


def _locate(name: str) -> str | Path:
    """The built-in suite or category of that name, or else the file."""
    known = [BUILTIN, *(f"{BUILTIN}/{category}" for category in _categories())]
    if name in known:
        return name
    path = Path(os.path.expanduser(name))
    if not os.path.isfile(path):  # unlike Path's own, false for every name that cannot be a file's
        raise ConfigError(
            f"there is neither a suite nor a file {name!r}; {suggestion(name, known)}; "
            f"or give a JSONL file, with one question a line, like {EXAMPLE}"
        )
    return path.resolve()


def _names(located: Sequence[str | Path]) -> list[str]:
    """What each suite is called, in order."""
    stems = Counter(place.stem for place in located if isinstance(place, Path))

    def name(place: str | Path) -> str:
        if isinstance(place, str):
            return place
        alone = stems[place.stem] == 1 and place.stem not in RESERVED
        return place.stem if alone else f"{place.parent.name}/{place.stem}"

    return [name(place) for place in located]


def _refuse_repeated(located: Sequence[str | Path], names: Sequence[str]) -> None:
    """No question twice in one run, and no two suites of one name."""
    for place, count in Counter(located).items():
        if count > 1:
            raise ConfigError(f"the suite {str(place)!r} is named {count} times; name it once")
        if place != BUILTIN and isinstance(place, str) and BUILTIN in located:
            raise ConfigError(f"{BUILTIN!r} has the questions of {place!r} too; leave one out")
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigError(
                f"{count} suites would be called {name!r}; rename a file or its folder"
            )


def _questions(place: str | Path) -> tuple[Question, ...]:
    if isinstance(place, str):
        category = place.removeprefix(BUILTIN).removeprefix("/")
        return tuple(q for q in _builtin() if category in ("", q.category))
    try:
        data = place.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{place} cannot be read ({error.strerror}); give a file that you may read"
        ) from None
    return parse_questions(data, str(place), place.stem)


@functools.cache
def _builtin() -> tuple[Question, ...]:
    file = files("foredraft.bench") / "data" / "builtin.jsonl"
    return parse_questions(file.read_bytes(), "the built-in suite", BUILTIN)


def _categories() -> tuple[str, ...]:
    return tuple(dict.fromkeys(question.category for question in _builtin()))


def _mixed(questions: Sequence[Question]) -> Iterator[Question]:
    """Round robin over the categories as they first appear; each keeps the order of its file."""
    categories: dict[str, list[Question]] = {}
    for question in questions:
        categories.setdefault(question.category, []).append(question)
    for rank in zip_longest(*categories.values()):
        yield from (question for question in rank if question is not None)
