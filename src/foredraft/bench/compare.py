"""What changed between two runs, and whether it is noise (see docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from foredraft.bench.changes import Change, Names, Outlier, equal_rounds, find_changes
from foredraft.bench.folder import Run
from foredraft.bench.modelled import modelled_tokens_per_s
from foredraft.bench.noise import CANNOT_TELL
from foredraft.bench.pairing import Common, common_prompts, paired_methods, same_turns
from foredraft.bench.rows import ALL
from foredraft.bench.run_differences import Difference, differing_settings
from foredraft.costs import CostTable
from foredraft.errors import ConfigError
from foredraft.results import Statistics

ABSOLUTE = "absolute times, which tell nothing on a machine that others share"


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
    turns_left_out: int
    """Turns of the same suite, id and number whose prompts are not the same."""
    settings: tuple[Difference, ...]
    """Settings, versions and hardware that differ; times are to be read with them in mind."""
    changes: tuple[Change, ...]
    """By method over all prompts, then suite by suite where there are several."""
    facts: tuple[Facts, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def compare_runs(a: Run, b: Run, pairs: Mapping[str, str] | None = None) -> Comparison:
    """Hold run `b` against run `a` on the prompts that both finished.

    Args:
        a, b: the runs; verdicts say what became of `a`'s methods in `b`. The rounds of both are priced by
            the cost table of `a`, or else of `b`.
        pairs: methods of `a` to be held against differently named ones of `b`; all others are held
            against their namesakes.

    Raises:
        ConfigError: no prompt or no method in common, or a pair of methods that did not run.
    """
    methods = paired_methods(a, b, pairs or {})
    common, left_out = common_prompts(a, b)
    changes = find_changes(common, methods, a, b)
    facts = [_facts(common, names, a.costs or b.costs) for names in methods.items()]
    return Comparison(
        names=(a.name, b.name),
        prompts=len(common),
        turns_left_out=left_out,
        settings=differing_settings(a, b),
        changes=tuple(changes),
        facts=tuple(fact for fact in facts if fact.answers),
        notes=(*_lossy(methods, a, b), *_notes(len(common), left_out, changes)),
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


def _facts(common: Sequence[Common], names: Names, costs: CostTable | None) -> Facts:
    answers = [
        both
        for prompt in common
        for both in same_turns(prompt.first.of(names[0]), prompt.second.of(names[1]))
    ]
    first, second = (Statistics.pool(both[i].stats for both in answers) for i in (0, 1))
    return Facts(
        *names,
        answers=len(answers),
        equal_answers=sum(x.digest == y.digest for x, y in answers),
        equal_rounds=sum(equal_rounds(x, y) for x, y in answers),
        modelled_tokens_per_s=(
            modelled_tokens_per_s(first, costs, names[0]),
            modelled_tokens_per_s(second, costs, names[1]),
        ),
        mean_acceptance_length=(first.mean_acceptance_length, second.mean_acceptance_length),
        acceptance_rate=(first.acceptance_rate, second.acceptance_rate),
    )


def _lossy(methods: Mapping[str, str], a: Run, b: Run) -> Iterator[str]:
    """Methods whose speed buys other text."""
    marked = {*a.plan.get("lossy", ()), *b.plan.get("lossy", ())} & {*methods, *methods.values()}
    for name in sorted(marked):
        yield f"{name}: lossless: no; its answers follow another law than the target's"


def _notes(prompts: int, left_out: int, changes: Sequence[Change]) -> Iterator[str]:
    if left_out:
        yield (
            f"{_count(left_out, 'turn')} left out, for in the two runs the token ids of the prompts differ: "
            "another question or template, or another answer of plain decoding in the turn before"
        )
    if prompts == 1:
        yield "only one prompt is common, so nothing can be said about noise; run more prompts"
    elif any(c.verdict == CANNOT_TELL and c.reference is not None for c in changes):
        yield (
            "cannot tell: the prompts are too few for the test, or too noisy for its interval to leave out "
            "a change of 10 %; run more prompts (--limit), or more repeats (--repeats)"
        )
    for change in changes:
        if change.reference is None:
            yield f"{change.method}: {ABSOLUTE}"
    for change in changes:
        if change.suite == ALL or change.is_contested:
            yield from _outliers(change)


def _outliers(change: Change) -> Iterator[str]:
    """Which prompts they are, and what the verdict would be with or without those set aside."""
    where = change.method if change.suite == ALL else f"{change.method} in {change.suite}"
    stalls = [outlier for outlier in change.outliers if outlier.stall]
    others = [outlier for outlier in change.outliers if not outlier.stall]
    if others:
        yield f"{where}: outliers in other rounds, which count: {_listed(others)}"
    if change.is_contested:
        yield (
            f"{where}: the verdict hangs on outliers in the same rounds: {_listed(stalls)}; "
            f"it is {change.without_stalls} without them, and {change.with_stalls} with them, which is shown"
        )
    elif stalls:
        but = "" if change.with_stalls == change.verdict else f"; with them: {change.with_stalls}"
        yield f"{where}: set aside as stalls, outliers in the same rounds: {_listed(stalls)}{but}"


def _listed(outliers: Sequence[Outlier]) -> str:
    return ", ".join(f"{outlier.prompt} ({outlier.ratio:.2f})" for outlier in outliers)


def _count(number: int, name: str) -> str:
    return f"1 {name} was" if number == 1 else f"{number} {name}s were"
