"""`report.md`: what a reader sees, and that no chance is sold as a gain."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from foredraft.bench import report
from foredraft.bench.folder import Run, RunFolder
from foredraft.bench.modelled import pricing_of
from foredraft.bench.plan import PLAIN
from foredraft.bench.report import report_text, write_report
from foredraft.bench.rows import results_document
from foredraft.bench.tables import identical, markdown_table, ms, number, percent, speedup
from foredraft.errors import ConfigError
from tests.bench.synthetic_runs import (
    Noise,
    answer_of,
    noisy_run,
    prompt_of,
    round_of,
    run_of,
    whole_run,
)

METHODS = (PLAIN, "ngram", "eagle", "mcsd", "hf", "llama.cpp")


@pytest.fixture(scope="module")
def run() -> Run:
    """Six methods in two suites."""
    return whole_run(METHODS, ("chat", "code"), prompts=3)


def text_of(run: Run) -> str:
    """The report of a run, as if every plot was drawn."""
    return report_text(run, document_of(run), list(report.CAPTIONS))


def document_of(run: Run) -> dict[str, Any]:
    """The results of a run, priced by its own table."""
    return results_document(run, pricing_of(run, None))


def folder_of(run: Run, path: Path) -> RunFolder:
    """A run kept in a folder."""
    folder = RunFolder(path)
    folder.write_plan(run.plan)
    if run.costs is not None:
        folder.write_costs(run.costs)
    for record in run.records:
        folder.append(record)
    return folder


def table_rows(text: str, heading: str) -> dict[str, list[str]]:
    """The cells behind each method's name in the table below a heading."""
    section = text.split(f"## {heading}")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return {cells[0]: cells[1:] for cells in lines[2:]}


def test_the_files_are_written_and_agree(run: Run, tmp_path: Path) -> None:
    document = write_report(folder_of(run, tmp_path))
    written = json.loads((tmp_path / "results.json").read_text())
    assert written == json.loads(json.dumps(document))
    text = (tmp_path / "report.md").read_text()
    pictures = [name for name in report.CAPTIONS if f"]({name})" in text]
    assert all((tmp_path / name).exists() for name in pictures)
    assert len(pictures) == 4
    assert "priced by the cost table measured with this run" in text
    assert document["costs"]["source"] == "costs.json"


def test_another_cost_table_is_named(run: Run, tmp_path: Path) -> None:
    folder = folder_of(run, tmp_path)
    own = {row["method"]: row["modelled_tokens_per_s"] for row in document_of(run)["rows"]}
    document = write_report(folder, "flat:level=0.2")
    flat = {row["method"]: row["modelled_tokens_per_s"] for row in document["rows"]}
    assert flat["eagle"] != own["eagle"]
    assert document["costs"] == {"source": "flat:level=0.2", "provenance": {}}
    assert "priced by the cost table flat:level=0.2" in (tmp_path / "report.md").read_text()
    with pytest.raises(ConfigError, match="flat:steps=3"):
        write_report(folder, "flat:steps=3")


def test_a_folder_without_a_finished_prompt_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no benchmark run"):
        write_report(RunFolder(tmp_path))
    folder = folder_of(run_of(), tmp_path)
    with pytest.raises(ConfigError, match="no finished prompt yet"):
        write_report(folder)


def test_every_method_and_suite_is_in_the_main_table(run: Run) -> None:
    text = text_of(run)
    assert set(table_rows(text, "Speedup over plain decoding")) == set(METHODS) - {PLAIN}
    assert "| method | all | chat | code |" in text
    assert set(table_rows(text, "All suites together")) == set(METHODS)
    assert set(table_rows(text, "Time of a round")) == set(METHODS)


def test_the_categories_of_the_only_suite_stand_like_suites() -> None:
    text = text_of(whole_run(METHODS, ("chat",), prompts=2))
    assert "| method | all | chat/short | chat/long |" in text
    assert text.split("## All")[0].count("| eagle |") == 1
    one_category = text_of(whole_run(METHODS, ("code",), prompts=1))
    assert "| method | all |\n" in one_category


def test_prompts_are_counted_where_they_are_not_the_same(run: Run) -> None:
    assert "| prompts |" not in text_of(run)
    first, *others = run.records
    without = tuple(answer for answer in first.answers if answer.method != "hf")
    shorter = dataclasses.replace(
        run, records=(dataclasses.replace(first, answers=without), *others)
    )
    text = text_of(shorter)
    assert "- hf answered 5 of 6 prompts; its figures are on those" in text
    cells = table_rows(text, "All suites together")
    assert [cells[method][0] for method in ("hf", "eagle")] == ["5", "6"]


def test_stages_that_are_not_seen_are_no_zeros(run: Run) -> None:
    cells = table_rows(text_of(run), "Time of a round")
    assert cells["llama.cpp"][:4] == ["–"] * 4
    assert [cell == "–" for cell in cells["hf"][:4]] == [True, False, True, False]
    assert "–" not in cells["eagle"][:4]


def test_modelled_speeds_of_peers_are_no_verdicts(run: Run) -> None:
    """Their hosts are not priced, so they are neither faster nor slower by these figures."""
    cells = table_rows(text_of(run), "All suites together")
    assert cells["hf"][5].startswith("(")
    assert cells["llama.cpp"][5] == "–"
    assert cells["eagle"][5][-1] in "▲▼≈"


def test_figures_of_a_table_are_those_of_the_document(run: Run) -> None:
    row = next(r for r in document_of(run)["rows"] if (r["suite"], r["method"]) == ("all", "eagle"))
    cells = table_rows(text_of(run), "All suites together")["eagle"]
    assert cells[0] == f"{row['tokens_per_s']:.1f}"
    assert cells[1].startswith(
        f"{row['speedup_vs_plain']:.2f} [{row['speedup_vs_plain_low']:.2f}, "
    )
    assert cells[4] == f"{row['modelled_tokens_per_s']:.1f}"


def test_chance_is_not_called_faster() -> None:
    """The method is no faster than plain decoding, whatever its figure says."""
    run = noisy_run(3, {PLAIN: 1.0, "m": 1.0}, noise=Noise(0.1, 0.1))
    text = text_of(run)
    assert "No method with plain decoding's answers was faster beyond chance" in text
    assert table_rows(text, "Speedup over plain decoding")["m"][0].endswith("≈")


# --- the headline --------------------------------------------------------------------------------------


def headline_of(speeds: dict[str, float], wrong: str = "", **reasons: str) -> str:
    """The first sentences of a report on methods of these speeds, of which one gave a wrong answer."""
    records = [
        prompt_of(
            answer_of(PLAIN, round_of(seconds=1.0 + 0.01 * i)),
            *(
                answer_of(
                    method,
                    round_of(seconds=1 / speed),
                    identical="bug at token 4" if method == wrong and i == 1 else "yes",
                )
                for method, speed in speeds.items()
            ),
            id=str(i),
        )
        for i in range(3)
    ]
    run = run_of(*records, comparable=reasons)
    return text_of(run).split("\n\n")[1]


def test_the_headline_names_the_fastest_that_was_measured() -> None:
    text = headline_of({"m": 1.5, "n": 2.0})
    assert text.startswith("**n was the fastest measured: 2.02 times plain decoding's speed (95 %")
    assert text.endswith("no answer differs.**")


def test_a_method_with_a_wrong_answer_is_not_the_fastest() -> None:
    text = headline_of({"m": 1.5, "n": 2.0}, wrong="n")
    assert text.startswith("**m was the fastest measured: 1.5")
    assert "1 answer is wrong" in text
    assert "No method with plain decoding's answers" in headline_of({"n": 2.0}, wrong="n")


def test_other_weights_are_not_crowned_without_saying_so() -> None:
    reason = "it computes with other weights"
    text = headline_of({"m": 1.5, "other": 3.0}, other=reason)
    assert text.startswith("**m was the fastest measured: 1.5")
    assert f"other had 3.03 times that speed, but need not give the same answers: {reason}." in text
    slower = headline_of({"m": 1.5, "other": 1.2}, other=reason)
    assert reason not in slower, "no rival"
    alone = headline_of({"other": 3.0}, other=reason)
    assert alone.startswith("**No method with plain decoding's answers was faster")
    assert reason in alone


def test_bugs_are_in_the_headline_and_in_the_notes() -> None:
    records = [
        prompt_of(
            answer_of(PLAIN, round_of()),
            answer_of("m", round_of(), identical="bug at token 4" if i == 1 else "yes"),
            id=str(i),
        )
        for i in range(3)
    ]
    text = text_of(run_of(*records))
    assert "1 answer is wrong" in text
    assert "- m, chat/1, turn 1: bug at token 4" in text
    assert table_rows(text, "All suites together")["m"][-1] == "1 bug of 3"


def test_conditions_and_provenance_are_told(run: Run) -> None:
    text = text_of(run)
    for piece in (
        "float32, a processor, 2 threads",
        "foredraft bench run --suite chat",
        "0123456789ab",
    ):
        assert piece in text
    assert "- economize is not installed" in text


# --- cells ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "low", "high", "cell"),
    [
        (1.5, 1.4, 1.6, "1.50 [1.40, 1.60] ▲"),
        (1.5, 0.9, 2.6, "1.50 [0.90, 2.60] ≈"),
        (0.8, 0.7, 0.9, "0.80 [0.70, 0.90] ▼"),
        (1.02, 1.0, 1.04, "1.02 [1.00, 1.04] ≈"),
        (1.5, None, None, "1.50 ?"),
        (1.0, 1.0, 1.0, "1"),
        (None, None, None, "–"),
    ],
)
def test_a_speedup_carries_its_interval_and_its_mark(
    value: float | None, low: float | None, high: float | None, cell: str
) -> None:
    assert speedup({"s": value, "s_low": low, "s_high": high}, "s") == cell


@pytest.mark.parametrize(
    ("counts", "cell"),
    [
        ({"yes": 3, "tie": 0, "bug": 0, "n/a": 0}, "yes"),
        ({"yes": 2, "tie": 1, "bug": 0, "n/a": 4}, "1 tie of 3"),
        ({"yes": 0, "tie": 2, "bug": 1, "n/a": 0}, "1 bug, 2 ties of 3"),
    ],
)
def test_differing_answers_are_counted_among_those_that_were_judged(
    counts: dict[str, int], cell: str
) -> None:
    assert identical({"identical": "yes", "identical_counts": counts}) == cell


def test_numbers_keep_the_digits_that_count() -> None:
    assert [ms(x) for x in (123.4, 12.34, 1.234, None)] == ["123", "12.3", "1.23", "–"]
    assert [number(x, 2) for x in (1.234, None)] == ["1.23", "–"]
    assert [percent(x) for x in (0.555, None)] == ["56 %", "–"]


def test_bars_in_names_do_not_split_cells() -> None:
    assert markdown_table(["a", "b"], [["x|y", "1"]]).splitlines() == [
        "| a | b |",
        "| --- | --: |",
        "| x\\|y | 1 |",
    ]


def test_a_lossy_methods_figures_are_marked_wherever_they_are(run: Run) -> None:
    marked = dataclasses.replace(run, plan=run.plan | {"lossy": ["mcsd"]})
    lines = [line for line in text_of(marked).splitlines() if line.startswith("| mcsd")]
    assert len(lines) == 5  # speedups, speeds, drafts, passes and waste, times
    assert all(line.startswith("| mcsd (lossless: no) |") for line in lines)
    assert "mcsd (lossless: no)" not in text_of(run)
