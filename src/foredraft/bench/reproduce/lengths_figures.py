"""What the comparison of draft lengths shows: calls, waste, the oracle, and the best fixed structure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from foredraft.bench.folder import Run
from foredraft.bench.intervals import Interval, named
from foredraft.bench.modelled import modelled_totals, oracle_tokens_per_s
from foredraft.bench.reproduce.lengths import ADAPTIVE, DEEPEST, FIXED_LENGTHS, is_fixed
from foredraft.bench.rows import ALL
from foredraft.bench.speedups import pair, pooled_speedup
from foredraft.results import Statistics

SPEED = "modelled_tokens_per_s"


def calls_of(run: Run, method: str) -> dict[str, Any]:
    """Draft and target passes of all suites, wasted draft tokens, and the host's share of the time."""
    stats = _stats(run, method)
    rounds = stats.rounds
    host_s = sum(r.total_s - r.draft_s - r.target_s for r in rounds)
    return {
        "draft_calls": sum(len(r.draft_rows) for r in rounds),
        "target_calls": sum(r.target_passes for r in rounds),
        "wasted": sum(r.num_drafted - r.num_accepted for r in rounds),
        "host_share": host_s / max(sum(r.total_s for r in rounds), 1e-9),
    }


def oracle_of(run: Run) -> dict[str, Any] | None:
    """The deepest chain, each draft of it as long as it was accepted: AdaEAGLE's bound for chains.

    None where that chain did not run or there are no costs.
    """
    if run.costs is None or DEEPEST not in run.methods:
        return None
    stats = _stats(run, DEEPEST)
    whole = [r for r in stats.rounds if not r.cut]
    return {
        "mean_acceptance_length": 1 + sum(r.num_accepted for r in whole) / max(len(whole), 1),
        "draft_calls": sum(r.num_accepted for r in stats.rounds),
        "target_calls": len(stats.rounds),
        "wasted": 0,
        SPEED: oracle_tokens_per_s(stats, run.costs, DEEPEST),
    }


def best_fixed_length(rows: Sequence[Mapping[str, Any]], suite: str = ALL) -> str | None:
    """The fixed length with the most modelled tokens per second, in hindsight."""
    return _best(rows, suite, FIXED_LENGTHS)


def best_fixed_structure(rows: Sequence[Mapping[str, Any]], suite: str = ALL) -> str | None:
    """The same among all fixed structures."""
    fixed = [row["method"] for row in rows if row["suite"] == suite and is_fixed(row["method"])]
    return _best(rows, suite, fixed)


def _best(rows: Sequence[Mapping[str, Any]], suite: str, methods: Sequence[str]) -> str | None:
    found = {
        row["method"]: row[SPEED]
        for row in rows
        if row["suite"] == suite and row["method"] in methods and row[SPEED] is not None
    }
    return max(found, key=lambda name: found[name]) if found else None


def against(run: Run, method: str, rival: str | None, suite: str = ALL) -> dict[str, float | None]:
    """How many times as fast a method is as another on the same prompts, by the costs and by the clock."""
    modelled: Interval | None = None
    measured: Interval | None = None
    if rival is not None:
        records = [r for r in run.records if suite in (ALL, r.suite)]
        measured = pooled_speedup(pair(records, method, rival))
        if run.costs is not None:
            totals = modelled_totals(run.costs)
            modelled = pooled_speedup(pair(records, method, rival, totals))
    return named("modelled_ratio", modelled) | named("measured_ratio", measured)


def contests(run: Run, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The adaptive policy against the best fixed structure: of all suites in each, and of each its own."""
    if ADAPTIVE not in run.methods:
        return
    overall = best_fixed_structure(rows)
    for suite in (ALL, *run.suites):
        own = best_fixed_structure(rows, suite)
        for kind, rival in (("best over all suites", overall), ("best of the suite", own)):
            if rival is not None and (suite != ALL or kind == "best over all suites"):
                figures = against(run, ADAPTIVE, rival, suite)
                yield {"suite": suite, "rival": kind, "method": rival, **figures}


def gap_closed(rows: Sequence[Mapping[str, Any]], oracle: Mapping[str, Any] | None) -> float | None:
    """The share of the way from the best fixed length to the oracle that the adaptive policy goes."""
    speeds = {row["method"]: row[SPEED] for row in rows if row["suite"] == ALL}
    best, adaptive = speeds.get(best_fixed_length(rows) or ""), speeds.get(ADAPTIVE)
    if oracle is None or oracle[SPEED] is None or best is None or adaptive is None:
        return None
    gap = oracle[SPEED] - best
    return (adaptive - best) / gap if gap > 0 else None


def _stats(run: Run, method: str) -> Statistics:
    return Statistics.pool(a.stats for record in run.records for a in record.of(method))
