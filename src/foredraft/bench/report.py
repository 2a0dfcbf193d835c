"""Writes what a run's folder shows: `results.json`, `report.md` and the plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from foredraft.bench.folder import COSTS, Run, RunFolder
from foredraft.bench.modelled import pricing_of
from foredraft.bench.plan import PLAIN
from foredraft.bench.plots import write_plots
from foredraft.bench.report_tables import (
    draft_table,
    group_table,
    speed_table,
    time_table,
    waste_table,
)
from foredraft.bench.rows import ALL, Rows, by_group, results_document
from foredraft.errors import ConfigError, ForedraftError, PromptError
from foredraft.files import write_json, write_text

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
- *Modelled* figures are counted rounds priced by a cost table. The rounds have no noise, but the table was
  measured: figures priced by one table compare, those of two tables do not. Of peers (hf, llama.cpp and
  the like) passes alone are priced (in parentheses), so only their measured figures compare with other
  methods'.
- The *oracle* keeps of each draft of the method the levels that were accepted: the length that AdaEAGLE
  calls optimal. It is the method's own rounds with a perfect guess of the depth; of a chain that is long
  enough, it is the best that any choice of length can do (docs/metrics.md).
- tau is 1 + accepted draft tokens per round; "tokens/pass" also counts rounds that an answer's end cut.
- "request" is prefill and decoding together, per token of the answer.
- –: not known. A stage that cannot be seen has no time of its own; it is part of "other".
- "identical" holds each answer against plain decoding's: a tie is a first difference that float
  rounding explains, a bug one that it does not, n/a an answer that need not agree.
- "lossless: no" marks a method that changes the law of the answers: its speed buys other text, and does
  not compare with the others' as speed alone.
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
        PromptError: no prompt of the run could be answered.
    """
    run = folder.read()
    if not run.methods:
        raise _nothing_to_report(folder, run)
    document = results_document(run, pricing_of(run, costs))
    write_json(folder.path / RESULTS, document)
    plots = write_plots(folder.path, by_group(document))
    write_text(folder.path / REPORT, report_text(run, document, plots))
    return document


def _nothing_to_report(folder: RunFolder, run: Run) -> ForedraftError:
    if run.records:
        reasons = "; ".join(run.plan["notes"][:1])
        return PromptError(f"no prompt of {folder.path} could be answered ({reasons})")
    return ConfigError(
        f"{folder.path} has no finished prompt yet; `foredraft bench run` with the same settings goes on"
    )


def report_text(run: Run, document: Mapping[str, Any], plots: Sequence[str]) -> str:
    """The whole report in Markdown."""
    groups = by_group(document)
    pool = groups[ALL]
    sections = (
        f"# Benchmark: {run.plan['model']}",
        headline(run, pool),
        "## Speedup over plain decoding",
        group_table(groups),
        MARKS,
        _picture("speedup.png", plots),
        "## All suites together",
        speed_table(pool),
        _pricing(document["costs"]),
        _picture("cost.png", plots),
        "## Drafts",
        draft_table(pool),
        _picture("depth.png", plots),
        *_waste(pool),
        "## Time of a round, a token and a request",
        time_table(pool),
        _picture("stages.png", plots),
        "## Notes",
        _notes(document["notes"]),
        "## How to read this",
        HOW_TO_READ,
        "## Provenance",
        "\n".join(_provenance(run)),
    )
    return "\n\n".join(section.strip() for section in sections if section) + "\n"


def _waste(pool: Rows) -> Sequence[str]:
    table = waste_table(pool)
    return ("### Passes and waste, per emitted token", table) if table else ()


def _pricing(costs: Mapping[str, Any] | None) -> str:
    """Which cost table the modelled figures are from."""
    if costs is None:
        return "There are no modelled figures: this run has no cost table."
    own = "the cost table measured with this run"
    source = own if costs["source"] == COSTS else f"the cost table {costs['source']}"
    return f"Modelled figures are priced by {source}; figures of another table do not compare with them."


def headline(run: Run, pool: Rows) -> str:
    """What was run on what, and its result in one sentence."""
    made = run.plan.get("provenance", {})
    dtype = made.get("dtype") or run.plan.get("dtype") or "default dtype"
    hardware = made.get("cpu") if made.get("device", "cpu") == "cpu" else made["device"]
    prompts = max(row["prompts"] for row in pool)
    where = f"{dtype}, {hardware or 'unknown hardware'}, {made.get('threads', '?')} threads"
    what = f"{prompts} prompts of {', '.join(run.suites)}"
    command = f"\n\n```\n{made['command']}\n```" if "command" in made else ""
    return f"**{_winner(run, pool)}**\n\n{where}; {what}.{command}"


def _winner(run: Run, pool: Rows) -> str:
    """The fastest that answered as plain decoding does, and any other that was faster still."""
    reasons = run.plan.get("comparable", {})
    rivals = [row for row in pool if row["method"] != PLAIN and row["identical"] != "bug"]
    faster = [row for row in rivals if (row["speedup_vs_plain_low"] or 0) > 1]
    alike = [row for row in faster if reasons.get(row["method"]) is None]
    others = [row for row in faster if reasons.get(row["method"]) is not None]
    if not alike:
        said = f"No method with plain decoding's answers was faster beyond chance; {_bugs(pool)}"
        return " ".join([said, *(_faster_still(row, reasons) for row in others)])
    best = max(alike, key=_speedup)
    said = (
        f"{best['method']} was the fastest measured: {_speedup(best):.2f} times plain decoding's speed "
        f"(95 % interval {best['speedup_vs_plain_low']:.2f} to {best['speedup_vs_plain_high']:.2f}); "
        f"{_bugs(pool)}"
    )
    ahead = [row for row in others if _speedup(row) > _speedup(best)]
    return " ".join([said, *(_faster_still(row, reasons) for row in ahead)])


def _speedup(row: Mapping[str, Any]) -> float:
    return float(row["speedup_vs_plain"])


def _faster_still(row: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    return (
        f"{row['method']} had {_speedup(row):.2f} times that speed, but need not give the same answers: "
        f"{reasons[row['method']]}."
    )


def _bugs(pool: Rows) -> str:
    wrong = sum(row["identical_counts"]["bug"] for row in pool)
    ties = sum(row["identical_counts"]["tie"] for row in pool)
    if wrong:
        return f"{wrong} {'answer is' if wrong == 1 else 'answers are'} wrong (see notes)."
    return f"no answer is wrong, float ties: {ties}." if ties else "no answer differs."


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
