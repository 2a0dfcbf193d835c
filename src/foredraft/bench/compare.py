"""What changed between two runs, and whether it is noise (see docs/metrics.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from foredraft.bench import noise
from foredraft.bench.folder import Run
from foredraft.bench.modelled import modelled_tokens_per_s
from foredraft.bench.pairing import Common, common_prompts, paired_methods
from foredraft.bench.plan import PLAIN
from foredraft.bench.records import AnswerRecord, PromptRecord
from foredraft.bench.rows import ALL
from foredraft.bench.settings import Difference, differing_settings
from foredraft.bench.speedups import HF, pair
from foredraft.costs import CostTable
from foredraft.errors import ConfigError
from foredraft.results import Statistics

_Names = tuple[str, str]
"""A method as the first and as the second run name it."""

ABSOLUTE = "absolute times, only meaningful on one quiet machine"


@dataclass(frozen=True, slots=True)
class Change:
    """The second run's speed against the first one's: one method, in one suite or in all.

    Attributes:
        reference: the method of the same run that speeds are relative to; None compares absolute times.
        estimate: the ratio of the second speed to the first with its interval.
        p_value: corrected for all rows beside it.
        verdict: `no difference`, `x % faster` or `x % slower`.
    """

    suite: str
    method: str
    other: str
    reference: str | None
    estimate: noise.Estimate
    p_value: float
    verdict: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What does not depend on time, of one method over all common prompts; pairs are (first, second) run.

    Attributes:
        answers: the turns that both runs answered.
        equal_answers, equal_rounds: of those, how many gave the same tokens, and how many did it by rounds
            of the same shapes and acceptance.
        modelled_tokens_per_s: both priced by one table.
    """

    method: str
    other: str
    answers: int
    equal_answers: int
    equal_rounds: int
    modelled_tokens_per_s: tuple[float | None, float | None]
    mean_acceptance_length: tuple[float | None, float | None]
    acceptance_rate: tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs on their common prompts."""

    names: tuple[str, str]
    prompts: int
    settings: tuple[Difference, ...]
    """Settings, versions and hardware that differ; times are to be read with them in mind."""
    changes: tuple[Change, ...]
    """By method over all prompts, then suite by suite where there are several."""
    facts: tuple[Facts, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def compare_runs(
    a: Run, b: Run, pairs: Mapping[str, str] | None = None, costs: CostTable | None = None
) -> Comparison:
    """Hold run `b` against run `a` on the prompts that both finished.

    Args:
        a, b: the runs; verdicts say what became of `a`'s methods in `b`.
        pairs: methods of `a` to be held against differently named ones of `b`; all others are held
            against their namesakes.
        costs: prices the rounds of both; None takes the table of `a`, or else of `b`.

    Raises:
        ConfigError: no prompt or no method in common, or a pair of methods that did not run.
    """
    methods = paired_methods(a, b, pairs or {})
    common = common_prompts(a, b)
    changes = _changes(common, methods, a, b)
    facts = [_facts(common, names, costs or a.costs or b.costs) for names in methods.items()]
    return Comparison(
        names=(a.name, b.name),
        prompts=len(common),
        settings=differing_settings(a, b),
        changes=tuple(changes),
        facts=tuple(fact for fact in facts if fact.answers),
        notes=tuple(_notes(len(common), changes)),
    )


def read_pairs(texts: Sequence[str], a: Run, b: Run) -> dict[str, str]:
    """`A=B` pairs of methods as named on the command line; options of methods may hold `=` as well.

    Raises:
        ConfigError: no place to split the text leaves a method of each run.
    """
    return dict(_read_pair(text, a, b) for text in texts)


def _read_pair(text: str, a: Run, b: Run) -> tuple[str, str]:
    parts = text.split("=")
    splits = [("=".join(parts[:i]), "=".join(parts[i:])) for i in range(1, len(parts))]
    for first, second in splits:
        if first in a.methods and second in b.methods:
            return first, second
    raise ConfigError(
        f"pair {text!r} is not A=B with a method of each run; the first ran {', '.join(a.methods)}, "
        f"the second {', '.join(b.methods)}"
    )


def _changes(common: Sequence[Common], methods: Mapping[str, str], a: Run, b: Run) -> list[Change]:
    """Over all prompts, corrected among themselves; then by suite, corrected among all of these rows.

    Absolute times stay apart: what drifts between two runs must not lend significance to other rows.
    """
    suites = list(dict.fromkeys(prompt.suite for prompt in common))
    references = {names: _reference(names, a, b) for names in methods.items()}
    relative = {names: name for names, name in references.items() if name}
    absolute = {names: name for names, name in references.items() if not name}
    pooled = _family(common, relative, [ALL])
    return [
        *pooled,
        *_family(common, absolute, [ALL]),
        *_family(common, relative, suites if len(suites) > 1 else [], beside=pooled),
    ]


def _family(
    common: Sequence[Common],
    references: Mapping[_Names, str | None],
    suites: Sequence[str],
    beside: Sequence[Change] = (),
) -> list[Change]:
    found = [
        (suite, names, reference, estimate)
        for suite in suites
        for names, reference in references.items()
        if (estimate := _estimate(common, suite, names, reference))
    ]
    p_values = [estimate.p_value for *_, estimate in found]
    corrected = noise.correct([*p_values, *(change.estimate.p_value for change in beside)])
    return [
        Change(suite, *names, reference, estimate, p, noise.verdict(estimate, p))
        for (suite, names, reference, estimate), p in zip(found, corrected, strict=False)
    ]


def _estimate(
    common: Sequence[Common], suite: str, names: _Names, reference: str | None
) -> noise.Estimate | None:
    """None where the runs have no answer of both methods in common."""
    prompts = [prompt for prompt in common if suite in (ALL, prompt.suite)]
    logs = [(prompt.suite, _log_change(prompt, names, reference)) for prompt in prompts]
    known = [(name, log) for name, log in logs if log is not None]
    if not known:
        return None
    return noise.estimate(np.array([log for _, log in known]), [name for name, _ in known])


def _reference(names: _Names, a: Run, b: Run) -> str | None:
    """What both runs have that the method's speed can be divided by."""
    both = (m for m in (PLAIN, HF) if m in a.methods and m in b.methods and m not in names)
    return next(both, None)


def _log_change(prompt: Common, names: _Names, reference: str | None) -> float | None:
    """Log of (second speed / first speed), each relative to the reference in its own run."""
    before = _log_speed(prompt.first, names[0], reference)
    after = _log_speed(prompt.second, names[1], reference)
    return None if before is None or after is None else after - before


def _log_speed(record: PromptRecord, method: str, reference: str | None) -> float | None:
    pairs = pair([record], method, reference or method)
    if not len(pairs.tokens):
        return None
    ratio = pairs.ratios if reference else pairs.tokens / pairs.seconds
    return math.log(ratio[0])


def _facts(common: Sequence[Common], names: _Names, costs: CostTable | None) -> Facts:
    answers = [both for prompt in common for both in _same_turns(prompt, names)]
    stats = [Statistics.pool(both[i].stats for both in answers) for i in (0, 1)]
    first, second = stats
    return Facts(
        *names,
        answers=len(answers),
        equal_answers=sum(x.digest == y.digest for x, y in answers),
        equal_rounds=sum(_shapes(x) == _shapes(y) for x, y in answers),
        modelled_tokens_per_s=(
            modelled_tokens_per_s(first, costs, names[0]),
            modelled_tokens_per_s(second, costs, names[1]),
        ),
        mean_acceptance_length=(first.mean_acceptance_length, second.mean_acceptance_length),
        acceptance_rate=(first.acceptance_rate, second.acceptance_rate),
    )


def _same_turns(prompt: Common, names: _Names) -> Iterator[tuple[AnswerRecord, AnswerRecord]]:
    second = {answer.turn: answer for answer in prompt.second.of(names[1])}
    for answer in prompt.first.of(names[0]):
        if answer.turn in second:
            yield answer, second[answer.turn]


def _shapes(answer: AnswerRecord) -> list[tuple[Any, ...]]:
    """Everything of the rounds but their times."""
    return [
        (r.context, r.widths, r.draft_rows, r.num_accepted, r.num_emitted, r.cut)
        for r in answer.stats.rounds
    ]


def _notes(prompts: int, changes: Sequence[Change]) -> Iterator[str]:
    if prompts == 1:
        yield "only one prompt is common, so nothing can be said about noise; run more prompts"
    for change in changes:
        if change.reference is None and change.suite == ALL:
            yield f"{change.method}: {ABSOLUTE}"
    stalls = max((c.estimate.set_aside for c in changes if c.suite == ALL), default=0)
    if stalls:
        yield f"up to {stalls} prompts of a method were set aside, as the machine stalled in them"
