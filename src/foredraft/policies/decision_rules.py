"""Kinds of decision models, and how predictions decide. Without tensors, for the command line."""

from __future__ import annotations

from typing import Literal

from foredraft.errors import ConfigError

Kind = Literal["soft", "hard"]
Rule = Literal["any", "path"]
KINDS: tuple[Kind, ...] = ("soft", "hard")
RULES: tuple[Rule, ...] = ("any", "path")
THRESHOLD = 0.4
"""The paper's."""


def check_rule(threshold: float, rule: str) -> None:
    """Refuse what no decision can be made by.

    Raises:
        ConfigError: a threshold outside 0 .. 1, or an unknown rule.
    """
    if not 0 <= threshold <= 1:
        raise ConfigError(f"threshold={threshold!r} is not allowed; give a number from 0 to 1")
    if rule not in RULES:
        raise ConfigError(f"rule={rule!r} is not known; give one of {', '.join(RULES)}")
