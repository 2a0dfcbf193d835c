"""What a reproduction is asked to run: a benchmark for each temperature, checked before loading."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from foredraft.bench.plan import PLAIN, BenchPlan
from foredraft.bench.reproduce.lengths import length_line_up
from foredraft.bench.reproduce.line_up import Entry, line_up, shapes
from foredraft.errors import ConfigError
from foredraft.zoo.shipped import ShippedKind, shipped

IMPROVED_MCSD, ADAEAGLE = "improved-mcsd", "adaeagle"
NO_DECISION = "none"
PAPERS: Mapping[str, tuple[float, ...]] = {IMPROVED_MCSD: (0.0, 0.7, 1.0), ADAEAGLE: (0.0,)}
"""What can be reproduced, by name, and at which temperatures when nothing else is asked for."""
OPTIONS_OF = {"budgets": IMPROVED_MCSD, "decision": IMPROVED_MCSD, "structures": ADAEAGLE}
OPTIONS_OF |= {"predictors": ADAEAGLE}
"""Options that one paper alone has."""


@dataclass(frozen=True, kw_only=True)
class ReproducePlan:
    """The line-up of a paper, or its families at equal budgets, at several temperatures.

    Attributes:
        paper: one of `PAPERS`.
        temperatures: one table each; empty takes the paper's own.
        budgets: draft tokens of a round at most; with them, families are compared in place of the line-up.
        decision: the decision model of the dynamic rows, and of the families with one; None takes those
            that ship for the model's draft model, of the kind that fits the temperature, and `none` none.
        structures: of AdaEAGLE: fixed trees and hybrids too, which the adaptive policy is held against.
        predictors: of AdaEAGLE: more length predictors, by name or folder.
        model, suites, drafter, limit, repeats, max_new_tokens, seed, dtype, device: as in `BenchPlan`.

    Raises:
        ConfigError: an unknown paper, no temperature or one twice, or as in `BenchPlan`.
    """

    paper: str = IMPROVED_MCSD
    model: str = "smollm2"
    suites: str = "builtin"
    temperatures: tuple[float, ...] = ()
    budgets: tuple[int, ...] = ()
    decision: str | None = None
    structures: bool = False
    predictors: tuple[str, ...] = ()
    drafter: str | None = None
    limit: int | None = 10
    repeats: int = 1
    max_new_tokens: int = 64
    seed: int = 0
    dtype: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        if self.paper not in PAPERS:
            raise ConfigError(
                f"there is nothing to reproduce called {self.paper!r}; known: {', '.join(PAPERS)}"
            )
        for name, paper in OPTIONS_OF.items():
            value = getattr(self, name)
            if value and paper != self.paper:
                raise ConfigError(f"{name}={value!r} has no meaning for {self.paper}; leave it out")
        if not self.temperatures:
            object.__setattr__(self, "temperatures", PAPERS[self.paper])
        for name, given in (("temperatures", self.temperatures), ("budgets", self.budgets)):
            if len(set(given)) < len(given):
                raise ConfigError(f"{name} {list(given)} name one twice; leave one out")
        _ = self.runs

    @property
    def scores_answers(self) -> bool:
        """Whether the answers' own quality is measured: a method may change it."""
        return self.paper == IMPROVED_MCSD

    def decision_at(self, temperature: float) -> str | None:
        """The decision model at a temperature: hard ones learnt from greedy answers, soft ones from laws."""
        if self.decision is not None:
            return None if self.decision == NO_DECISION else self.decision
        kind: ShippedKind = "decision-hard" if temperature == 0 else "decision-soft"
        return kind if self.drafter is None and shipped(self.model, kind) else None

    def entries(self, temperature: float) -> tuple[Entry, ...]:
        """The rows of the line-up; with budgets, every shape under its own name."""
        if self.paper == ADAEAGLE:
            return length_line_up(self.predictors, structures=self.structures)
        decision = self.decision_at(temperature)
        if not self.budgets:
            return line_up(decision)
        methods = [shape.method for shape in shapes(max(self.budgets), decision)]
        return (Entry("plain decoding", PLAIN), *(Entry(name, name) for name in methods))

    @cached_property
    def runs(self) -> Mapping[str, BenchPlan]:
        """The benchmarks by the name of their folder."""
        kind = "budget-" if self.budgets else ""
        return {f"{kind}t{t:g}": self._run(t) for t in self.temperatures}

    @property
    def folders(self) -> Mapping[float, str]:
        """The name of each temperature's folder."""
        return dict(zip(self.temperatures, self.runs, strict=True))

    def _run(self, temperature: float) -> BenchPlan:
        return BenchPlan(
            model=self.model,
            suites=self.suites,
            methods=tuple(entry.method for entry in self.entries(temperature)),
            drafter=self.drafter,
            limit=self.limit,
            repeats=self.repeats,
            max_new_tokens=self.max_new_tokens,
            temperature=temperature,
            seed=self.seed,
            dtype=self.dtype,
            device=self.device,
        )

    def as_dict(self) -> dict[str, Any]:
        """The settings, ready for JSON."""
        return {
            **asdict(self),
            "temperatures": list(self.temperatures),
            "budgets": list(self.budgets),
            "predictors": list(self.predictors),
            "decisions": [self.decision_at(t) for t in self.temperatures],
        }


def read_numbers(text: str, what: str) -> tuple[float, ...]:
    """A comma list of numbers of a command line; empty text is none.

    Raises:
        ConfigError: a part is no finite number.
    """
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    try:
        numbers = tuple(map(float, parts))
    except ValueError:
        numbers = (math.nan,)
    if not all(map(math.isfinite, numbers)):
        raise ConfigError(f"{what} {text!r} is no list of numbers; write it like 0,0.7,1")
    return numbers


def read_budgets(text: str) -> tuple[int, ...]:
    """A comma list of whole numbers, as `read_numbers`."""
    numbers = read_numbers(text, "budget")
    if any(value != int(value) for value in numbers):
        raise ConfigError(f"budget {text!r} is no list of whole numbers; write it like 8,16")
    return tuple(map(int, numbers))
