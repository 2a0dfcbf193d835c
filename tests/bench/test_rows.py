"""The rows of `results.json`: hand-counted records, and the figures they must give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foredraft.bench.folder import Run
from foredraft.bench.plan import PLAIN
from foredraft.bench.rows import ALL, make_categories, make_rows, results_document
from foredraft.costs import CostTable, DraftCosts, PassCosts
from foredraft.results import Statistics
from tests.bench.synthetic_runs import answer_of, prompt_of, round_of, run_of, whole_run

METRICS_PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

CHAIN = {"widths": (1, 1, 1, 1), "draft_rows": (1, 1, 1), "seconds": 2.0}
COSTS = CostTable(
    PassCosts((1, 5), (0,), ((10.0, 14.0),)),
    0.0,
    {"m": DraftCosts(0.0, PassCosts((1,), (0,), ((1.0,),)))},
)
"""A pass of n rows costs 9 + n seconds, and one of the draft model 1."""


def two_suites() -> Run:
    """Plain decoding at 1 token/s beside chains of 3: case 93 in two prompts of two turns, and a third."""
    first = prompt_of(
        answer_of(PLAIN, *[round_of(seconds=1.0)] * 4, turn=0),
        answer_of("m", round_of(3, **CHAIN), turn=0, repeats_s=(2.0, 2.5, 2.2)),
        answer_of(PLAIN, *[round_of(seconds=1.0)] * 4, turn=1),
        answer_of(
            "m", round_of(0, **CHAIN), round_of(2, **CHAIN), turn=1, repeats_s=(4.0, 4.0, 8.0)
        ),
        suite="chat",
    )
    second = prompt_of(
        answer_of(PLAIN, *[round_of(seconds=1.0)] * 2),
        answer_of("m", round_of(3, emitted=2, **CHAIN), identical="tie at token 1"),
        suite="code",
    )
    return run_of(first, second, costs=COSTS)


def row_of(rows: list[dict[str, Any]], method: str, suite: str = ALL) -> dict[str, Any]:
    """One row."""
    return next(row for row in rows if (row["method"], row["suite"]) == (method, suite))


def test_there_is_a_row_for_every_suite_and_method_and_for_the_pool() -> None:
    rows = make_rows(two_suites())
    assert [(row["suite"], row["method"]) for row in rows] == [
        (suite, method) for suite in ("chat", "code", ALL) for method in (PLAIN, "m")
    ]


def test_a_suite_pools_its_turns_as_ratios_of_sums() -> None:
    """Cases 93 and 94: 3, 0 and 2 of 3 accepted, over both turns and not the last one."""
    row = row_of(make_rows(two_suites()), "m", "chat")
    expected = {
        "prompts": 1,
        "turns": 2,
        "repeats": 3,
        "rounds": 3,
        "completion_tokens": 8,
        "acceptance_rate": 5 / 9,
        "mean_acceptance_length": 1 + 5 / 3,
        "tokens_per_pass": 8 / 3,
        "tokens_per_s": 8 / 6,
        "speedup_vs_plain": 8 / 6,
        "modelled_tokens_per_s": 8 / (3 * 16),
        "oracle_modelled_tokens_per_s": 8 / (16 + 10 + 14),
        "modelled_speedup_vs_plain": (8 / 48) / (1 / 10),
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert row["accepted_per_depth"] == pytest.approx((2 / 3, 2 / 3, 1 / 3))
    assert row["accepted_histogram"] == (1, 0, 1, 1)


def test_turns_are_told_apart() -> None:
    rows = make_rows(two_suites())
    turns = row_of(rows, "m", "chat")["per_turn"]
    assert [(t["turn"], t["mean_acceptance_length"]) for t in turns] == [(0, 4), (1, 2)]
    assert row_of(rows, "m", "code")["per_turn"] == []


def test_the_spread_is_the_median_answers_range_over_its_median() -> None:
    """(2.5 - 2) / 2.2 and (8 - 4) / 4; the third answer was given once."""
    rows = make_rows(two_suites())
    assert row_of(rows, "m")["spread"] == pytest.approx((0.5 / 2.2 + 1) / 2)
    assert row_of(rows, PLAIN)["spread"] is None


def test_a_row_holds_every_metric_of_statistics() -> None:
    row = row_of(make_rows(two_suites()), "m")
    stats = Statistics.pool(a.stats for record in two_suites().records for a in record.of("m"))
    assert {name: row[name] for name in stats.as_dict()} == stats.as_dict()


def test_a_baseline_is_as_fast_as_itself_and_an_absent_one_compares_with_nothing() -> None:
    row = row_of(make_rows(two_suites()), PLAIN)
    names = [
        f"speedup_vs_plain{kind}{end}" for kind in ("", "_median") for end in ("", "_low", "_high")
    ]
    assert [row[name] for name in names] == [1] * 6
    assert [row[name.replace("plain", "hf")] for name in names] == [None] * 6


def test_one_prompt_has_a_speedup_without_an_interval() -> None:
    row = row_of(make_rows(two_suites()), "m", "code")
    assert row["speedup_vs_plain"] == pytest.approx(1)
    assert (row["speedup_vs_plain_low"], row["speedup_vs_plain_high"]) == (None, None)


@pytest.mark.parametrize(
    ("judged", "worst"),
    [
        (["yes", "tie at token 3", "bug at token 1"], "bug"),
        (["yes", "tie at token 3", "n/a"], "tie"),
        (["yes", "n/a"], "yes"),
        (["n/a", "n/a"], "n/a"),
    ],
)
def test_the_worst_answer_stands(judged: list[str], worst: str) -> None:
    records = [
        prompt_of(answer_of("m", round_of(), identical=identical), id=str(i))
        for i, identical in enumerate(judged)
    ]
    row = row_of(make_rows(run_of(*records)), "m")
    assert row["identical"] == worst
    assert sum(row["identical_counts"].values()) == len(judged)
    assert row["identical_counts"][worst] >= 1


def test_peers_that_tell_no_stage_have_none_and_no_price() -> None:
    record = prompt_of(answer_of("llama.cpp", round_of(), stages=()))
    row = row_of(make_rows(run_of(record, costs=COSTS)), "llama.cpp")
    assert row["tokens_per_s"] is not None
    assert {row[name] for name in ("draft_ms", "target_ms", "modelled_tokens_per_s")} == {None}


def test_another_table_prices_the_same_rounds() -> None:
    flat = CostTable.flat(1.0, 0.1, ["m"])
    row = row_of(make_rows(two_suites(), flat), "m", "chat")
    assert row["modelled_speedup_vs_plain"] == pytest.approx(8 / (3 * 1.3))
    without = run_of(*two_suites().records)
    assert row_of(make_rows(without), "m")["modelled_tokens_per_s"] is None


def test_categories_are_told_apart_where_a_suite_has_several() -> None:
    def prompt(suite: str, category: str, accepted: int) -> Any:
        return prompt_of(
            answer_of("m", round_of(accepted, **CHAIN)), suite=suite, id=category, category=category
        )

    run = run_of(prompt("chat", "short", 3), prompt("chat", "long", 0), prompt("code", "code", 1))
    found = [
        (row["suite"], row["category"], row["mean_acceptance_length"])
        for row in make_categories(run)
    ]
    assert found == [("chat", "short", 4), ("chat", "long", 1)]


def test_notes_name_every_answer_that_differs_and_why_others_were_not_compared() -> None:
    records = [
        prompt_of(
            answer_of("m", round_of(), turn=1, identical="tie at token 3"),
            answer_of("n", round_of(), identical="bug at token 1"),
            answer_of("llama.cpp", round_of(), identical="n/a"),
        )
    ]
    run = run_of(
        *records, notes=["economize is not installed"], comparable={"llama.cpp": "it is another"}
    )
    assert results_document(run)["notes"] == [
        "economize is not installed",
        "llama.cpp: answers not held against plain decoding's, since it is another",
        "n, chat/0, turn 1: bug at token 1",
        "m, chat/0, turn 2: tie at token 3",
    ]


def test_the_document_is_json_and_a_function_of_the_records() -> None:
    run = whole_run((PLAIN, "ngram", "eagle", "hf", "llama.cpp"), ("chat", "code"), prompts=3)
    document = results_document(run)
    assert list(document) == ["provenance", "plan", "rows", "categories", "notes"]
    text = json.dumps(document, allow_nan=False)
    assert json.dumps(results_document(run)) == text


def test_prompts_without_an_answer_change_nothing() -> None:
    run = two_suites()
    empty = prompt_of(suite="chat", id="left out")
    longer = run_of(*run.records, empty, costs=COSTS)
    assert make_rows(longer) == make_rows(run)


def test_the_page_of_metrics_names_every_figure_of_a_row() -> None:
    """Baselines and ends of intervals are written once, for all figures that have them."""
    page = METRICS_PAGE.read_text(encoding="utf-8")
    ends = ("_low", "_high", "_median", "hf")
    names = [name for name in row_of(make_rows(two_suites()), "m") if not name.endswith(ends)]
    assert not [
        name for name in names if f"`{name}`" not in page and name not in ("suite", "method")
    ]
