"""What a measurement of quality is asked to do, checked before any model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from foredraft.bench.method_names import lossy, mcsd
from foredraft.bench.plan import PLAIN, BenchPlan
from foredraft.errors import ConfigError

TASK_TOKENS = 16
"""Tokens of an answer to a task: all of them are asked for with a word or a number."""


@dataclass(frozen=True, kw_only=True)
class QualityPlan:
    """The lossy mode with 1 to `max_roots` roots and each of the drafters, against plain decoding.

    Attributes:
        model, suites, limit, max_new_tokens, temperature, seed, dtype, device: as in `BenchPlan`.
        drafters: what drafts under the roots: drafters that ship for the model, or folders.
        tree: the k-config under every root.
        max_roots: W at most.
        roots: how roots are chosen, as in `MultiRootVerifier`.
        contexts: sampled contexts at which the law of the root is computed.
        candidates: likeliest tokens of each that are roots there.
        drafts: drafts of each candidate; greedy ones are all alike and made once.
        tasks: generated items that are answered.

    Raises:
        ConfigError: as in `BenchPlan`, or a count that measures nothing.
    """

    model: str = "smollm2"
    suites: str = "builtin"
    drafters: tuple[str, ...] = ("draft-model", "eagle3")
    tree: str = "4,3,1,1"
    max_roots: int = 4
    roots: str = "multinomial"
    limit: int | None = 10
    contexts: int = 40
    candidates: int = 8
    drafts: int = 4
    tasks: int = 140
    max_new_tokens: int = 64
    temperature: float = 0.7
    seed: int = 0
    dtype: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        from foredraft.tree import parse_k_config  # late: `--help` need not wait for PyTorch

        for name in ("max_roots", "contexts", "candidates", "drafts", "tasks"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} measures nothing; give 1 or more")
        if self.candidates < self.max_roots:
            raise ConfigError(
                f"candidates={self.candidates} are fewer than max_roots={self.max_roots}; raise them"
            )
        if not all(self.drafters):
            raise ConfigError("a drafter has an empty name; write them like draft-model,eagle3")
        parse_k_config(self.tree)
        _ = self.answers

    @property
    def methods(self) -> Mapping[tuple[str, int], str]:
        """The lossy mode by drafter and number of roots."""
        return lossy_methods(self.drafters, self.tree, self.max_roots, self.roots)

    def drafting(self, drafter: str) -> str:
        """The method whose drafts behind a text are those that a root carries."""
        return f"{mcsd(self.tree)}:drafter={drafter}"

    @cached_property
    def answers(self) -> BenchPlan:
        """The run whose answers are scored."""
        return self._run(self.suites, self.limit, self.max_new_tokens)

    def answered_tasks(self, file: Path) -> BenchPlan:
        """The run that answers the tasks, which stand in a file."""
        if "," in str(file):
            raise ConfigError(f"{file} has a comma in its path; give another --out")
        return self._run(str(file), None, TASK_TOKENS)

    def _run(self, suites: str, limit: int | None, max_new_tokens: int) -> BenchPlan:
        return BenchPlan(
            model=self.model,
            suites=suites,
            methods=(PLAIN, *self.methods.values()),
            limit=limit,
            max_new_tokens=max_new_tokens,
            temperature=self.temperature,
            seed=self.seed,
            dtype=self.dtype,
            device=self.device,
        )

    def as_dict(self) -> dict[str, Any]:
        """What must agree when it is resumed."""
        answers = self.answers.as_dict()
        return {
            **asdict(self),
            "drafters": list(self.drafters),
            "suites": answers["suites"],
            "questions": answers["questions"],
        }


def lossy_methods(
    drafters: Sequence[str], tree: str, max_roots: int, roots: str
) -> dict[tuple[str, int], str]:
    """The lossy mode by drafter and number of roots, as named on the command line."""
    chosen = "" if roots == "multinomial" else f":roots={roots}"
    return {
        (drafter, w): f"{lossy(f'{w},{tree}')}{chosen}:drafter={drafter}"
        for drafter in drafters
        for w in range(1, max_roots + 1)
    }
