"""A row of a paper's line-up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """What a row is called, and the method that it is."""

    label: str
    method: str
