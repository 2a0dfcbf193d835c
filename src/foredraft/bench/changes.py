"""The second run's speeds against the first one's: one method, in one suite or in all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from foredraft.bench import noise
from foredraft.bench.folder import Run
from foredraft.bench.pairing import Common, same_turns
from foredraft.bench.plan import PLAIN
from foredraft.bench.records import AnswerRecord, PromptRecord
from foredraft.bench.rows import ALL
from foredraft.bench.speedups import HF, pair

Names = tuple[str, str]
"""A method as the first and as the second run name it."""


@dataclass(frozen=True, slots=True)
class Outlier:
    """A prompt far from the others of its suite."""

    prompt: str
    ratio: float
    """The second speed over the first."""
    stall: bool
    """Whether both runs answered it in the same rounds, so that only the machine can have been slow."""


@dataclass(frozen=True, slots=True)
class Change:
    """A method's speed in the second run against its speed in the first.

    Attributes:
        reference: the method of the same run that speeds are relative to; None compares absolute times.
        estimate, p_value, verdict: as in `noise.Finding`; stalls are left out unless the verdict would be
            the contrary of that of all prompts.
        outliers: every prompt that is one.
        with_stalls, without_stalls: the verdicts of all prompts, and of those that are no stalls.
    """

    suite: str
    method: str
    other: str
    reference: str | None
    estimate: noise.Estimate
    p_value: float
    verdict: str
    outliers: tuple[Outlier, ...]
    with_stalls: str
    without_stalls: str

    @property
    def is_contested(self) -> bool:
        """Whether the verdict depends on the stalls; it is that of all prompts then."""
        return self.verdict != self.without_stalls


@dataclass(frozen=True, slots=True)
class _Row:
    """What a method's prompts show, before other rows are looked at beside it."""

    suite: str
    names: Names
    reference: str | None
    outliers: tuple[Outlier, ...]
    every: noise.Estimate
    """From all prompts."""
    kept: noise.Estimate
    """From those that are no stalls."""


def find_changes(
    common: Sequence[Common], methods: Mapping[str, str], a: Run, b: Run
) -> list[Change]:
    """Over all prompts, corrected among themselves; then by suite, corrected among all of these rows.

    Absolute times stay apart: what drifts between two runs must not lend significance to other rows.
    """
    suites = list(dict.fromkeys(prompt.suite for prompt in common))
    references = {names: _reference(names, a, b) for names in methods.items()}
    relative = {names: name for names, name in references.items() if name}
    absolute = {names: name for names, name in references.items() if not name}
    pooled = _rows(common, relative, [ALL])
    by_suite = _rows(common, relative, suites if len(suites) > 1 else [])
    return [
        *_judge(pooled),
        *_doubted(_judge(_rows(common, absolute, [ALL])), a, b),
        *_judge([*by_suite, *pooled])[: len(by_suite)],
    ]


def _doubted(changes: Sequence[Change], a: Run, b: Run) -> list[Change]:
    """Absolute times of a processor that others share tell no difference: it is as fast as they leave it."""
    own_device = all(run.plan.get("provenance", {}).get("device", "cpu") != "cpu" for run in (a, b))
    settled = (noise.NO_DIFFERENCE, noise.CANNOT_TELL)
    return [
        change
        if own_device or change.verdict in settled
        else replace(change, verdict=noise.CANNOT_TELL)
        for change in changes
    ]


def equal_rounds(first: AnswerRecord, second: AnswerRecord) -> bool:
    """Whether two answers came from rounds that differ in nothing but their times."""

    def shapes(answer: AnswerRecord) -> list[tuple[object, ...]]:
        return [
            (r.context, r.widths, r.draft_rows, r.num_accepted, r.num_emitted, r.cut)
            for r in answer.stats.rounds
        ]

    return shapes(first) == shapes(second)


def _reference(names: Names, a: Run, b: Run) -> str | None:
    """What both runs have that the method's speed can be divided by."""
    both = (m for m in (PLAIN, HF) if m in a.methods and m in b.methods and m not in names)
    return next(both, None)


def _rows(
    common: Sequence[Common], references: Mapping[Names, str | None], suites: Sequence[str]
) -> list[_Row]:
    """Those of methods that have an answer in both runs."""
    return [
        _row(suite, names, reference, changes)
        for suite in suites
        for names, reference in references.items()
        if (changes := list(_log_changes(common, suite, names, reference)))
    ]


def _log_changes(
    common: Sequence[Common], suite: str, names: Names, reference: str | None
) -> Iterator[tuple[Common, float]]:
    """Log of (second speed / first speed) by prompt, each relative to the reference in its own run."""
    for prompt in common:
        if suite in (ALL, prompt.suite):
            before = _log_speed(prompt.first, names[0], reference)
            after = _log_speed(prompt.second, names[1], reference)
            if before is not None and after is not None:
                yield prompt, after - before


def _row(
    suite: str, names: Names, reference: str | None, changes: Sequence[tuple[Common, float]]
) -> _Row:
    prompts, logs = [prompt for prompt, _ in changes], np.array([log for _, log in changes])
    places = np.flatnonzero(noise.outliers(logs, [prompt.suite for prompt in prompts])).tolist()
    outliers = [
        Outlier(prompts[i].name, math.exp(logs[i]), _is_stall(prompts[i], names, reference))
        for i in places
    ]
    stalls = [i for i, outlier in zip(places, outliers, strict=True) if outlier.stall]
    every = noise.estimate(logs)
    kept = noise.estimate(np.delete(logs, stalls)) if stalls else every
    return _Row(suite, names, reference, tuple(outliers), every, kept)


def _is_stall(prompt: Common, names: Names, reference: str | None) -> bool:
    pairs = [names] if reference is None else [names, (reference, reference)]
    return all(
        equal_rounds(*answers)
        for first, second in pairs
        for answers in same_turns(prompt.first.of(first), prompt.second.of(second))
    )


def _log_speed(record: PromptRecord, method: str, reference: str | None) -> float | None:
    pairs = pair([record], method, reference or method)
    if not len(pairs.tokens):
        return None
    ratio = pairs.ratios if reference else pairs.tokens / pairs.seconds
    return math.log(ratio[0])


def _judge(rows: Sequence[_Row]) -> list[Change]:
    every = noise.judge([row.every for row in rows])
    kept = noise.judge([row.kept for row in rows])
    return [_change(*found) for found in zip(rows, every, kept, strict=True)]


def _change(row: _Row, every: noise.Finding, kept: noise.Finding) -> Change:
    shown = every if every.contradicts(kept) else kept
    return Change(
        suite=row.suite,
        method=row.names[0],
        other=row.names[1],
        reference=row.reference,
        estimate=shown.estimate,
        p_value=shown.p_value,
        verdict=shown.verdict,
        outliers=row.outliers,
        with_stalls=every.verdict,
        without_stalls=kept.verdict,
    )
