"""`report.md`: what a reader sees, and that no chance is sold as a gain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foredraft.bench import report
from foredraft.bench.folder import Run, RunFolder
from foredraft.bench.plan import PLAIN
from foredraft.bench.report import report_text, write_report
from foredraft.bench.rows import results_document
from foredraft.bench.tables import markdown_table, ms, number, percent, speedup
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
    return report_text(run, results_document(run), list(report.CAPTIONS), "by hand")


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
    assert "by the cost table measured with this run" in text


def test_another_cost_table_is_named(run: Run, tmp_path: Path) -> None:
    folder = folder_of(run, tmp_path)
    own = {row["method"]: row["modelled_tokens_per_s"] for row in results_document(run)["rows"]}
    document = write_report(folder, "flat:level=0.2")
    flat = {row["method"]: row["modelled_tokens_per_s"] for row in document["rows"]}
    assert flat["eagle"] != own["eagle"]
    assert "flat:level=0.2" in (tmp_path / "report.md").read_text()
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
    assert "| method | chat | code | all |" in text
    assert set(table_rows(text, "All suites together")) == set(METHODS)
    assert set(table_rows(text, "Time of a round")) == set(METHODS)


def test_figures_of_a_table_are_those_of_the_document(run: Run) -> None:
    row = next(
        r for r in results_document(run)["rows"] if (r["suite"], r["method"]) == ("all", "eagle")
    )
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
    assert "No method was faster than plain decoding beyond chance" in text
    assert table_rows(text, "Speedup over plain decoding")["m"][0].endswith("≈")


def test_the_headline_names_the_fastest_of_those_that_answer_alike(run: Run) -> None:
    """llama.cpp is faster still, with weights of its own."""
    rows = [row for row in results_document(run)["rows"] if row["suite"] == "all"]
    fastest = sorted(rows, key=lambda row: float(row["speedup_vs_plain"]))[-2:]
    assert fastest[1]["method"] == "llama.cpp"
    assert f"**{fastest[0]['method']} was fastest: " in text_of(run)


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
