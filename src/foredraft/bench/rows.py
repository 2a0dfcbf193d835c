"""The figures of a run: a row for each suite and method, ready for JSON (see docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from foredraft.bench.folder import Run
from foredraft.bench.modelled import modelled_tokens_per_s, oracle_tokens_per_s
from foredraft.bench.plan import PLAIN
from foredraft.bench.records import AnswerRecord, PromptRecord
from foredraft.bench.speedups import (
    BASELINES,
    Interval,
    Pairs,
    median_speedup,
    pair,
    pooled_speedup,
)
from foredraft.costs import CostTable
from foredraft.results import Statistics

ALL = "all"
"""The pool of every suite."""

JUDGEMENTS = ("bug", "tie", "yes", "n/a")
"""Worst first; `n/a` stands only where nothing could be judged."""

MAIN_METRICS = (
    "rounds",
    "completion_tokens",
    "tokens_per_s",
    "tokens_per_pass",
    "mean_acceptance_length",
    "acceptance_rate",
    "accepted_per_depth",
)
"""What is also given turn by turn and category by category."""


ITSELF = Interval(1.0, 1.0, 1.0)
"""A baseline's speedup over itself."""


def results_document(run: Run, costs: CostTable | None = None) -> dict[str, Any]:
    """Everything that `results.json` holds.

    Args:
        run: the run, complete or not.
        costs: the table that prices rounds; None takes the run's own.
    """
    return {
        "provenance": run.plan.get("provenance", {}),
        "plan": {key: value for key, value in run.plan.items() if key != "provenance"},
        "rows": make_rows(run, costs),
        "categories": make_categories(run),
        "notes": [*run.plan.get("notes", ()), *_uncompared(run), *differences(run)],
    }


def make_rows(run: Run, costs: CostTable | None = None) -> list[dict[str, Any]]:
    """A row per suite and method that has an answer there, then those of the suite `all`.

    Args:
        run: the run, complete or not.
        costs: the table that prices rounds; None takes the run's own, and without one modelled
            figures are None.
    """
    table = costs or run.costs
    return [
        _row(suite, method, records, table)
        for suite, records in _suites(run)
        for method in run.methods
        if _answers(records, method)
    ]


def make_categories(run: Run) -> list[dict[str, Any]]:
    """The main figures by suite, category and method, of suites with two or more categories."""
    return [
        _category_row(suite, category, method, [r for r in records if r.category == category])
        for suite, records in _suites(run)
        if suite != ALL and len(_categories(records)) > 1
        for category in _categories(records)
        for method in run.methods
        if _answers([r for r in records if r.category == category], method)
    ]


def differences(run: Run) -> list[str]:
    """A sentence for every answer that was not plain decoding's, bugs first."""
    found = [
        (answer.identical, f"{answer.method}, {record.suite}/{record.id}, turn {answer.turn + 1}")
        for record in run.records
        for answer in record.answers
        if _kind(answer) in ("bug", "tie")
    ]
    return [f"{where}: {identical}" for identical, where in sorted(found, key=lambda f: f[0][:3])]


def _uncompared(run: Run) -> list[str]:
    reasons = run.plan.get("comparable", {})
    return [
        f"{method}: answers not held against plain decoding's, since {reason}"
        for method in run.methods
        if (reason := reasons.get(method))
    ]


def _row(
    suite: str, method: str, records: Sequence[PromptRecord], costs: CostTable | None
) -> dict[str, Any]:
    answers = _answers(records, method)
    stats = Statistics.pool(answer.stats for answer in answers)
    return {
        "suite": suite,
        "method": method,
        "prompts": sum(bool(record.of(method)) for record in records),
        "turns": len(answers),
        "repeats": max(len(answer.decode_s) for answer in answers),
        "spread": _spread(answers),
        **stats.as_dict(),
        "modelled_tokens_per_s": modelled_tokens_per_s(stats, costs, method),
        "oracle_modelled_tokens_per_s": oracle_tokens_per_s(stats, costs, method),
        **_speedups(records, method),
        "modelled_speedup_vs_plain": _modelled_speedup(pair(records, method, PLAIN), costs, method),
        **_identity(answers),
        "per_turn": _per_turn(answers),
    }


def _category_row(
    suite: str, category: str, method: str, records: Sequence[PromptRecord]
) -> dict[str, Any]:
    stats = Statistics.pool(answer.stats for answer in _answers(records, method))
    return {
        "suite": suite,
        "category": category,
        "method": method,
        "prompts": sum(bool(record.of(method)) for record in records),
        **_main_metrics(stats),
        **_named("speedup_vs_plain", pooled_speedup(pair(records, method, PLAIN))),
    }


def _speedups(records: Sequence[PromptRecord], method: str) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for name, baseline in BASELINES.items():
        pairs = pair(records, method, baseline)
        itself = ITSELF if method == baseline else None
        figures |= _named(f"speedup_vs_{name}", itself or pooled_speedup(pairs))
        figures |= _named(f"speedup_vs_{name}_median", itself or median_speedup(pairs))
    return figures


def _named(name: str, interval: Interval | None) -> dict[str, float | None]:
    if interval is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _modelled_speedup(pairs: Pairs, costs: CostTable | None, method: str) -> float | None:
    """Both sides priced by the same table, on the prompts that both answered."""
    ours = Statistics.pool(answer.stats for answer in pairs.answers)
    plain = Statistics.pool(answer.stats for answer in pairs.baseline)
    rate = modelled_tokens_per_s(ours, costs, method)
    base = modelled_tokens_per_s(plain, costs, PLAIN)
    return rate / base if rate and base else None


def _identity(answers: Sequence[AnswerRecord]) -> dict[str, Any]:
    kinds = [_kind(answer) for answer in answers]
    return {
        "identical": next(kind for kind in JUDGEMENTS if kind in kinds),
        "identical_counts": {kind: kinds.count(kind) for kind in reversed(JUDGEMENTS)},
    }


def _kind(answer: AnswerRecord) -> str:
    return answer.identical.split(" at ")[0]


def _per_turn(answers: Sequence[AnswerRecord]) -> list[dict[str, Any]]:
    """The main metrics of every turn; empty where no conversation has several."""
    turns = sorted({answer.turn for answer in answers})
    if len(turns) < 2:
        return []
    return [
        {
            "turn": turn,
            **_main_metrics(Statistics.pool(a.stats for a in answers if a.turn == turn)),
        }
        for turn in turns
    ]


def _main_metrics(stats: Statistics) -> dict[str, Any]:
    figures = stats.as_dict()
    return {name: figures[name] for name in MAIN_METRICS}


def _spread(answers: Sequence[AnswerRecord]) -> float | None:
    """Of the repeats' decode seconds: (largest - smallest) / median, the median over all answers."""
    spreads = [
        (max(a.decode_s) - min(a.decode_s)) / median(a.decode_s)
        for a in answers
        if len(a.decode_s) > 1 and median(a.decode_s) > 0
    ]
    return median(spreads) if spreads else None


def _suites(run: Run) -> Iterator[tuple[str, list[PromptRecord]]]:
    for suite in run.suites:
        yield suite, [record for record in run.records if record.suite == suite]
    yield ALL, list(run.records)


def _categories(records: Sequence[PromptRecord]) -> list[str]:
    return list(dict.fromkeys(record.category for record in records))


def _answers(records: Sequence[PromptRecord], method: str) -> list[AnswerRecord]:
    return [answer for record in records for answer in record.of(method)]
