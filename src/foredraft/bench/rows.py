"""The figures of a run: a row for each suite and method, ready for JSON (see docs/metrics.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, median
from typing import Any

from foredraft.bench.folder import Run
from foredraft.bench.intervals import Interval, named
from foredraft.bench.modelled import (
    Pricing,
    is_peer,
    modelled_tokens_per_s,
    modelled_totals,
    oracle_rounds,
    oracle_tokens_per_s,
)
from foredraft.bench.notes import differences, judgement, notes
from foredraft.bench.plan import PLAIN
from foredraft.bench.records import AnswerRecord, PromptRecord
from foredraft.bench.speedups import (
    BASELINES,
    median_speedup,
    pair,
    pooled_speedup,
    request_s,
    whole_requests,
)
from foredraft.costs import CostTable
from foredraft.results import Statistics

Rows = Sequence[Mapping[str, Any]]

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


def results_document(run: Run, pricing: Pricing | None) -> dict[str, Any]:
    """Everything that `results.json` holds.

    Args:
        run: the run, complete or not.
        pricing: what prices rounds; without it modelled figures are None.
    """
    run = shared_with_plain(run)
    table = pricing.table if pricing else None
    apart = ("provenance", "notes")
    return {
        "provenance": run.plan.get("provenance", {}),
        "plan": {key: value for key, value in run.plan.items() if key not in apart},
        "costs": pricing and pricing.as_dict(),
        "rows": make_rows(run, table),
        "categories": make_categories(run),
        "differences": differences(run),
        "notes": [*run.plan.get("notes", ()), *notes(run, table)],
    }


def shared_with_plain(run: Run) -> Run:
    """The run without turns that plain decoding did not answer; all of it where that did not run."""
    if PLAIN not in run.methods:
        return run
    return dataclasses.replace(run, records=tuple(map(_shared, run.records)))


def _shared(record: PromptRecord) -> PromptRecord:
    turns = {answer.turn for answer in record.of(PLAIN)}
    kept = tuple(answer for answer in record.answers if answer.turn in turns)
    return dataclasses.replace(record, answers=kept)


def make_rows(run: Run, costs: CostTable | None) -> list[dict[str, Any]]:
    """A row per suite and method that has an answer there, then those of the suite `all`."""
    return [
        _row(suite, method, records, costs) | {"lossless": lossless(run, method)}
        for suite, records in _suites(run)
        for method in run.methods
        if _answers(records, method)
    ]


def make_categories(run: Run) -> list[dict[str, Any]]:
    """The main figures by suite, category and method, of suites with two or more categories."""
    return [
        _category_row(suite, category, method, records) | {"lossless": lossless(run, method)}
        for suite, of_suite in _suites(run)
        if suite != ALL and len(_categories(of_suite)) > 1
        for category in _categories(of_suite)
        for records in [[r for r in of_suite if r.category == category]]
        for method in run.methods
        if _answers(records, method)
    ]


def lossless(run: Run, method: str) -> str:
    """Whether a method keeps the target's law: `yes` or `no`, and `n/a` of another tool."""
    if method in run.plan.get("lossy", ()):
        return "no"
    stats = Statistics.pool(a.stats for record in run.records for a in record.of(method))
    return "n/a" if is_peer(stats) else "yes"


def by_group(document: Mapping[str, Any]) -> Mapping[str, Rows]:
    """The rows to be shown side by side: of all suites, then of each suite.

    Where there is one suite, whose rows are those of all, its categories stand in place of suites.
    """
    rows: Rows = document["rows"]
    suites = list(dict.fromkeys(row["suite"] for row in rows if row["suite"] != ALL))
    groups = {ALL: [row for row in rows if row["suite"] == ALL]}
    if len(suites) > 1:
        return groups | {name: [row for row in rows if row["suite"] == name] for name in suites}
    for row in document["categories"]:
        groups.setdefault(f"{row['suite']}/{row['category']}", []).append(row)
    return groups


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
        "answer_tokens": sum(answer.num_tokens for answer in answers),
        "request_ms": 1000 * mean(map(request_s, answers)),
        "spread": _spread(answers),
        **stats.as_dict(),
        "modelled_tokens_per_s": modelled_tokens_per_s(stats, costs, method),
        **_oracle(stats, costs, method),
        **_speedups(records, method),
        **named("request_speedup_vs_plain", _request_speedup(records, method)),
        **named("modelled_speedup_vs_plain", _modelled_speedup(records, method, costs)),
        **_identity(answers),
        "per_turn": _per_turn(answers),
    }


def _category_row(
    suite: str, category: str, method: str, records: Sequence[PromptRecord]
) -> dict[str, Any]:
    stats = Statistics.pool(answer.stats for answer in _answers(records, method))
    itself = ITSELF if method == PLAIN else None
    speedup = itself or pooled_speedup(pair(records, method, PLAIN))
    return {
        "suite": suite,
        "category": category,
        "method": method,
        "prompts": sum(bool(record.of(method)) for record in records),
        **_main_metrics(stats),
        **named("speedup_vs_plain", speedup),
    }


def _oracle(stats: Statistics, costs: CostTable | None, method: str) -> dict[str, Any]:
    """What the method's own rounds would have come to with every draft as deep as it was accepted."""
    cut = oracle_rounds(stats)
    return {
        "oracle_modelled_tokens_per_s": oracle_tokens_per_s(stats, costs, method),
        "oracle_draft_passes": cut.draft_passes,
        "oracle_waste": cut.waste,
    }


def _speedups(records: Sequence[PromptRecord], method: str) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for name, baseline in BASELINES.items():
        pairs = pair(records, method, baseline)
        itself = ITSELF if method == baseline else None
        figures |= named(f"speedup_vs_{name}", itself or pooled_speedup(pairs))
        figures |= named(f"speedup_vs_{name}_median", itself or median_speedup(pairs))
    return figures


def _request_speedup(records: Sequence[PromptRecord], method: str) -> Interval | None:
    """End to end: prefill is time, and a token that came out of it is a token."""
    return (
        ITSELF if method == PLAIN else pooled_speedup(pair(records, method, PLAIN, whole_requests))
    )


def _modelled_speedup(
    records: Sequence[PromptRecord], method: str, costs: CostTable | None
) -> Interval | None:
    """Both sides priced by the same table. None unless all of a method's rounds have a price."""
    if costs is None or not _has_price(records, method, costs):
        return None
    if method == PLAIN:
        return ITSELF
    return pooled_speedup(pair(records, method, PLAIN, modelled_totals(costs)))


def _has_price(records: Sequence[PromptRecord], method: str, costs: CostTable) -> bool:
    stats = Statistics.pool(answer.stats for answer in _answers(records, method))
    return modelled_tokens_per_s(stats, costs, method) is not None


def _identity(answers: Sequence[AnswerRecord]) -> dict[str, Any]:
    kinds = [judgement(answer) for answer in answers]
    return {
        "identical": next(kind for kind in JUDGEMENTS if kind in kinds),
        "identical_counts": {kind: kinds.count(kind) for kind in reversed(JUDGEMENTS)},
    }


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
