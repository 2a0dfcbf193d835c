"""What a reproduction is asked to run: a benchmark for each temperature, checked before loading."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from foredraft.bench.plan import PLAIN, BenchPlan
from foredraft.bench.reproduce.adaeagle.line_up import (
    check_head,
    length_line_up,
    missing_predictor,
)
from foredraft.bench.reproduce.entries import Entry
from foredraft.bench.reproduce.improved_mcsd.line_up import line_up, shapes
from foredraft.errors import ConfigError
from foredraft.zoo.shipped import ShippedKind, shipped

IMPROVED_MCSD, ADAEAGLE = "improved-mcsd", "adaeagle"
NO_DECISION = "none"


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
        model, suites, drafter, limit, repeats, max_new_tokens, seed, dtype, device, quantize: as in
            `BenchPlan`.

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
    quantize: str | None = None

    def __post_init__(self) -> None:
        if self.paper not in PAPERS:
            raise ConfigError(
                f"there is nothing to reproduce called {self.paper!r}; known: {', '.join(PAPERS)}"
            )
        self._refuse_options_of_others()
        if not self.temperatures:
            object.__setattr__(self, "temperatures", PAPERS[self.paper].temperatures)
        for name, given in (("temperatures", self.temperatures), ("budgets", self.budgets)):
            if len(set(given)) < len(given):
                raise ConfigError(f"{name} {list(given)} name one twice; leave one out")
        _ = self.runs

    def _refuse_options_of_others(self) -> None:
        others = {name: paper for paper, of in PAPERS.items() for name in of.options}
        for name, paper in others.items():
            if getattr(self, name) and paper != self.paper:
                raise ConfigError(
                    f"{name}=... is for {paper}, and has no meaning for {self.paper}; leave it out"
                )

    def decision_at(self, temperature: float) -> str | None:
        """The decision model at a temperature: hard ones learnt from greedy answers, soft ones from laws."""
        if self.decision is not None:
            return None if self.decision == NO_DECISION else self.decision
        kind: ShippedKind = "decision-hard" if temperature == 0 else "decision-soft"
        return kind if self.drafter is None and shipped(self.model, kind) else None

    def entries(self, temperature: float) -> tuple[Entry, ...]:
        """The rows: the paper's line-up, or what its options put in its place."""
        return PAPERS[self.paper].entries(self, temperature)

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the paper does not take part, and why."""
        return PAPERS[self.paper].notes(self)

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
            quantize=self.quantize,
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


# --- the papers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Paper:
    """What can be reproduced.

    Attributes:
        temperatures: when nothing else is asked for.
        options: attributes of a plan that no other paper has.
        entries: a plan and a temperature -> the rows.
        notes: a plan -> what does not take part.
        lossy: whether methods change the answers, which are then scored, and draft trees as wide as those of
            multi-candidate papers.
    """

    temperatures: tuple[float, ...]
    options: tuple[str, ...]
    entries: Callable[[ReproducePlan, float], tuple[Entry, ...]]
    notes: Callable[[ReproducePlan], tuple[str, ...]] = lambda plan: ()
    lossy: bool = False


def _mcsd_entries(plan: ReproducePlan, temperature: float) -> tuple[Entry, ...]:
    """The line-up; with budgets, every shape under its own name."""
    decision = plan.decision_at(temperature)
    if not plan.budgets:
        return line_up(decision)
    methods = [shape.method for shape in shapes(max(plan.budgets), decision)]
    return (Entry("plain decoding", PLAIN), *(Entry(name, name) for name in methods))


def _length_entries(plan: ReproducePlan, temperature: float) -> tuple[Entry, ...]:
    """The same line-up at every temperature; with structures, fixed trees and hybrids behind it."""
    check_head(plan.model, plan.drafter)
    ships = missing_predictor(plan.model, plan.drafter) is None
    return length_line_up(plan.predictors, shipped=ships, structures=plan.structures)


def _length_notes(plan: ReproducePlan) -> tuple[str, ...]:
    missing = missing_predictor(plan.model, plan.drafter)
    return () if missing is None or plan.predictors else (missing,)


PAPERS: Mapping[str, Paper] = {
    IMPROVED_MCSD: Paper((0.0, 0.7, 1.0), ("budgets", "decision"), _mcsd_entries, lossy=True),
    ADAEAGLE: Paper((0.0,), ("structures", "predictors"), _length_entries, _length_notes),
}
"""By name."""
