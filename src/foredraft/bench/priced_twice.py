"""The rows of a run priced by two tables: this machine's, and one like that of a large GPU."""

from __future__ import annotations

from typing import Any

from foredraft.bench.folder import Run
from foredraft.bench.modelled import pricing_of
from foredraft.bench.rows import results_document
from foredraft.costs import CostTable

GPU_COSTS = "flat:level=0.02"
"""A pass costs the same whatever its width, and a draft pass a fiftieth of it: what the papers' machines
are like for a draft model of 68 M parameters beside a target of 7 B."""
FIGURES = (
    "modelled_tokens_per_s",
    "oracle_modelled_tokens_per_s",
    *(f"modelled_speedup_vs_plain{end}" for end in ("", "_low", "_high")),
)
PAPER_ROWS = (45, 82)
"""Rows of a target pass over MCSD's tree (4,2,2,1) and over the improved one (2,4,3,1,1)."""


def document_of(run: Run, gpu_costs: str = GPU_COSTS) -> dict[str, Any]:
    """As `results_document`, with `gpu_..` beside every modelled figure of a row.

    Args:
        run: complete or not.
        gpu_costs: the other table, as `read_costs` takes it.
    """
    document = results_document(run, pricing_of(run, None))
    flat = results_document(run, pricing_of(run, gpu_costs))
    document["rows"] = [
        row | {f"gpu_{name}": other[name] for name in FIGURES}
        for row, other in zip(document["rows"], flat["rows"], strict=True)
    ]
    return document


def width_costs(costs: CostTable, context: int) -> dict[int, float]:
    """What passes of the papers' widths cost here, in passes of one row behind the same context."""
    return {rows: costs.target(rows, context) / costs.target(1, context) for rows in PAPER_ROWS}


def mean_context(run: Run) -> int:
    """Cached tokens before a pass of plain decoding or of a method, the mean over all rounds."""
    contexts = [
        r.context
        for record in run.records
        for answer in record.answers
        for r in answer.stats.rounds
    ]
    return round(sum(contexts) / len(contexts)) if contexts else 0


def width_sentence(run: Run) -> str:
    """What the papers' shapes cost on this machine, in one sentence; empty without a cost table."""
    if run.costs is None:
        return ""
    context = mean_context(run)
    narrow, wide = width_costs(run.costs, context).values()
    return (
        f"At the papers' shapes a pass is not flat here: one of {PAPER_ROWS[0]} rows costs {narrow:.1f} "
        f"and one of {PAPER_ROWS[1]} rows {wide:.1f} times a pass of one row (the cost table measured with "
        f"this run, {context} cached tokens), where on a large GPU it costs little more than one."
    )
