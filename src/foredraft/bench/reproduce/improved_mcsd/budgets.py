"""The best shape of each family at an equal budget, chosen by modelled time in hindsight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from foredraft.bench.folder import Run
from foredraft.bench.intervals import named
from foredraft.bench.modelled import modelled_totals, read_costs
from foredraft.bench.priced_twice import GPU_COSTS
from foredraft.bench.reproduce.improved_mcsd.line_up import ABLATED, CHAINS, TREES, Shape, shapes
from foredraft.bench.rows import ALL, Rows
from foredraft.bench.speedups import pair, pooled_speedup
from foredraft.bench.tables import markdown_table, marked, number, speedup
from foredraft.costs import CostTable

TABLES = {"modelled": "this machine", "gpu_modelled": "GPU-like"}
"""By which price the best shape is chosen."""
RIVALS = {"chain": CHAINS, "mcsd": TREES, "ablated": ABLATED}
"""Families whose best shape every other family's is held against."""
HEADER = (
    *("family", "best shape", "rows", "tokens/pass", "modelled vs plain", "measured vs plain"),
    *(
        f"{kind} vs {rival}"
        for rival in ("best chain", "best MCSD", "best without the target's laws")
        for kind in ("modelled", "measured")
    ),
)


def best_shapes(
    run: Run, rows: Rows, budgets: Sequence[int], decision: str | None = None
) -> list[dict[str, Any]]:
    """A row for each price, budget and family: its best shape, and ratios to the best of each rival.

    `modelled_vs_chain`, `.._vs_mcsd` and `.._vs_ablated` (and `measured_..`) are how many times as fast it
    is as the best chain, the best tree of MCSD, and the best of the improved method without the target's
    laws; with the same budget, on the same prompts.

    Args:
        run: every shape on the same prompts.
        rows: its rows, as `priced_twice.document_of` gives them.
        budgets: draft tokens of a round at most.
        decision: as in `shapes`.
    """
    pool = {row["method"]: row for row in rows if row["suite"] == ALL}
    return [
        found
        for price in TABLES
        for budget in budgets
        for found in _by_family(run, pool, price, shapes(budget, decision), budget)
    ]


def _by_family(
    run: Run,
    pool: Mapping[str, Mapping[str, Any]],
    price: str,
    allowed: Sequence[Shape],
    budget: int,
) -> Iterator[dict[str, Any]]:
    figure = f"{price}_tokens_per_s"
    best: dict[str, Shape] = {}
    for shape in allowed:
        speed = pool.get(shape.method, {}).get(figure)
        rival = best.get(shape.family)
        if speed is not None and (rival is None or speed > pool[rival.method][figure]):
            best[shape.family] = shape
    costs = run.costs if price == "modelled" else read_costs(GPU_COSTS, run.methods)
    for family, shape in best.items():
        row = pool[shape.method]
        yield {
            "price": price,
            "budget": budget,
            "family": family,
            "method": shape.method,
            "rows": shape.rows,
            "lossless": row["lossless"],
            "tokens_per_pass": row["tokens_per_pass"],
            **_copied(row, f"{price}_speedup_vs_plain", "modelled_vs_plain"),
            **_copied(row, "speedup_vs_plain", "measured_vs_plain"),
            **_against_rivals(run, shape.method, best, costs),
        }


def _copied(row: Mapping[str, Any], name: str, as_name: str) -> dict[str, Any]:
    return {f"{as_name}{end}": row[f"{name}{end}"] for end in ("", "_low", "_high")}


def _against_rivals(
    run: Run, method: str, best: Mapping[str, Shape], costs: CostTable | None
) -> dict[str, float | None]:
    """How many times as fast as each rival's best, by the table and by the clock, on the same prompts."""
    ratios: dict[str, float | None] = {}
    for rival, family in RIVALS.items():
        by_table = by_clock = None
        if family in best:
            other = best[family].method
            by_clock = pooled_speedup(pair(run.records, method, other))
            if costs is not None:
                by_table = pooled_speedup(pair(run.records, method, other, modelled_totals(costs)))
        ratios |= named(f"modelled_vs_{rival}", by_table) | named(f"measured_vs_{rival}", by_clock)
    return ratios


def budget_tables(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A heading and a table for each price and budget."""
    for price, machine in TABLES.items():
        for budget in dict.fromkeys(row["budget"] for row in found):
            rows = [r for r in found if (r["price"], r["budget"]) == (price, budget)]
            if rows:
                yield f"### {budget} draft tokens, priced by {machine}"
                yield markdown_table(HEADER, map(_cells, rows))


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row["family"],
        marked(row),
        str(row["rows"]),
        number(row["tokens_per_pass"], 2),
        *(speedup(row, f"{kind}_vs_plain") for kind in ("modelled", "measured")),
        *(
            speedup(row, f"{kind}_vs_{rival}")
            for rival in RIVALS
            for kind in ("modelled", "measured")
        ),
    ]
