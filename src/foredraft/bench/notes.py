"""What a reader must know beside the figures of a run, in sentences (see docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from foredraft.bench.folder import Run
from foredraft.bench.modelled import has_price, is_peer
from foredraft.bench.records import AnswerRecord
from foredraft.costs import BUSY_SPREAD, CostTable
from foredraft.results import Statistics


def judgement(answer: AnswerRecord) -> str:
    """`yes`, `tie`, `bug` or `n/a`, without the place."""
    return answer.identical.split(" at ")[0]


def differences(run: Run) -> list[dict[str, Any]]:
    """Every answer that was not plain decoding's, bugs first; turns count from 0."""
    found = [
        {
            "method": answer.method,
            "suite": record.suite,
            "id": record.id,
            "turn": answer.turn,
            "identical": answer.identical,
        }
        for record in run.records
        for answer in record.answers
        if judgement(answer) in ("bug", "tie")
    ]
    return sorted(found, key=lambda difference: str(difference["identical"])[:3])


def notes(run: Run, costs: CostTable | None) -> list[str]:
    """What was not run, compared or priced, and every kind of difference, in this order.

    Args:
        run: of each method, the answers that its figures are on.
        costs: the table that prices rounds; None where there is none.
    """
    pricing = _pricing(run, costs) if costs else ()
    return [*_incomplete(run), *_uncompared(run), *pricing, *_bugs(run), *_ties(run)]


def _incomplete(run: Run) -> Iterator[str]:
    """Methods that answered less than another one did."""
    prompts = {m: sum(bool(r.of(m)) for r in run.records) for m in run.methods}
    turns = {m: sum(len(r.of(m)) for r in run.records) for m in run.methods}
    counts = (("prompts", prompts), ("turns", turns))
    for method in run.methods:
        for name, count in counts:
            most = max(count.values())
            if count[method] < most:
                yield f"{method} answered {count[method]} of {most} {name}; its figures are on those"
                break


def _uncompared(run: Run) -> Iterator[str]:
    reasons = run.plan.get("comparable", {})
    for method in run.methods:
        if reason := reasons.get(method):
            yield f"{method}: answers not held against plain decoding's, since {reason}"


def _pricing(run: Run, costs: CostTable) -> Iterator[str]:
    """What modelled figures leave out."""
    spread = costs.provenance.get("spread", 0.0)
    if spread > BUSY_SPREAD:
        yield (
            f"the cost table was measured on a busy machine (repeats of a pass differed by {spread:.0%}), "
            "so modelled figures are no surer than that"
        )
    stats = {m: Statistics.pool(a.stats for r in run.records for a in r.of(m)) for m in run.methods}
    for method, pooled in stats.items():
        yield from _unpriced(method, pooled, costs)
    peers = [m for m, pooled in stats.items() if is_peer(pooled) and has_price(pooled, costs, m)]
    if peers and costs.host_s:
        yield (
            f"{', '.join(peers)}: modelled figures price passes alone, since what else these tools spend "
            "time on was not measured; only their measured figures compare with other methods'"
        )


def _unpriced(method: str, stats: Statistics, costs: CostTable) -> Iterator[str]:
    if "target" not in stats.stages:
        yield f"{method}: no modelled figures, since its passes are not seen"
    elif not has_price(stats, costs, method):
        yield f"{method}: no modelled figures, since the cost table has no price for its draft passes"
    elif stats.drafted_tokens and not is_peer(stats) and costs.draft_costs(method) is None:
        yield (
            f"{method}: the cost table has no entry for its drafts, so modelled figures leave out the "
            "host's work of drafting"
        )


def _bugs(run: Run) -> Iterator[str]:
    for found in differences(run):
        if found["identical"].startswith("bug"):
            where = f"{found['suite']}/{found['id']}, turn {found['turn'] + 1}"
            yield f"{found['method']}, {where}: {found['identical']}"


def _ties(run: Run) -> Iterator[str]:
    for method in run.methods:
        answers = chain.from_iterable(record.of(method) for record in run.records)
        judged = [kind for kind in map(judgement, answers) if kind != "n/a"]
        if ties := judged.count("tie"):
            has = "has" if ties == 1 else "have"
            yield f"{method}: {ties} of {len(judged)} answers {has} a tie"
