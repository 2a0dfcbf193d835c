"""Options of the training of a decision model. Each default exists once, here."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from foredraft.errors import ConfigError
from foredraft.policies.decision_rules import KINDS, THRESHOLD, Kind, Rule, check_rule

Objective = Literal["bce", "cost"]
OBJECTIVES: tuple[Objective, ...] = ("bce", "cost")
COLLECTED = ("kind", "tree", "answer_tokens", "max_prompt", "temperature", "seed")
"""What recorded rounds depend on. More prompts add to them; the rest says what is learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionOptions:
    """What to record, and how to learn from it. The defaults of the second part are the paper's.

    Raises:
        ConfigError: a value is out of its range; the message names it and the range.
    """

    kind: Kind
    """`soft` reads hidden states and learns min(1, p/q), `hard` reads laws and learns matches."""
    objective: Objective = "bce"
    """`bce` learns acceptance, `cost` what gives the most tokens in a second."""
    tree: str = "1,1,1,1,1,1"
    """k-config of the recorded drafts; the paper's is 10,1."""
    prompts: int = 400
    """Prompts of the corpus that are answered."""
    answer_tokens: int = 64
    """Tokens of an answer at most."""
    max_prompt: int = 1024
    """Prompts that are longer are left out."""
    temperature: float | None = None
    """Of the recorded answers: 1 (soft), and always 0 (hard)."""
    seed: int = 0
    """Of the choice of prompts, of the answers and of the order of training."""
    epochs: int = 10
    """Times that every example is seen."""
    batch: int = 50
    """Rows (bce) or rounds (cost) of a step."""
    lr: float = 1e-3
    """Adam's."""
    held_out: float = 0.125
    """Share of the prompts that is only measured."""
    threshold: float = THRESHOLD
    """What the trained model says to go on above, unless it is tuned."""
    tune_threshold: bool = False
    """Take the threshold with the most tokens in a second on the held-out rounds."""
    rule: Rule = "any"
    """What the trained model says to decide by, see `DecisionPolicy`."""
    draft_cost: float | None = None
    """Cost of a level of the draft in target passes; None where a cost table or nothing is given."""

    def __post_init__(self) -> None:
        for name, allowed, holds in _RULES:
            value = getattr(self, name)
            try:
                right = holds(value)
            except TypeError:
                right = False
            if not right:
                raise ConfigError(f"{name}={value!r} is not allowed; give {allowed}")
        check_rule(self.threshold, self.rule)
        _check_tree(self.tree)
        self._check_costs()
        wrong = self.kind == "hard" and self.temperature not in (None, 0)
        if wrong or (self.kind == "soft" and self.temperature == 0):
            only = "0: hard labels are greedy matches" if wrong else "more than 0, such as 1"
            raise ConfigError(
                f"temperature={self.temperature:g} is not allowed with kind={self.kind}; give {only}"
            )

    def _check_costs(self) -> None:
        """Refuse what rounds cannot be priced by."""
        if self.objective == "cost" and self.rule == "path":
            raise ConfigError(
                "rule=path has no meaning with objective=cost: a model of that objective predicts no "
                "acceptance that could be multiplied along a path; give rule=any"
            )
        asks = {
            "objective=cost": self.objective == "cost",
            "tune_threshold": self.tune_threshold,
            "draft_cost": self.draft_cost is not None,
        }
        for name in (name for name, given in asks.items() if given):
            check_chain(self.tree, name)

    @property
    def sampling_temperature(self) -> float:
        """Of the recorded answers."""
        if self.temperature is not None:
            return self.temperature
        return 1.0 if self.kind == "soft" else 0.0

    def collected(self) -> dict[str, Any]:
        """The options that recorded rounds depend on."""
        values = {name: getattr(self, name) for name in COLLECTED}
        return {**values, "temperature": self.sampling_temperature}

    def as_dict(self) -> dict[str, Any]:
        """All of them."""
        return {**asdict(self), "temperature": self.sampling_temperature}


def _check_tree(tree: str) -> None:
    from foredraft.tree import (
        parse_k_config,  # which imports torch, and the command line reads this file
    )

    parse_k_config(tree)


def check_chain(tree: str, asked: str) -> None:
    """Refuse to price rounds of trees that branch.

    Raises:
        ConfigError: a level of the k-config has more than one child.
    """
    from foredraft.tree import parse_k_config

    if any(width > 1 for width in parse_k_config(tree)):
        raise ConfigError(
            f"tree={tree} branches, and {asked} prices chains: of such rounds only the chains of first "
            f"children are known; record a chain such as 1,1,1,1, or leave {asked} out"
        )


def _whole(least: int) -> Any:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= least


_RULES: tuple[tuple[str, str, Any], ...] = (
    ("kind", f"one of {', '.join(KINDS)}", lambda v: v in KINDS),
    ("objective", f"one of {', '.join(OBJECTIVES)}", lambda v: v in OBJECTIVES),
    ("prompts", "a whole number of 2 or more", _whole(2)),
    ("answer_tokens", "a whole number of 2 or more", _whole(2)),
    ("max_prompt", "a whole number of 1 or more", _whole(1)),
    ("temperature", "a number of 0 or more", lambda v: v is None or (math.isfinite(v) and v >= 0)),
    ("seed", "a whole number of 0 or more", _whole(0)),
    ("epochs", "a whole number of 1 or more", _whole(1)),
    ("batch", "a whole number of 1 or more", _whole(1)),
    ("lr", "a number above 0", lambda v: math.isfinite(v) and v > 0),
    ("held_out", "a share above 0 and below 1", lambda v: 0 < v < 1),
    ("draft_cost", "a number of 0 or more", lambda v: v is None or (math.isfinite(v) and v >= 0)),
)
