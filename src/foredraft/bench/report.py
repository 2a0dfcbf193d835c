"""Writes what a run's folder shows: `results.json`, `report.md` and the plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from foredraft.bench.folder import Run, RunFolder, write_json, write_text
from foredraft.bench.modelled import read_costs
from foredraft.bench.plan import PLAIN
from foredraft.bench.plots import Rows, write_plots
from foredraft.bench.rows import ALL, results_document
from foredraft.bench.speedups import HF
from foredraft.bench.tables import markdown_table, ms, number, percent, speedup
from foredraft.errors import ConfigError

RESULTS, REPORT = "results.json", "report.md"

CAPTIONS = {
    "speedup.png": "Speedup by suite and method",
    "cost.png": "Tokens of a round against its cost",
    "depth.png": "Acceptance by depth",
    "stages.png": "Time of a token by stage",
}

REQUEST = ("max_new_tokens", "temperature", "top_p", "top_k", "seed", "repeats", "limit", "drafter")

MARKS = "In brackets: the 95 % interval. ▲ faster, ▼ slower, ≈ no difference beyond chance."

HOW_TO_READ = """
- A speedup of 1.50 means 1.5 times the tokens per second of the baseline, on the same prompts of this
  run. Its interval tells what other prompts of the same kind would have given.
- ▲ and ▼: the interval leaves out 1. ≈: these prompts show no difference, whatever the figure says.
  ?: a single prompt, which tells nothing about chance.
- *Modelled* figures are not measured: they are counted rounds priced by a cost table, so noise cannot
  touch them. The *oracle* is the same drafts with the best length known in hindsight.
- tau is 1 + accepted draft tokens per round; "tokens/pass" also counts rounds that an answer's end cut.
- "identical" holds each answer against plain decoding's: a tie is a first difference that float
  rounding explains, a bug one that it does not, n/a an answer that need not agree.
"""


def write_report(folder: RunFolder, costs: str | None = None) -> dict[str, Any]:
    """Make `results.json`, `report.md` and the plots of a run, complete or not.

    Args:
        folder: the run's folder; what it was measured to is only read.
        costs: the table that prices rounds, as `read_costs` takes it; None takes the run's own.

    Returns:
        What `results.json` holds.

    Raises:
        ConfigError: the folder holds no run or no finished prompt, or a library is not installed.
    """
    run = folder.read()
    if not run.methods:
        raise ConfigError(
            f"{folder.path} has no finished prompt yet; `foredraft bench run` with the same settings goes on"
        )
    document = results_document(run, read_costs(costs, run.methods) if costs else None)
    plots = write_plots(folder.path, document["rows"])
    write_json(folder.path / RESULTS, document)
    write_text(folder.path / REPORT, report_text(run, document, plots, priced_by(run, costs)))
    return document


def priced_by(run: Run, costs: str | None) -> str:
    """Which cost table the modelled figures are from, in words."""
    if costs is not None:
        return f"by the cost table {costs}, not by this machine's"
    if run.costs is not None:
        return "by the cost table measured with this run"
    return "not at all: this run has no cost table"


def report_text(run: Run, document: Mapping[str, Any], plots: Sequence[str], pricing: str) -> str:
    """The whole report in Markdown."""
    rows = document["rows"]
    pool = [row for row in rows if row["suite"] == ALL]
    sections = (
        f"# Benchmark: {run.plan['model']}",
        headline(run, pool),
        "## Speedup over plain decoding",
        _by_suite(rows),
        MARKS,
        _picture("speedup.png", plots),
        "## All suites together",
        _speed_table(pool),
        f"Modelled speeds are priced {pricing}.",
        _picture("cost.png", plots),
        "## Drafts",
        _draft_table(pool),
        _picture("depth.png", plots),
        "## Time of a round",
        _time_table(pool),
        _picture("stages.png", plots),
        "## Notes",
        _notes(document["notes"]),
        "## How to read this",
        HOW_TO_READ,
        "## Provenance",
        "\n".join(_provenance(run)),
    )
    return "\n\n".join(section.strip() for section in sections if section) + "\n"


def headline(run: Run, pool: Rows) -> str:
    """What was run on what, and its result in one sentence."""
    made = run.plan.get("provenance", {})
    dtype = run.plan.get("loaded_dtype") or run.plan.get("dtype") or "default dtype"
    hardware = made.get("cpu") if made.get("device", "cpu") == "cpu" else made["device"]
    prompts = max(row["prompts"] for row in pool)
    where = f"{dtype}, {hardware or 'unknown hardware'}, {made.get('threads', '?')} threads"
    what = f"{prompts} prompts of {', '.join(run.suites)}"
    command = f"\n\n```\n{made['command']}\n```" if "command" in made else ""
    return f"**{_winner(run, pool)}**\n\n{where}; {what}.{command}"


def _winner(run: Run, pool: Rows) -> str:
    """The fastest of those that must answer as plain decoding does: others may run another model."""
    reasons = run.plan.get("comparable", {})
    rivals = [row for row in pool if row["method"] != PLAIN and reasons.get(row["method"]) is None]
    faster = [row for row in rivals if (row["speedup_vs_plain_low"] or 0) > 1]
    if not faster:
        return f"No method was faster than plain decoding beyond chance; {_bugs(pool)}"
    best = max(faster, key=lambda row: float(row["speedup_vs_plain"]))
    return (
        f"{best['method']} was fastest: {best['speedup_vs_plain']:.2f} times plain decoding's speed "
        f"(95 % interval {best['speedup_vs_plain_low']:.2f} to {best['speedup_vs_plain_high']:.2f}); "
        f"{_bugs(pool)}"
    )


def _bugs(pool: Rows) -> str:
    wrong = sum(row["identical_counts"]["bug"] for row in pool)
    ties = sum(row["identical_counts"]["tie"] for row in pool)
    if wrong:
        return f"{wrong} {'answer is' if wrong == 1 else 'answers are'} wrong (see notes)."
    return f"no answer is wrong, float ties: {ties}." if ties else "no answer differs."


def _by_suite(rows: Rows) -> str:
    suites = list(dict.fromkeys(row["suite"] for row in rows))
    shown = suites if len(suites) > 2 else suites[:1]  # the pool of one suite is that suite
    cells = {(row["method"], row["suite"]): speedup(row, "speedup_vs_plain") for row in rows}
    methods = [method for method in dict.fromkeys(row["method"] for row in rows) if method != PLAIN]
    body = [[method, *(cells.get((method, suite), "–") for suite in shown)] for method in methods]
    return markdown_table(["method", *shown], body)


def _speed_table(pool: Rows) -> str:
    header = ("method", "tokens/s", "vs plain", "vs plain, median prompt", f"vs {HF}")
    more = ("modelled tokens/s", "modelled vs plain", "identical")
    body = [
        [
            row["method"],
            number(row["tokens_per_s"], 1),
            speedup(row, "speedup_vs_plain"),
            speedup(row, "speedup_vs_plain_median"),
            speedup(row, "speedup_vs_hf"),
            number(row["modelled_tokens_per_s"], 1),
            number(row["modelled_speedup_vs_plain"], 2),
            _identical(row),
        ]
        for row in pool
    ]
    return markdown_table([*header, *more], body)


def _identical(row: Mapping[str, Any]) -> str:
    counts = row["identical_counts"]
    differing = [f"{counts[kind]} {kind}" for kind in ("bug", "tie") if counts[kind]]
    return f"{', '.join(differing)} of {row['turns']}" if differing else str(row["identical"])


def _draft_table(pool: Rows) -> str:
    drafting = [row for row in pool if row["drafted_tokens"]]
    if not drafting:
        return "No method drafted."
    header = ("method", "tokens/pass", "tau", "acceptance", "by depth", "drafted in vain")
    oracle = ("modelled tokens/s", "with the oracle's lengths")
    body = [
        [
            row["method"],
            number(row["tokens_per_pass"], 2),
            number(row["mean_acceptance_length"], 2),
            percent(row["acceptance_rate"]),
            " ".join(percent(share) for share in row["accepted_per_depth"]),
            f"{number(row['waste'], 1)} per token",
            number(row["modelled_tokens_per_s"], 1),
            number(row["oracle_modelled_tokens_per_s"], 1),
        ]
        for row in drafting
    ]
    return markdown_table([*header, *oracle], body)


def _time_table(pool: Rows) -> str:
    header = (
        "method",
        "draft ms",
        "target ms",
        "verify ms",
        "other ms",
        "ms/token",
        "TTFT ms",
        "spread",
    )
    body = [
        [
            row["method"],
            *(ms(row[stage]) for stage in ("draft_ms", "target_ms", "verify_ms", "other_ms")),
            ms(row["tpot_ms"]),
            ms(row["ttft_ms"]),
            percent(row["spread"]),
        ]
        for row in pool
    ]
    return markdown_table(header, body)


def _notes(notes: Sequence[str]) -> str:
    return (
        "\n".join(f"- {note}" for note in notes) or "None: every method ran, every answer agrees."
    )


def _picture(name: str, plots: Sequence[str]) -> str:
    return f"![{CAPTIONS[name]}]({name})" if name in plots else ""


def _provenance(run: Run) -> Iterator[str]:
    made = dict(run.plan.get("provenance", {}))
    packages = made.pop("packages", {})
    request = {name: run.plan[name] for name in REQUEST if run.plan.get(name) is not None}
    yield from (f"- {name}: {value}" for name, value in made.items() if value is not None)
    yield "- packages: " + ", ".join(f"{name} {version}" for name, version in packages.items())
    yield "- request: " + ", ".join(f"{name} {value}" for name, value in request.items())
    for again in run.plan.get("resumed", ()):
        yield f"- resumed: {again['date']}, revision {again['revision']}"
