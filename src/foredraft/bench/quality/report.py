"""Writes what a measurement of quality shows: `results.json` and `report.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foredraft.bench.folder import Run, RunFolder
from foredraft.bench.plan import PLAIN
from foredraft.bench.priced_twice import document_of, width_sentence
from foredraft.bench.quality.contexts import RootChoices
from foredraft.bench.quality.figures import accuracy, answer_quality, root_quality
from foredraft.bench.quality.plan import lossy_methods
from foredraft.bench.quality.run import ANSWERS, TASKS, read_plan, roots_lines
from foredraft.bench.quality.tasks import make_tasks
from foredraft.bench.rows import ALL
from foredraft.bench.scoring import Scores
from foredraft.bench.tables import NOTHING, markdown_table, number, percent, speedup
from foredraft.errors import ConfigError
from foredraft.files import write_json, write_text

RESULTS, REPORT = "results.json", "report.md"
SPEED = ("tokens_per_pass", "mean_acceptance_length", "path_acceptance_rate")
SPEEDUPS = ("speedup_vs_plain", "modelled_speedup_vs_plain", "gpu_modelled_speedup_vs_plain")

HEADER = (
    *("drafter", "W", "lossless", "TV of the root", "tail", "greedy agreement", "log p per token"),
    *("log p at T", "accuracy", "tokens/pass", "speed vs plain", "modelled", "modelled, GPU-like"),
)
HOW_TO_READ = """
- W roots are drawn from the target's own law, each carries a draft, and the root whose draft is accepted
  furthest wins. W = 1 keeps the law (lossless: yes); with more, answers are other answers.
- *TV of the root*: half the sum of what the emitted root's law differs by from the target's, over the
  likeliest tokens; exact given the drafts, the mean over questions, whose contexts are averaged. 0 is
  lossless. Few drafts a candidate make it a little too large on average. *Tail*: the probability of the
  tokens left out, about which it says nothing.
- All other columns but the last four are *lossy minus plain* on the same prompts, in brackets the two-sided
  95 % interval over prompts; an interval that leaves out 0 is a difference. *Greedy agreement*: the share of
  emitted tokens that are the argmax of the target's law given the text so far. *log p*: nats per emitted
  token by the target's raw law, and by its law at the temperature of the request. A gain here is no gain in
  quality: text that a small model finds easy is more likely, and duller.
- *Accuracy*: generated questions with short checkable answers, of which the model solves about half.
- Speeds are as in a benchmark run; "GPU-like" prices the same rounds as if every pass cost the same, and a
  draft pass 2 % of it.
"""


def write_quality(path: Path) -> dict[str, Any]:
    """Make `results.json` and `report.md` of a measurement, complete or not.

    Returns:
        What `results.json` holds.

    Raises:
        ConfigError: the folder holds no measurement, or none of its parts has begun.
    """
    begun = read_plan(path)
    if begun is None:
        raise ConfigError(
            f"{path} holds no measurement of quality; `foredraft bench quality --out DIR` makes one"
        )
    document = quality_document(path, begun)
    write_json(path / RESULTS, document)
    write_text(path / REPORT, report_text(document))
    return document


def quality_document(path: Path, begun: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that `results.json` holds."""
    shape = (begun["tree"], begun["max_roots"], begun["roots"])
    methods = lossy_methods(begun["drafters"], *shape)
    choices = list(roots_lines(path).read(RootChoices.from_dict))
    answers, tasks = (_run(path / part) for part in (ANSWERS, TASKS))
    items = make_tasks(begun["tasks"])
    document = document_of(answers) if answers else {"rows": [], "notes": []}
    speeds = {row["method"]: row for row in document["rows"] if row["suite"] == ALL}
    rows = []
    for (drafter, num_roots), method in methods.items():
        row: dict[str, Any] = {"drafter": drafter, "num_roots": num_roots, "method": method}
        row["lossless"] = "yes" if num_roots == 1 and begun["roots"] == "multinomial" else "no"
        row |= root_quality(choices, drafter, num_roots, begun["roots"])
        if answers:
            row |= answer_quality(answers, Scores(path / ANSWERS), method)
        if tasks:
            row |= accuracy(tasks, Scores(path / TASKS), method, items)
        row |= _speed(speeds.get(method, {}))
        rows.append(row)
    settings = {name: value for name, value in begun.items() if name != "provenance"}
    return {
        "provenance": begun["provenance"],
        "plan": settings,
        "plain": _plain(path, answers, tasks, begun),
        "widths": width_sentence(answers) if answers else "",
        "rows": rows,
        "notes": document["notes"],
    }


def _plain(
    path: Path, answers: Run | None, tasks: Run | None, begun: Mapping[str, Any]
) -> dict[str, Any]:
    """Plain decoding's own figures."""
    found: dict[str, Any] = {}
    if answers:
        found |= answer_quality(answers, Scores(path / ANSWERS), PLAIN)
    if tasks:
        found |= accuracy(tasks, Scores(path / TASKS), PLAIN, make_tasks(begun["tasks"]))
    return {name: value for name, value in found.items() if "difference" not in name}


def report_text(document: Mapping[str, Any]) -> str:
    """The whole report in Markdown."""
    plan = document["plan"]
    sections = (
        f"# Quality of target-initialised roots: {plan['model']}",
        f"Temperature {plan['temperature']}, tree W,{plan['tree']}, roots {plan['roots']}; "
        f"{plan['contexts']} contexts of {plan['drafts']} drafts, {plan['tasks']} tasks.\n\n"
        f"```\n{document['provenance']['command']}\n```",
        quality_table(document["rows"]),
        _plain_sentence(document["plain"]),
        document["widths"],
        "## Notes" if document["notes"] else "",
        "\n".join(f"- {note}" for note in document["notes"]),
        "## How to read this",
        HOW_TO_READ,
    )
    return "\n\n".join(section.strip() for section in sections if section) + "\n"


def quality_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row for each drafter and number of roots."""
    body = [
        [
            row["drafter"],
            str(row["num_roots"]),
            row["lossless"],
            interval(row, "root_tv", 3),
            number(row["root_tv_tail"], 3),
            interval(row, "greedy_agreement_difference", 3),
            interval(row, "log_prob_difference", 3),
            interval(row, "tempered_log_prob_difference", 3),
            interval(row, "accuracy_difference", 3),
            number(row["tokens_per_pass"], 2),
            *(NOTHING if row[name] is None else speedup(row, name) for name in SPEEDUPS),
        ]
        for row in rows
    ]
    return markdown_table(HEADER, body)


def interval(row: Mapping[str, Any], name: str, digits: int) -> str:
    """A figure with its two-sided interval; a sign where it may have one."""
    value, low, high = (row.get(f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return NOTHING
    sign = "" if name == "root_tv" else "+"
    shown = f"{value:{sign}.{digits}f}"
    return shown if low is None else f"{shown} [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def _plain_sentence(plain: Mapping[str, Any]) -> str:
    parts = []
    if plain.get("greedy_agreement") is not None:
        parts.append(
            f"agrees with greedy in {percent(plain['greedy_agreement'])} of its tokens, with "
            f"{plain['log_prob']:.3f} nats per token"
        )
    if plain.get("accuracy") is not None:
        parts.append(f"solves {percent(plain['accuracy'])} of {plain['tasks']} tasks")
    return f"Plain decoding {' and '.join(parts)}." if parts else ""


def _run(folder: Path) -> Run | None:
    """The part's run, if a prompt of it is finished."""
    if not folder.exists():
        return None
    run = RunFolder(folder).read()
    return run if run.methods else None


def _speed(row: Mapping[str, Any]) -> dict[str, Any]:
    ends = [f"{name}{end}" for name in SPEEDUPS for end in ("", "_low", "_high")]
    return {name: row.get(name) for name in (*SPEED, *ends)}
