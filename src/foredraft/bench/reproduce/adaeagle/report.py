"""What the report of *AdaEAGLE* shows: draft lengths, the oracle, and the adaptive policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from foredraft.bench.folder import Run
from foredraft.bench.own_host import with_own_host
from foredraft.bench.plan import PLAIN
from foredraft.bench.priced_twice import document_of
from foredraft.bench.report_tables import per_token
from foredraft.bench.reproduce.adaeagle.figures import (
    GPU_COSTS,
    GPU_SPEED,
    SPEED,
    best_length,
    contests,
    gap_closed,
    host_work,
    oracles,
    over_best_length,
)
from foredraft.bench.reproduce.adaeagle.line_up import ADAPTIVE, LONGEST, fixed_structures, is_fixed
from foredraft.bench.reproduce.adaeagle.published import CALLS, CITATION, MAIN, TABLES
from foredraft.bench.reproduce.paper_report import Document, PaperReport
from foredraft.bench.reproduce.plan import ReproducePlan
from foredraft.bench.rows import ALL, Rows
from foredraft.bench.tables import NOTHING, identical, markdown_table, ms, number, percent, speedup

Row = Mapping[str, Any]

ORACLE = "oracle"
VS_PLAIN = (
    *("", "tau", "the paper's", "vs plain, modelled", "measured", "GPU-like", "the paper's"),
    "identical",
)
VS_LENGTH = (
    *("", "modelled", "measured", "GPU-like", "the paper's", "of the gap to the oracle"),
    "GPU-like",
)
WASTE = (
    *("", "target passes", "draft passes", "drafted in vain"),
    *("the paper's: target passes", "the paper's: draft passes", "the paper's: in vain"),
)
HOST = (
    *("", "draft ms", "of it host", "target ms", "verify ms", "other ms", "drafting's host share"),
    "by the table",
)
CONTESTS = ("suite", "best over all suites", "modelled", "measured")
OWN = ("the suite's own best", "modelled", "measured")
STRUCTURES = ("", "tau", "modelled tokens/s", "vs plain", "GPU-like vs plain", "measured vs plain")

HOW_TO_READ = f"""
- *modelled*: counted rounds priced by the cost table of this machine, the primary figure. At temperature 0
  rounds are deterministic, but for those of `adaptive`, which corrects prices while it runs. *GPU-like*
  prices the same rounds by `{GPU_COSTS}`: every target pass costs the same whatever its width, and one of
  the head a twentieth of it, as the paper says of its machine; `adaptive` planned its drafts by this
  machine's costs all the same. *measured* is the clock. Figures in brackets are 95 % intervals over
  prompts.
- *best fixed length*: of chains of 1 to {LONGEST}, and *best structure*: of those, trees and hybrids,
  chosen by modelled speed in hindsight, on these very prompts. The more structures there are, the more that
  flatters the best one. Where machines price differently, each has a best length of its own; by the clock,
  methods are held against the modelled best.
- *oracle*: the chain of {LONGEST}, each draft cut to what was accepted: the run of a predictor that always
  knows. It bounds chains of up to {LONGEST} tokens, not trees and copies (docs/metrics.md). *Of the gap to
  the oracle*: the share of the way from the best fixed length to it, in tokens per second.
- In modelled time a method's host work is the lower quartile over its own rounds of this run, which hundreds
  of rounds show better than the few of a calibration.
- tau = 1 + accepted per round, of rounds that no stop cut short. All suites are pooled: prompts with longer
  answers weigh more, where the paper takes the mean of six sets.
- *drafting's host share*: what the host does in a round beyond its work in plain decoding (drafting without
  the head's passes, verification, stop rules), as a share of the round; the policy's cost is part of it. By
  the clock the head's passes are taken off as the cost table prices them, so a busy machine shows in it;
  *by the table* is the lower quartile.
- The published figures are of another model, head and machine.
"""


def _part(plan: ReproducePlan, run: Run, folder: Path, temperature: float) -> dict[str, Any]:
    """One temperature."""
    run = with_own_host(run)
    document = document_of(run, GPU_COSTS)
    labels = {entry.method: entry.label for entry in plan.entries(temperature)}
    plain_rows: Rows = document["rows"]
    found = list(oracles(run, plain_rows))
    pooled = next((oracle for oracle in found if oracle["suite"] == ALL), None)
    rows = [
        {
            "temperature": temperature,
            "label": labels[row["method"]],
            **row,
            **(_of_pool(run, plain_rows, pooled, row["method"]) if row["suite"] == ALL else {}),
        }
        for row in plain_rows
    ]
    return {
        "rows": rows,
        "temperature": {
            "temperature": temperature,
            "best_length": {p: best_length(rows, p) for p in ("modelled", "gpu")},
            "oracles": found,
            "contests": list(contests(run, rows)) if plan.structures else [],
        },
        "notes": [f"T = {temperature:g}: {note}" for note in document["notes"]],
    }


def _of_pool(run: Run, rows: Rows, oracle: Row | None, method: str) -> dict[str, Any]:
    """Figures of all suites alone."""
    closed = {
        f"{price}_gap_closed": gap_closed(rows, oracle, method, price)
        for price in ("modelled", "gpu")
    }
    return {**over_best_length(run, rows, method), **closed, **host_work(run, method)}


def _extras(parts: Sequence[Document]) -> dict[str, Any]:
    return {"temperatures": [part["temperature"] for part in parts]}


# --- the report --------------------------------------------------------------------------------------


def _sections(document: Document, path: Path) -> Iterator[str]:
    for part in document["temperatures"]:
        rows = [r for r in document["rows"] if r["temperature"] == part["temperature"]]
        pool = [row for row in rows if row["suite"] == ALL]
        others = tuple(fixed_structures())
        named = [row for row in pool if row["method"] not in others]
        oracle = next((found for found in part["oracles"] if found["suite"] == ALL), None)
        yield f"## Temperature {part['temperature']:g}, {pool[0]['prompts']} prompts"
        yield _summary(pool, part)
        yield "### Against plain decoding"
        yield plain_table(named, oracle)
        yield "### Against the best fixed length"
        yield length_table(named, oracle)
        yield from _by_suite(rows, part["oracles"], others)
        yield "### Passes and waste, per emitted token"
        yield waste_table(named, oracle)
        yield "### A round's time"
        yield host_table(named)
        if part["contests"]:
            yield "### The adaptive policy against fixed structures"
            yield contest_table(part["contests"])
            yield "### Fixed structures, the fastest first"
            yield structure_table(pool)


def _summary(pool: Rows, part: Row) -> str:
    """The best fixed length and how far the adaptive policy goes beyond it, in two sentences."""
    labels = {row["method"]: row["label"] for row in pool}
    here, there = (labels.get(part["best_length"][p], NOTHING) for p in ("modelled", "gpu"))
    gpu = "too" if there == here else there
    said = f"The best fixed length in hindsight is {here} by this machine's costs, by GPU-like ones {gpu}."
    adaptive = next((row for row in pool if row["method"] == ADAPTIVE), None)
    if adaptive is None or adaptive["modelled_gap_closed"] is None:
        return said
    return (
        f"{said} `adaptive` has {speedup(adaptive, 'modelled_vs_length')} times the modelled speed of the "
        f"first, which is {percent(adaptive['modelled_gap_closed'])} of the way to the oracle of chains."
    )


def plain_table(pool: Rows, oracle: Row | None) -> str:
    """Tau and speeds over plain decoding, beside the paper's."""
    body = [
        [
            row["label"],
            number(row["mean_acceptance_length"], 2),
            number(MAIN.figure(row["label"], "tau"), 2),
            speedup(row, "modelled_speedup_vs_plain"),
            speedup(row, "speedup_vs_plain"),
            speedup(row, "gpu_modelled_speedup_vs_plain"),
            number(MAIN.figure(row["label"], "vs plain"), 2),
            identical(row),
        ]
        for row in pool
    ]
    if oracle is not None:
        tau = number(oracle["mean_acceptance_length"], 2)
        here, there = (_ratio(oracle, f"{price}_vs_plain") for price in ("modelled", "gpu"))
        body.append([ORACLE, tau, NOTHING, here, NOTHING, there, NOTHING, NOTHING])
    return markdown_table(VS_PLAIN, body)


def length_table(pool: Rows, oracle: Row | None) -> str:
    """Speeds over the best fixed length's, beside the paper's."""
    body = [
        [
            row["label"],
            *(speedup(row, f"{price}_vs_length") for price in ("modelled", "measured", "gpu")),
            number(MAIN.figure(row["label"], "vs best fixed length"), 2),
            percent(row["modelled_gap_closed"]),
            percent(row["gpu_gap_closed"]),
        ]
        for row in pool
        if row["method"] != PLAIN
    ]
    if oracle is not None:
        here, there = (_ratio(oracle, f"{price}_vs_length") for price in ("modelled", "gpu"))
        body.append([ORACLE, here, NOTHING, there, NOTHING, percent(1), percent(1)])
    return markdown_table(VS_LENGTH, body)


def _ratio(oracle: Row, name: str) -> str:
    """A ratio of the oracle, which has none of a price without a table."""
    return speedup(oracle, name) if name in oracle else NOTHING


def _by_suite(rows: Rows, found: Rows, others: Sequence[str]) -> Iterator[str]:
    """Modelled speeds over plain decoding, suite by suite, where there are several."""
    suites = list(dict.fromkeys(row["suite"] for row in rows))
    if len(suites) < 3:  # one, and that one as the pool
        return
    cells = {
        (row["label"], row["suite"]): number(row["modelled_speedup_vs_plain"], 2)
        for row in rows
        if row["method"] not in (PLAIN, *others)
    }
    cells |= {(ORACLE, f["suite"]): number(f.get("modelled_vs_plain"), 2) for f in found}
    labels = dict.fromkeys(label for label, _ in cells)
    body = [[label, *(cells.get((label, suite), NOTHING) for suite in suites)] for label in labels]
    yield "### By suite: modelled, against plain decoding"
    yield markdown_table(("", *suites), body)


def waste_table(pool: Rows, oracle: Row | None) -> str:
    """What an emitted token takes, beside the paper's on MT-Bench."""
    counted = [(row["label"], row) for row in pool if row["drafted_tokens"]]
    body = [
        [
            label,
            per_token(row, "target_passes"),
            per_token(row, "draft_passes"),
            number(row["waste"], 2),
            *(
                number(CALLS.figure(label, c), 2)
                for c in ("target passes", "draft passes", "waste")
            ),
        ]
        for label, row in [*counted, *([(ORACLE, oracle)] if oracle else [])]
    ]
    return markdown_table(WASTE, body)


def host_table(pool: Rows) -> str:
    """Where a round's time goes, and what of it is the host's for drafting."""
    body = [
        [
            row["label"],
            ms(row["draft_ms"]),
            ms(row["draft_host_ms"]),
            *(ms(row[f"{stage}_ms"]) for stage in ("target", "verify", "other")),
            percent(row["host_share"]),
            percent(row["modelled_host_share"]),
        ]
        for row in pool
    ]
    return markdown_table(HOST, body)


def contest_table(found: Rows) -> str:
    """How many times as fast the adaptive policy is as the best fixed structures."""
    body = [
        [
            row["suite"],
            row["overall"] or NOTHING,
            speedup(row, "modelled_vs_overall"),
            speedup(row, "measured_vs_overall"),
            row["own"] or NOTHING,
            speedup(row, "modelled_vs_own"),
            speedup(row, "measured_vs_own"),
        ]
        for row in found
    ]
    return markdown_table((*CONTESTS, *OWN), body)


def structure_table(pool: Rows) -> str:
    """Every fixed structure by modelled speed, the adaptive policy among them."""
    shown = [row for row in pool if is_fixed(row["method"]) or row["method"] == ADAPTIVE]
    body = [
        [
            row["method"],
            number(row["mean_acceptance_length"], 2),
            number(row[SPEED], 1),
            speedup(row, "modelled_speedup_vs_plain"),
            speedup(row, "gpu_modelled_speedup_vs_plain"),
            speedup(row, "speedup_vs_plain"),
        ]
        for row in sorted(shown, key=lambda row: -(row[SPEED] or row[GPU_SPEED] or 0.0))
    ]
    return markdown_table(STRUCTURES, body)


def _notes(document: Document) -> Iterator[str]:
    yield from document["notes"]


ADAEAGLE_REPORT = PaperReport(
    citation=CITATION,
    tables=TABLES,
    part=_part,
    extras=_extras,
    sections=_sections,
    notes=_notes,
    how_to_read=HOW_TO_READ,
)
