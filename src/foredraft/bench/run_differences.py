"""In what two runs differ besides their times: settings, versions, hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foredraft.bench.folder import Run

LISTED_ELSEWHERE = frozenset(
    (
        "methods",
        "suites",
        "limit",
        "repeats",
        "questions",
        "notes",
        "comparable",
        "provenance",
        "resumed",
    )
)
"""Plan entries that do not change how a prompt is answered."""
OF_THE_MOMENT = frozenset(("command", "date"))
"""Provenance that differs between any two runs."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting with its value in the first and in the second run; None where it was not set."""

    name: str
    first: Any
    second: Any


def differing_settings(a: Run, b: Run) -> tuple[Difference, ...]:
    """Every setting, version or piece of hardware that is not the same in both runs."""
    first, second = _settings(a.plan), _settings(b.plan)
    return tuple(
        Difference(name, first.get(name), second.get(name))
        for name in dict.fromkeys((*first, *second))
        if first.get(name) != second.get(name)
    )


def _settings(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for, and in its place what came of it, such as the dtype that was loaded."""
    request = {name: value for name, value in plan.items() if name not in LISTED_ELSEWHERE}
    made = {
        name: value
        for name, value in plan.get("provenance", {}).items()
        if name not in OF_THE_MOMENT | {"packages"}
    }
    return {**request, **made, **plan.get("provenance", {}).get("packages", {})}
