"""What the comparison of draft lengths shows: the oracle, the best fixed structures, and the host's work.

Three prices: `modelled` by this machine's cost table, `gpu` by a flat one, `measured` by the clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from foredraft.bench.folder import Run
from foredraft.bench.intervals import Interval, named
from foredraft.bench.modelled import modelled_totals, oracle_totals, read_costs
from foredraft.bench.plan import PLAIN
from foredraft.bench.reproduce.adaeagle.line_up import ADAPTIVE, DEEPEST, FIXED_LENGTHS, is_fixed
from foredraft.bench.rows import ALL, ITSELF, Rows
from foredraft.bench.speedups import pair, pooled_speedup
from foredraft.costs import CostTable
from foredraft.results import Statistics

GPU_COSTS = "flat:level=0.05"
"""A pass costs the same whatever its width, and one of the head a twentieth: the paper's own ratio."""
SPEED, GPU_SPEED = "modelled_tokens_per_s", "gpu_modelled_tokens_per_s"
PRICES = {"modelled": SPEED, "gpu": GPU_SPEED}
"""Modelled speeds of a row, by price."""

Row = Mapping[str, Any]


def tables_of(run: Run) -> dict[str, CostTable]:
    """The cost tables by the name of their price."""
    own = {} if run.costs is None else {"modelled": run.costs}
    return own | {"gpu": read_costs(GPU_COSTS, run.methods)}


# --- the best in hindsight ---------------------------------------------------------------------------


def best_length(rows: Rows, price: str, suite: str = ALL) -> str | None:
    """The fixed length with the most modelled tokens per second."""
    return _best([row for row in rows if row["method"] in FIXED_LENGTHS], price, suite)


def best_structure(rows: Rows, price: str, suite: str = ALL) -> str | None:
    """The same among all fixed structures that ran."""
    return _best([row for row in rows if is_fixed(row["method"])], price, suite)


def _best(rows: Rows, price: str, suite: str) -> str | None:
    speed = PRICES[price]
    found = [row for row in rows if row["suite"] == suite and row[speed] is not None]
    return str(max(found, key=lambda row: row[speed])["method"]) if found else None


def against(run: Run, method: str, rival: str | None, price: str, suite: str = ALL) -> Row:
    """How many times as fast a method is as another on the same prompts, with an interval."""
    if method == rival:
        return named("ratio", ITSELF)
    ratio: Interval | None = None
    records = [record for record in run.records if suite in (ALL, record.suite)]
    if rival is not None and price == "measured":
        ratio = pooled_speedup(pair(records, method, rival))
    elif rival is not None and (table := tables_of(run).get(price)):
        ratio = pooled_speedup(pair(records, method, rival, modelled_totals(table)))
    return named("ratio", ratio)


def over_best_length(run: Run, rows: Rows, method: str) -> dict[str, float | None]:
    """A method's speed over the best fixed length's, by each price; by the clock, over the modelled best."""
    best = {price: best_length(rows, price) for price in PRICES}
    best["measured"] = best["modelled"]
    return {
        name.replace("ratio", f"{price}_vs_length", 1): value
        for price, rival in best.items()
        for name, value in against(run, method, rival, price).items()
    }


def contests(run: Run, rows: Rows) -> Iterator[dict[str, Any]]:
    """The adaptive policy against the best fixed structure of all suites, and against each suite's own."""
    if ADAPTIVE not in run.methods:
        return
    overall = best_structure(rows, "modelled")
    for suite in (ALL, *(run.suites if len(run.suites) > 1 else ())):
        rivals = {"overall": overall, "own": best_structure(rows, "modelled", suite)}
        yield {
            "suite": suite,
            **rivals,
            **{
                name.replace("ratio", f"{price}_vs_{which}", 1): value
                for which, rival in rivals.items()
                for price in ("modelled", "measured")
                for name, value in against(run, ADAPTIVE, rival, price, suite).items()
            },
        }


# --- the oracle --------------------------------------------------------------------------------------


def oracles(run: Run, rows: Rows) -> Iterator[dict[str, Any]]:
    """The chain oracle of all suites and of each: the deepest chain, cut in hindsight to what was accepted.

    See docs/metrics.md. Nothing where that chain did not run.
    """
    for row in rows:
        if row["method"] == DEEPEST:
            yield _oracle(run, rows, row)


def _oracle(run: Run, rows: Rows, deepest: Row) -> dict[str, Any]:
    suite = deepest["suite"]
    records = [record for record in run.records if suite in (ALL, record.suite)]
    found = {
        "suite": suite,
        "mean_acceptance_length": deepest["mean_acceptance_length"],
        "completion_tokens": deepest["completion_tokens"],
        "target_passes": deepest["target_passes"],
        "draft_passes": deepest["oracle_draft_passes"],
        "waste": deepest["oracle_waste"],
    }
    for price, table in tables_of(run).items():
        made, cut = modelled_totals(table), oracle_totals(table)
        rivals = {"plain": PLAIN, "length": best_length(rows, price, suite)}
        found[PRICES[price]] = deepest[f"{'gpu_' * (price == 'gpu')}oracle_{SPEED}"]
        for name, rival in rivals.items():
            ratio = rival and pooled_speedup(pair(records, DEEPEST, rival, cut, made))
            found |= named(f"{price}_vs_{name}", ratio or None)
    return found


def gap_closed(rows: Rows, oracle: Row | None, method: str, price: str) -> float | None:
    """The share of the way from the best fixed length to the oracle that a method goes, over all suites.

    In tokens per second. Below 0 for what is slower than the best length, above 1 for what passes the oracle.
    """
    speed = PRICES[price]
    speeds = {row["method"]: row[speed] for row in rows if row["suite"] == ALL}
    best, mine = speeds.get(best_length(rows, price) or ""), speeds.get(method)
    top = oracle and oracle.get(speed)
    if top is None or best is None or mine is None or top <= best:
        return None
    return float((mine - best) / (top - best))


# --- the host's work ---------------------------------------------------------------------------------


def host_work(run: Run, method: str) -> dict[str, float | None]:
    """What the host does in a round of a method beyond what it does in one of plain decoding.

    `draft_host_ms` is drafting without the head's passes, these priced by the run's table; `host_share` it
    and what verification and the rest take beyond plain decoding's, as a share of the round. Both by the
    clock; `modelled_host_share` is the same by the table alone.
    """
    stats, plain = _stats(run, method), _stats(run, PLAIN)
    costs = run.costs and run.costs.draft_costs(method)
    if not costs or not stats.rounds:
        return dict.fromkeys(("draft_host_ms", "host_share", "modelled_host_share"))
    passes_s = sum(costs(r.draft_rows, r.context) - costs.host_s for r in stats.rounds)
    draft_s = sum(r.draft_s for r in stats.rounds) - passes_s
    more_s = _beside_s(stats) - len(stats.rounds) * _beside_s(plain) / max(len(plain.rounds), 1)
    table = run.costs
    round_s = [table.round_s(r, method) if table else None for r in stats.rounds]
    modelled_s = sum(seconds or 0.0 for seconds in round_s)
    return {
        "draft_host_ms": 1000 * draft_s / len(stats.rounds),
        "host_share": (draft_s + more_s) / stats.decode_s if stats.decode_s else None,
        "modelled_host_share": costs.host_s * len(stats.rounds) / modelled_s
        if modelled_s
        else None,
    }


def _beside_s(stats: Statistics) -> float:
    """Seconds outside of drafting and the target's pass."""
    return sum(r.total_s - r.draft_s - r.target_s for r in stats.rounds)


def _stats(run: Run, method: str) -> Statistics:
    return Statistics.pool(a.stats for record in run.records for a in record.of(method))
