"""What the report of *Improving MCSD* shows: speeds by two prices, acceptance, and quality."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from foredraft.bench.folder import Run
from foredraft.bench.priced_twice import GPU_COSTS, document_of, width_sentence
from foredraft.bench.quality.figures import answer_quality
from foredraft.bench.quality.report import interval, quality_table
from foredraft.bench.reproduce.improved_mcsd.budgets import best_shapes, budget_tables
from foredraft.bench.reproduce.improved_mcsd.published import CITATION, TABLES
from foredraft.bench.reproduce.paper_report import Document, PaperReport
from foredraft.bench.reproduce.plan import ReproducePlan
from foredraft.bench.rows import ALL, Rows
from foredraft.bench.scoring import Scores
from foredraft.bench.suites import BUILTIN
from foredraft.bench.tables import identical, markdown_table, number, percent, speedup
from foredraft.errors import ConfigError

RESULTS, QUALITY = "results.json", "quality"

SPEED = (
    *("", "lossless", "tokens/pass", "tokens/s", "vs plain", "modelled vs plain"),
    *("modelled, GPU-like", "identical"),
)
ACCEPTANCE = ("", "lossless", "acceptance", "path acceptance", "tau", "drafted/round")
LIKELIHOOD = ("", "lossless", "greedy agreement", "minus plain's", "log p minus plain's", "at T")

HOW_TO_READ = f"""
- lossless: no marks methods that change the law of the answers. Their speed buys other text, and what it
  costs is in the columns of quality: *greedy agreement* is the share of emitted tokens that are the argmax
  of the target's law given the text so far, *log p* the nats per token that the target gives the answer (its
  raw law, and its law at the temperature), both less plain decoding's on the same prompts with two-sided
  95 % intervals. Rows that keep the law are controls: what they differ by is chance.
- *path acceptance* is the paper's rate: accepted draft tokens / the draft's depth, roots not counted.
  *acceptance* divides by all draft tokens. tau = 1 + accepted per round.
- *modelled*: counted rounds priced by the cost table of this machine, measured at the temperature of the run:
  each method's drawing, filtering and rejecting is in it. *GPU-like* prices the same rounds by
  `{GPU_COSTS}`: every target pass costs the same whatever its width, a draft pass 2 % of it.
- Speeds compare within one temperature. The published figures are of other models on other machines.
"""
FORK_SIZE = "The fork has 8 roots here, where the paper's has 16: a pass of 48 rows in place of 96."
IN_SAMPLE = (
    "The shares of mcsd-improved (how much it drafts from the target's earlier laws and from the text) were "
    "tuned on ten of the built-in questions, so its figures on the built-in suite are in-sample: other "
    "suites tell what it gains elsewhere."
)
HINDSIGHT = (
    "Every shape answered the same prompts, and the best one of each family was chosen by modelled time on "
    "those very prompts: in hindsight, which flatters families with many shapes. A budget is of draft "
    "tokens; with the root, a target pass has one row more. Open roots are candidates, and counted. "
    "Drafts that a decision model ends have these rows at most, and are priced by those that they have."
)


def _part(plan: ReproducePlan, run: Run, folder: Path, temperature: float) -> dict[str, Any]:
    """One temperature."""
    document = document_of(run)
    labels = {entry.method: entry.label for entry in plan.entries(temperature)}
    scores = Scores(folder)
    rows = [
        {
            "temperature": temperature,
            "label": labels[row["method"]],
            **row,
            **_quality_of(run, scores, row),
        }
        for row in document["rows"]
    ]
    found = best_shapes(run, rows, plan.budgets, plan.decision_at(temperature))
    return {
        "rows": rows,
        "budgets": [{"temperature": temperature, **row} for row in found],
        "widths": width_sentence(run),
        "notes": [f"T = {temperature:g}: {note}" for note in document["notes"]],
    }


def _extras(parts: Sequence[Document]) -> dict[str, Any]:
    """The best shapes at equal budgets, and what wide passes cost."""
    return {
        "budgets": [row for part in parts for row in part["budgets"]],
        "widths": parts[0]["widths"],
    }


def _quality_of(run: Run, scores: Scores, row: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of quality, of the pool of all suites alone."""
    return answer_quality(run, scores, row["method"]) if row["suite"] == ALL else {}


def _quality(path: Path) -> Rows:
    """The rows of `foredraft bench quality --out PATH/quality`, if it was made."""
    file = path / QUALITY / RESULTS
    if not file.exists():
        return ()
    try:
        rows: Rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
        return rows
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{file} cannot be read ({error}); make it anew") from None


# --- the report -------------------------------------------------------------------------------------


def _sections(document: Document, path: Path) -> Iterator[str]:
    yield document["widths"]
    yield from _tables(document)
    yield from _quality_sections(_quality(path))


def _notes(document: Document) -> Iterator[str]:
    suites = document["plan"]["suites"].split(",")
    if any(name.strip().split("/")[0] == BUILTIN for name in suites):
        yield IN_SAMPLE
    if not document["budgets"]:
        yield FORK_SIZE
    yield from document["notes"]


def _tables(document: Document) -> Iterator[str]:
    if document["budgets"]:
        yield "## Families at equal budgets"
        yield HINDSIGHT
    for temperature in document["plan"]["temperatures"]:
        pool = [
            row
            for row in document["rows"]
            if row["temperature"] == temperature and row["suite"] == ALL
        ]
        if pool:
            yield f"## Temperature {temperature:g}, {pool[0]['prompts']} prompts"
            yield from budget_tables(
                [row for row in document["budgets"] if row["temperature"] == temperature]
            )
            yield from (speed_table(pool), acceptance_table(pool), likelihood_table(pool))


def speed_table(pool: Rows) -> str:
    """Speeds, measured and by two prices."""
    body = [
        [
            row["label"],
            row["lossless"],
            number(row["tokens_per_pass"], 2),
            number(row["tokens_per_s"], 1),
            speedup(row, "speedup_vs_plain"),
            speedup(row, "modelled_speedup_vs_plain"),
            speedup(row, "gpu_modelled_speedup_vs_plain"),
            identical(row),
        ]
        for row in pool
    ]
    return markdown_table(SPEED, body)


def acceptance_table(pool: Rows) -> str:
    """What became of drafts."""
    body = [
        [
            row["label"],
            row["lossless"],
            percent(row["acceptance_rate"]),
            number(row["path_acceptance_rate"], 2),
            number(row["mean_acceptance_length"], 2),
            number(row["drafted_tokens"] / max(row["rounds"] - row["cut_rounds"], 1), 1),
        ]
        for row in pool
        if row["drafted_tokens"]
    ]
    return markdown_table(ACCEPTANCE, body)


def likelihood_table(pool: Rows) -> str:
    """What the target thinks of the answers."""
    body = [
        [
            row["label"],
            row["lossless"],
            percent(row["greedy_agreement"]),
            interval(row, "greedy_agreement_difference", 3),
            interval(row, "log_prob_difference", 3),
            interval(row, "tempered_log_prob_difference", 3),
        ]
        for row in pool
    ]
    return markdown_table(LIKELIHOOD, body)


def _quality_sections(quality: Rows) -> Sequence[str]:
    if not quality:
        return (
            "The law of the root, and accuracy, by number of roots and drafter: `foredraft bench quality "
            f"--out DIR/{QUALITY}`, with DIR the folder of this report, puts them here.",
        )
    return ("## Quality by number of roots", quality_table(quality))


IMPROVED_MCSD_REPORT = PaperReport(
    citation=CITATION,
    tables=TABLES,
    part=_part,
    extras=_extras,
    sections=_sections,
    notes=_notes,
    how_to_read=HOW_TO_READ,
)
