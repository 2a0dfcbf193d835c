"""Writes what the comparison of draft lengths shows, beside AdaEAGLE's own figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from foredraft.bench.folder import Run, RunFolder
from foredraft.bench.priced_twice import GPU_COSTS, document_of
from foredraft.bench.reproduce.lengths_figures import (
    against,
    best_fixed_length,
    calls_of,
    contests,
    gap_closed,
    oracle_of,
)
from foredraft.bench.reproduce.lengths_published import CITATION, TABLES
from foredraft.bench.reproduce.plan import ReproducePlan
from foredraft.bench.reproduce.published import Published
from foredraft.bench.rows import ALL
from foredraft.bench.tables import identical, markdown_table, number, percent, speedup
from foredraft.errors import ConfigError
from foredraft.files import write_json, write_text

RESULTS, REPORT = "results.json", "report.md"
HEADER = (
    *("", "tau", "modelled vs plain", "modelled vs best fixed length", "modelled, GPU-like"),
    *(
        "measured vs plain",
        "draft calls",
        "target calls",
        "wasted/token",
        "host share",
        "identical",
    ),
)
CONTEST = ("suite", "against the", "fixed structure", "modelled", "measured")
HOW_TO_READ = f"""
- *modelled*: counted rounds priced by the cost table of this machine, the primary figure: deterministic at
  temperature 0, but for prices that `adaptive` corrects while it runs. *GPU-like* prices the same rounds by
  `{GPU_COSTS}`; `adaptive` planned them by this machine's costs.
- *best fixed length*: of chains of 1 to 8, chosen in hindsight on these very prompts. Ratios have two-sided
  95 % intervals from resampling the prompts.
- *oracle*: the longest chain, each draft of it as long as it was accepted: what AdaEAGLE calls the optimal
  draft length. It wastes nothing, and calls the head once for each accepted token.
- *draft calls* and *target calls* are passes over all prompts; *wasted/token* is drafted and not accepted per
  emitted token; *host share* is the part of a round's time outside of drafting and the target's pass.
- tau = 1 + accepted per round, of rounds that no stop cut short.
- The published figures are of another model, head and machine, whose draft call costs a twentieth of a pass.
"""


def write_lengths(plan: ReproducePlan, path: Path) -> dict[str, Any]:
    """Make `results.json` and `report.md` from the runs that have a finished prompt.

    Returns:
        What `results.json` holds.

    Raises:
        ConfigError: no prompt is finished yet.
    """
    parts = [part for t, name in plan.folders.items() if (part := _part(plan, path / name, t))]
    if not parts:
        raise ConfigError(f"{path} has no finished prompt yet; the same command goes on")
    document = {
        "provenance": parts[0]["provenance"],
        "plan": plan.as_dict(),
        "paper": {"citation": CITATION, "tables": [_as_dict(table) for table in TABLES]},
        "rows": [row for part in parts for row in part["rows"]],
        "temperatures": [
            {name: part[name] for name in ("temperature", "oracle", "contests", "gap_closed")}
            for part in parts
        ],
        "notes": list(dict.fromkeys(note for part in parts for note in part["notes"])),
    }
    write_json(path / RESULTS, document)
    write_text(path / REPORT, _text(document))
    return document


def _part(plan: ReproducePlan, folder: Path, temperature: float) -> dict[str, Any] | None:
    """One temperature; None before its first prompt is finished."""
    if not folder.exists() or RunFolder(folder).read_plan() is None:
        return None
    run = RunFolder(folder).read()
    if not run.methods:
        return None
    document = document_of(run)
    labels = {entry.method: entry.label for entry in plan.entries(temperature)}
    best = best_fixed_length(document["rows"])
    oracle = oracle_of(run)
    rows = [
        {"temperature": temperature, "label": labels[row["method"]], **row, **_more(run, row, best)}
        for row in document["rows"]
    ]
    return {
        "temperature": temperature,
        "provenance": document["provenance"],
        "rows": rows,
        "oracle": oracle,
        "contests": list(contests(run, rows)),
        "gap_closed": gap_closed(rows, oracle),
        "notes": document["notes"],
    }


def _more(run: Run, row: Mapping[str, Any], best: str | None) -> dict[str, Any]:
    """Figures of the pool of all suites alone."""
    if row["suite"] != ALL:
        return {}
    ratios = against(run, row["method"], best)
    return calls_of(run, row["method"]) | {f"{k}_to_length": v for k, v in ratios.items()}


def _as_dict(table: Published) -> dict[str, Any]:
    rows = {name: list(values) for name, values in table.rows.items()}
    return {"title": table.title, "columns": list(table.columns), "rows": rows}


# --- the report -------------------------------------------------------------------------------------


def _text(document: Mapping[str, Any]) -> str:
    sections = (
        f"# Reproduction of {document['plan']['paper']}: {document['plan']['model']}",
        f"```\n{document['provenance']['command']}\n```",
        *(line for part in document["temperatures"] for line in _sections(document, part)),
        "## As published",
        CITATION + ".",
        *(line for table in TABLES for line in (f"{table.title}:", _published(table))),
        "## Notes",
        "\n".join(f"- {note}" for note in document["notes"]) or "None.",
        "## How to read this",
        HOW_TO_READ,
    )
    return "\n\n".join(section.strip() for section in sections if section) + "\n"


def _published(table: Published) -> str:
    return markdown_table(("", *table.columns), table.cells())


def _sections(document: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[str]:
    temperature = part["temperature"]
    pool = [r for r in document["rows"] if r["temperature"] == temperature and r["suite"] == ALL]
    yield f"## Temperature {temperature:g}, {pool[0]['prompts']} prompts"
    yield length_table(pool, part["oracle"])
    if part["gap_closed"] is not None:
        yield (
            f"The adaptive policy goes {percent(part['gap_closed'])} of the way from the best fixed length "
            "to the oracle of chains, in modelled tokens per second."
        )
    if part["contests"]:
        yield "### The adaptive policy against fixed structures, chosen in hindsight"
        yield contest_table(part["contests"])


def length_table(pool: Sequence[Mapping[str, Any]], oracle: Mapping[str, Any] | None) -> str:
    """A row for each method, and the oracle's."""
    plain = next(
        (row["modelled_tokens_per_s"] for row in pool if row["method"] == "autoregressive"), None
    )
    body = [_cells(row) for row in pool]
    if oracle is not None:
        body.append(_oracle_cells(oracle, plain))
    return markdown_table(HEADER, body)


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row["label"],
        number(row["mean_acceptance_length"], 2),
        speedup(row, "modelled_speedup_vs_plain"),
        speedup(row, "modelled_ratio_to_length"),
        speedup(row, "gpu_modelled_speedup_vs_plain"),
        speedup(row, "speedup_vs_plain"),
        str(row["draft_calls"]),
        str(row["target_calls"]),
        number(row["wasted"] / max(row["completion_tokens"], 1), 2),
        percent(row["host_share"]),
        identical(row),
    ]


def _oracle_cells(oracle: Mapping[str, Any], plain: float | None) -> list[str]:
    speed = oracle["modelled_tokens_per_s"]
    ratio = speed / plain if speed and plain else None
    return [
        "oracle (chains)",
        number(oracle["mean_acceptance_length"], 2),
        number(ratio, 2),
        *("", "", ""),
        str(oracle["draft_calls"]),
        str(oracle["target_calls"]),
        number(0, 2),
        *("", ""),
    ]


def contest_table(found: Sequence[Mapping[str, Any]]) -> str:
    """How many times as fast the adaptive policy is as the best fixed structures."""
    body = [
        [
            row["suite"],
            row["rival"],
            row["method"],
            speedup(row, "modelled_ratio"),
            speedup(row, "measured_ratio"),
        ]
        for row in found
    ]
    return markdown_table(CONTEST, body)
