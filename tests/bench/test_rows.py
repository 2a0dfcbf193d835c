"""The rows of `results.json`: hand-counted records, and the figures they must give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foredraft.bench.folder import Run
from foredraft.bench.modelled import Pricing, pricing_of
from foredraft.bench.plan import PLAIN
from foredraft.bench.records import PromptRecord
from foredraft.bench.rows import ALL, by_group, make_categories, make_rows, results_document
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
    return run_of(first, second)


def row_of(rows: list[dict[str, Any]], method: str, suite: str = ALL) -> dict[str, Any]:
    """One row."""
    return next(row for row in rows if (row["method"], row["suite"]) == (method, suite))


def test_there_is_a_row_for_every_suite_and_method_and_for_the_pool() -> None:
    rows = make_rows(two_suites(), COSTS)
    assert [(row["suite"], row["method"]) for row in rows] == [
        (suite, method) for suite in ("chat", "code", ALL) for method in (PLAIN, "m")
    ]


def test_a_suite_pools_its_turns_as_ratios_of_sums() -> None:
    """Cases 93 and 94: 3, 0 and 2 of 3 accepted, over both turns and not the last one."""
    row = row_of(make_rows(two_suites(), COSTS), "m", "chat")
    expected = {
        "prompts": 1,
        "turns": 2,
        "repeats": 3,
        "answer_tokens": 8,
        "request_ms": 1000 * (0.1 + 2 + 0.1 + 4) / 2,
        "request_speedup_vs_plain": 8.2 / 6.2,
        "rounds": 3,
        "completion_tokens": 8,
        "acceptance_rate": 5 / 9,
        "mean_acceptance_length": 1 + 5 / 3,
        "tokens_per_pass": 8 / 3,
        "tokens_per_s": 8 / 6,
        "speedup_vs_plain": 8 / 6,
        "modelled_tokens_per_s": 8 / (3 * 16),
        "oracle_modelled_tokens_per_s": 8 / (16 + 10 + 14),
        "wasted_tokens": 4,
        "waste": 4 / 8,
        "draft_passes": 9,
        "target_passes": 3,
        "oracle_draft_passes": 5,
        "oracle_waste": 0,
        "modelled_speedup_vs_plain": (8 / 48) / (1 / 10),
        "modelled_speedup_vs_plain_low": None,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert row["accepted_per_depth"] == pytest.approx((2 / 3, 2 / 3, 1 / 3))
    assert row["accepted_histogram"] == (1, 0, 1, 1)


def test_turns_are_told_apart() -> None:
    rows = make_rows(two_suites(), COSTS)
    turns = row_of(rows, "m", "chat")["per_turn"]
    assert [(t["turn"], t["mean_acceptance_length"]) for t in turns] == [(0, 4), (1, 2)]
    assert row_of(rows, "m", "code")["per_turn"] == []


def test_the_spread_is_the_median_answers_range_over_its_median() -> None:
    """(2.5 - 2) / 2.2 and (8 - 4) / 4; the third answer was given once."""
    rows = make_rows(two_suites(), COSTS)
    assert row_of(rows, "m")["spread"] == pytest.approx((0.5 / 2.2 + 1) / 2)
    assert row_of(rows, PLAIN)["spread"] is None


def test_a_row_holds_every_metric_of_statistics() -> None:
    row = row_of(make_rows(two_suites(), COSTS), "m")
    stats = Statistics.pool(a.stats for record in two_suites().records for a in record.of("m"))
    assert {name: row[name] for name in stats.as_dict()} == stats.as_dict()


def test_a_baseline_is_as_fast_as_itself_and_an_absent_one_compares_with_nothing() -> None:
    row = row_of(make_rows(two_suites(), COSTS), PLAIN)
    names = [
        f"speedup_vs_plain{kind}{end}" for kind in ("", "_median") for end in ("", "_low", "_high")
    ]
    assert [row[name] for name in names] == [1] * 6
    assert [row[name.replace("plain", "hf")] for name in names] == [None] * 6


def test_one_prompt_has_a_speedup_without_an_interval() -> None:
    row = row_of(make_rows(two_suites(), COSTS), "m", "code")
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
    row = row_of(make_rows(run_of(*records), None), "m")
    assert row["identical"] == worst
    assert sum(row["identical_counts"].values()) == len(judged)
    assert row["identical_counts"][worst] >= 1


def test_peers_that_tell_no_stage_have_none_and_no_price() -> None:
    record = prompt_of(answer_of("llama.cpp", round_of(), stages=()))
    row = row_of(make_rows(run_of(record), COSTS), "llama.cpp")
    assert row["tokens_per_s"] is not None
    assert {row[name] for name in ("draft_ms", "target_ms", "modelled_tokens_per_s")} == {None}


def test_another_table_prices_the_same_rounds() -> None:
    flat = CostTable.flat(1.0, 0.1, ["m"])
    row = row_of(make_rows(two_suites(), flat), "m", "chat")
    assert row["modelled_speedup_vs_plain"] == pytest.approx(8 / (3 * 1.3))
    without = row_of(make_rows(two_suites(), None), "m")
    assert {without[name] for name in without if "modelled" in name} == {None}


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


def test_modelled_speedups_have_the_intervals_of_their_prompts() -> None:
    """Of three prompts, whose ratios are known; plain decoding is as fast as itself."""
    records = [
        prompt_of(
            answer_of(PLAIN, *[round_of()] * 4),
            answer_of("m", round_of(3, **CHAIN), *more),
            id=name,
        )
        for name, more in (("0", ()), ("1", [round_of(0, **CHAIN)]), ("2", [round_of(3, **CHAIN)]))
    ]
    rows = make_rows(run_of(*records), COSTS)
    names = [f"modelled_speedup_vs_plain{end}" for end in ("", "_low", "_high")]
    assert [row_of(rows, PLAIN)[name] for name in names] == [1, 1, 1]
    value, low, high = (row_of(rows, "m")[name] for name in names)
    assert value == pytest.approx((17 / (5 * 16)) / (1 / 10))
    assert low < value < high


def test_without_a_price_of_some_rounds_nothing_is_modelled() -> None:
    """Not even the prompts that can be priced, which would be a choice of prompts."""
    records = [
        prompt_of(answer_of(PLAIN, round_of()), answer_of("new", round_of(0, **chain)), id=str(i))
        for i, chain in enumerate(({}, CHAIN))
    ]
    row = row_of(make_rows(run_of(*records), COSTS), "new")
    assert {row[name] for name in row if "modelled" in name} == {None}


def test_whole_requests_count_what_prefill_took_and_gave() -> None:
    """A peer's first token comes out of its prefill: 4 tokens in 1 + 3 s, against 4 in 0 + 8 s here."""
    record = prompt_of(
        answer_of(PLAIN, *[round_of(seconds=2.0)] * 4, prefill_s=0.0),
        answer_of("hf", *[round_of(seconds=1.0)] * 3, prefill_s=1.0, first_tokens=1),
    )
    row = row_of(make_rows(run_of(record), None), "hf")
    assert (row["completion_tokens"], row["answer_tokens"]) == (3, 4)
    assert row["request_ms"] == pytest.approx(4000)
    assert row["request_speedup_vs_plain"] == pytest.approx(8 / 4)
    assert row["speedup_vs_plain"] == pytest.approx(2)


def test_an_answer_of_prefill_alone_is_a_request() -> None:
    """It decoded nothing, so only whole requests have a speed."""
    record = prompt_of(
        answer_of(PLAIN, round_of(seconds=0.9)), answer_of("hf", prefill_s=0.5, first_tokens=1)
    )
    row = row_of(make_rows(run_of(record), COSTS), "hf")
    assert row["speedup_vs_plain"] is None
    assert row["request_speedup_vs_plain"] == pytest.approx(1 / 0.5)


def test_figures_are_on_turns_that_plain_decoding_answered() -> None:
    """A second turn that it did not answer counts for nobody."""
    answers = [answer_of("m", round_of(3, **CHAIN), turn=turn) for turn in (0, 1)]
    run = run_of(prompt_of(answer_of(PLAIN, round_of()), *answers))
    rows = results_document(run, None)["rows"]
    assert row_of(rows, "m")["turns"] == 1
    alone = results_document(run_of(prompt_of(*answers)), None)["rows"]
    assert row_of(alone, "m")["turns"] == 2, "where it took no part"


# --- groups ----------------------------------------------------------------------------------------------


def grouped(*prompts: tuple[str, str]) -> list[str]:
    """The groups of a run with a prompt of each of these suites and categories."""
    records = [
        prompt_of(answer_of(PLAIN, round_of()), suite=suite, id=str(i), category=category)
        for i, (suite, category) in enumerate(prompts)
    ]
    groups = by_group(results_document(run_of(*records), None))
    assert all({row["method"] for row in rows} == {PLAIN} for rows in groups.values())
    return list(groups)


def test_suites_stand_side_by_side_and_else_the_categories_of_the_only_one() -> None:
    several = [("chat", "short"), ("chat", "long"), ("code", "code")]
    assert grouped(*several) == [ALL, "chat", "code"]
    assert grouped(*several[:2]) == [ALL, "chat/short", "chat/long"]
    assert grouped(several[0]) == [ALL]


# --- notes -----------------------------------------------------------------------------------------------


def notes_of(*records: PromptRecord, costs: CostTable | None = None, **plan: Any) -> list[str]:
    """The notes of a run."""
    pricing = Pricing(costs, "a file") if costs else None
    found: list[str] = results_document(run_of(*records, **plan), pricing)["notes"]
    return found


def test_notes_name_every_bug_count_ties_and_say_why_others_were_not_compared() -> None:
    records = [
        prompt_of(
            answer_of(PLAIN, round_of()),
            answer_of("m", round_of(), identical=identical),
            answer_of("n", round_of(), identical="bug at token 1" if i else "yes"),
            answer_of("llama.cpp", round_of(), identical="n/a"),
            id=str(i),
        )
        for i, identical in enumerate(("tie at token 3", "yes", "n/a", "tie at token 1"))
    ]
    found = notes_of(
        *records, notes=["economize is not installed"], comparable={"llama.cpp": "it is another"}
    )
    assert found == [
        "economize is not installed",
        "llama.cpp: answers not held against plain decoding's, since it is another",
        *(f"n, chat/{i}, turn 1: bug at token 1" for i in (1, 2, 3)),
        "m: 2 of 3 answers have a tie",
    ]


def test_every_difference_is_listed_apart_from_the_notes() -> None:
    records = [
        prompt_of(
            answer_of(PLAIN, round_of()),
            answer_of(PLAIN, round_of(), turn=1),
            answer_of("m", round_of(), turn=1, identical="tie at token 3"),
            answer_of("n", round_of(), identical="bug at token 1"),
        )
    ]
    place = {"suite": "chat", "id": "0"}
    assert results_document(run_of(*records), None)["differences"] == [
        {"method": "n", **place, "turn": 0, "identical": "bug at token 1"},
        {"method": "m", **place, "turn": 1, "identical": "tie at token 3"},
    ]


def test_methods_that_answered_less_are_noted() -> None:
    def prompt(number: int, *methods: tuple[str, int]) -> PromptRecord:
        turns = [(method, turn) for method, count in methods for turn in range(count)]
        return prompt_of(*(answer_of(m, round_of(), turn=t) for m, t in turns), id=str(number))

    found = notes_of(
        prompt(0, (PLAIN, 2), ("m", 2), ("n", 2)),
        prompt(1, (PLAIN, 2), ("m", 1)),
        prompt(2, (PLAIN, 1), ("m", 1)),
    )
    assert found == [
        "m answered 4 of 5 turns; its figures are on those",
        "n answered 1 of 3 prompts; its figures are on those",
    ]


def test_what_a_table_does_not_price_is_noted() -> None:
    """Passes that are not seen, draft models without an entry, drafts without one, and hosts of peers."""
    lookup = {"widths": (1, 1)}
    table = CostTable(COSTS.target, 0.5, COSTS.drafts, {"spread": 0.4})
    record = prompt_of(
        answer_of(PLAIN, round_of()),
        answer_of("m:depth=3", round_of(3, **CHAIN)),
        answer_of("new", round_of(3, **CHAIN)),
        answer_of("suffix", round_of(1, **lookup)),
        answer_of("hf", round_of(), stages=("target",)),
        answer_of("hf-lookup", round_of(1, **lookup), stages=("target",)),
        answer_of("llama.cpp", round_of(), stages=()),
    )
    starts = (
        "the cost table was measured on a busy machine (repeats of a pass differed by 40%)",
        "new: no modelled figures, since the cost table has no price for its draft passes",
        "suffix: the cost table has no entry for its drafts",
        "llama.cpp: no modelled figures, since its passes are not seen",
        "hf, hf-lookup: modelled figures price passes alone",
    )
    found = notes_of(record, costs=table)
    assert len(found) == len(starts)
    assert all(note.startswith(start) for note, start in zip(found, starts, strict=True)), found
    assert notes_of(record) == []


def test_a_table_without_host_work_prices_peers_like_others() -> None:
    record = prompt_of(
        answer_of(PLAIN, round_of()), answer_of("hf", round_of(), stages=("target",))
    )
    assert notes_of(record, costs=CostTable.flat(1.0, 0.1)) == []


def test_the_document_is_json_and_a_function_of_the_records() -> None:
    run = whole_run((PLAIN, "ngram", "eagle", "hf", "llama.cpp"), ("chat", "code"), prompts=3)
    pricing = pricing_of(run, None)
    document = results_document(run, pricing)
    places = ["provenance", "plan", "costs", "rows", "categories", "differences", "notes"]
    assert list(document) == places
    text = json.dumps(document, allow_nan=False)
    assert json.dumps(results_document(run, pricing)) == text


def test_the_document_tells_each_note_once_and_which_table_priced_it() -> None:
    table = CostTable(COSTS.target, 0.0, {}, {"spread": 0.1})
    run = run_of(prompt_of(answer_of(PLAIN, round_of())), notes=["only once"])
    document = results_document(run, Pricing(table, "costs.json"))
    assert json.dumps(document).count("only once") == 1
    assert document["costs"] == {"source": "costs.json", "provenance": {"spread": 0.1}}
    assert results_document(run, None)["costs"] is None


def test_prompts_without_an_answer_change_nothing() -> None:
    run = two_suites()
    empty = prompt_of(suite="chat", id="left out")
    assert make_rows(run_of(*run.records, empty), COSTS) == make_rows(run, COSTS)


def test_the_page_of_metrics_names_every_figure_of_a_row() -> None:
    """Baselines and ends of intervals are written once, for all figures that have them."""
    page = METRICS_PAGE.read_text(encoding="utf-8")
    ends = ("_low", "_high", "_median", "hf")
    names = [
        name for name in row_of(make_rows(two_suites(), COSTS), "m") if not name.endswith(ends)
    ]
    assert not [
        name for name in names if f"`{name}`" not in page and name not in ("suite", "method")
    ]


def test_lossy_methods_are_marked_and_peers_are_not_ours_to_judge() -> None:
    run = whole_run((PLAIN, "mcsd", "hf"), ("chat", "code"), prompts=2)
    run.plan["lossy"] = ["mcsd"]
    document = results_document(run, None)
    marks = {row["method"]: row["lossless"] for row in (*document["rows"], *document["categories"])}
    assert marks == {PLAIN: "yes", "mcsd": "no", "hf": "n/a"}
