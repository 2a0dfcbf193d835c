"""Reproductions: the line-up, equal budgets, and what the report says beside the published figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foredraft.backends.table import TableModel
from foredraft.bench import method_names
from foredraft.bench.method_names import LOSSY
from foredraft.bench.papers import measure_wide, wide_budget
from foredraft.bench.plan import PLAIN
from foredraft.bench.priced_twice import PAPER_ROWS, document_of, width_costs, width_sentence
from foredraft.bench.reproduce import plan as plans
from foredraft.bench.reproduce.improved_mcsd import line_up
from foredraft.bench.reproduce.improved_mcsd.budgets import best_shapes, budget_tables
from foredraft.bench.reproduce.improved_mcsd.line_up import (
    CHAINS,
    CUT_CHAINS,
    CUT_TREES,
    ROOTED,
    TREES,
    shapes,
)
from foredraft.bench.reproduce.improved_mcsd.published import SPEEDUPS, TABLES
from foredraft.bench.reproduce.plan import ReproducePlan, read_budgets, read_numbers
from foredraft.bench.reproduce.report import report_text, write_reproduction
from foredraft.bench.reproduce.run import ReproduceRun
from foredraft.config import GenerationOptions
from foredraft.costs import CostTable, DraftCosts, PassCosts
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError
from foredraft.methods import parse_method
from foredraft.policies.decision_net import DecisionConfig, DecisionNet, save_decision, sizes_for
from tests.bench.synthetic_runs import answer_of, prompt_of, round_of, run_of
from tests.tiny_folders import save_folder

PROMPTS = ("the cat sat on the mat the cat", "mat mat mat mat")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A tiny target, a tiny draft model, and two questions."""
    root = tmp_path_factory.mktemp("models")
    suite = root / "cats.jsonl"
    suite.write_text("\n".join(json.dumps({"prompt": text}) for text in PROMPTS))
    target, draft = save_folder(root / "target"), save_folder(root / "draft", hidden_size=16)
    return {"model": str(target), "drafter": str(draft), "suites": str(suite)}


def plan_of(folders: dict[str, str], **changes: Any) -> ReproducePlan:
    values: dict[str, Any] = {
        **folders,
        "temperatures": (0.0, 0.7),
        "max_new_tokens": 8,
        "dtype": "float32",
    }
    return ReproducePlan(**values | changes)


def quick(*_: Any) -> CostTable:
    """Costs that are measured in their own tests."""
    return CostTable.flat(0.02, 0.002, ("speculative", "mcsd", "mcsd-improved", LOSSY))


# --- who takes part ---------------------------------------------------------------------------------


def test_the_line_up_is_the_papers() -> None:
    entries = line_up.line_up(None)
    assert len({entry.method for entry in entries}) == len(entries)
    trees = {parse_method(entry.method).options.get("tree") for entry in entries}
    assert {"4,2,2,1", "2,4,3,1,1"} <= trees
    assert {name for table in TABLES[:1] for name in table.rows} <= {e.label for e in entries}


def test_decision_models_add_the_dynamic_rows() -> None:
    more = line_up.line_up("hidden")[len(line_up.line_up(None)) :]
    assert [entry.method.rpartition(":")[2] for entry in more] == ["decision=hidden"] * 2


def test_shipped_decision_models_fit_the_temperature(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {name: value for name, value in folders.items() if name == "suites"}
    weights = Path("weights")

    def at(*temperatures: float, **changes: Any) -> list[str | None]:
        monkeypatch.setattr(plans, "shipped", lambda *_: None)  # plans are made whole all the same
        plan = ReproducePlan(**own, temperatures=temperatures, **changes)
        monkeypatch.setattr(plans, "shipped", lambda model, kind: weights)
        return [plan.decision_at(t) for t in temperatures]

    assert at(0.0, 0.7, 1.0) == ["decision-hard", "decision-soft", "decision-soft"]
    assert at(0.0, 1.0, decision="none") == [None, None]
    assert at(0.0, drafter=folders["drafter"]) == [None]  # it was not trained for that one
    monkeypatch.setattr(plans, "shipped", lambda *_: None)
    assert plan_of(folders).as_dict()["decisions"] == [None, None]


def test_a_decision_model_given_holds_at_every_temperature(
    folders: dict[str, str], tmp_path: Path
) -> None:
    save_decision(DecisionNet(DecisionConfig("soft", sizes_for("soft", 16))), tmp_path)
    plan = plan_of(folders, decision=str(tmp_path), budgets=(8,))
    for temperature in plan.temperatures:
        methods = [entry.method for entry in plan.entries(temperature)]
        assert sum(f"decision={tmp_path}" in method for method in methods) == 5
    assert plan_of(folders, decision="none").decision_at(0) is None


@pytest.mark.parametrize("budget", [8, 16])
def test_families_with_a_decision_model_fit_their_budget(budget: int) -> None:
    more = shapes(budget, "soft")[len(shapes(budget)) :]
    assert {shape.family for shape in more} == {CUT_CHAINS, CUT_TREES}
    assert max(shape.rows for shape in more) <= budget + 1
    assert method_names.chain(8) + ":decision=soft:rule=path" in [shape.method for shape in more]
    assert len(more) <= 6


@pytest.mark.parametrize("budget", [8, 16])
def test_shapes_fit_their_budget_and_can_be_built(budget: int) -> None:
    found = shapes(budget)
    assert max(shape.rows for shape in found) <= budget + 1
    assert {CHAINS, TREES, ROOTED} <= {shape.family for shape in found}
    assert len({shape.method for shape in found}) == len(found)
    assert sum(shape.family == CHAINS for shape in found) == 8
    for shape in found:
        method = parse_method(shape.method)
        method.check("draft model")
        parts = method.build(None) if method.needs is None else None
        assert parts is None


def test_the_paper_has_sizes_as_printed() -> None:
    assert SPEEDUPS.rows[line_up.STATIC][0] / SPEEDUPS.rows[line_up.MCSD][0] == pytest.approx(
        1.275, abs=0.001
    )
    assert all(len(values) == len(t.columns) for t in TABLES for values in t.rows.values())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"paper": "adaeagel"}, "nothing to reproduce called 'adaeagel'"),
        ({"structures": True}, "has no meaning for improved-mcsd"),
        ({"temperatures": (1.0, 1.0)}, "one twice"),
        ({"budgets": (1,)}, "budget of 1"),
        ({"budgets": (8, 8)}, "one twice"),
        ({"limit": -1}, "limit=-1"),
    ],
)
def test_mistakes_are_one_sentence(
    folders: dict[str, str], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        plan_of(folders, **changes)


def test_lists_of_the_command_line() -> None:
    assert read_numbers("0, 0.7,1", "temperature") == (0.0, 0.7, 1.0)
    assert read_budgets("8,16") == (8, 16)
    assert read_budgets("") == ()
    for text in ("8.5", "8,x", "nan"):
        with pytest.raises(ConfigError, match="write it like"):
            read_budgets(text)


# --- a whole run ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished reproduction on the tiny model."""
    out = tmp_path_factory.mktemp("reproduced")
    plan = plan_of(folders)
    for _ in ReproduceRun(plan, out, measure=quick):
        pass
    write_reproduction(plan, out)
    return out


def test_rows_are_those_of_benchmarks_with_quality_beside(done: Path) -> None:
    document = json.loads((done / "results.json").read_text())
    rows = {
        (row["temperature"], row["label"]): row for row in document["rows"] if row["suite"] == "all"
    }
    assert {t for t, _ in rows} == {0.0, 0.7}
    static = rows[0.7, line_up.STATIC]
    assert (static["lossless"], static["identical"]) == ("no", "n/a")
    assert rows[0.7, line_up.MCSD]["identical"] == "n/a"  # sampled, by rejection
    assert rows[0.0, line_up.MCSD]["identical"] == "yes"
    assert rows[0.0, "improved, lossless (4,2,2,1)"]["lossless"] == "yes"
    assert rows[0.0, "improved, one root (1,4,3,1,1)"]["lossless"] == "yes"
    assert rows[0.0, "plain decoding"]["greedy_agreement"] == 1
    assert static["log_prob_difference_low"] <= static["log_prob_difference_high"]
    assert rows[0.0, line_up.STATIC]["tempered_log_prob"] is None
    assert all(row["gpu_modelled_tokens_per_s"] > 0 for row in rows.values())
    assert document["paper"]["tables"][0]["rows"][line_up.SD] == [1.34, 1.4, 1.06, 1.03]


def test_the_report_shows_both_prices_and_what_was_published(done: Path) -> None:
    text = (done / "report.md").read_text()
    assert text.count("## Temperature") == 2
    for words in (
        "2409.10644",
        "| 1.90 | 1.75 |",
        "GPU-like",
        "82 rows",
        "The fork has 8 roots here, where the paper's has 16",
        "lossless: no",
    ):
        assert words in text
    lines = [line for line in text.splitlines() if line.startswith(f"| {line_up.STATIC} | no |")]
    assert len(lines) == 6  # speed, acceptance and likelihood, at both temperatures


def test_a_finished_reproduction_is_not_run_again(folders: dict[str, str], done: Path) -> None:
    assert list(ReproduceRun(plan_of(folders), done, measure=quick)) == []


def test_other_settings_are_refused(folders: dict[str, str], done: Path) -> None:
    with pytest.raises(ConfigError, match="max_new_tokens"):
        ReproduceRun(plan_of(folders, max_new_tokens=9), done, measure=quick)


def test_nothing_finished_is_nothing_to_report(folders: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no finished prompt"):
        write_reproduction(plan_of(folders), tmp_path)


def test_host_work_has_time_however_many_methods_there_are() -> None:
    assert wide_budget(1) == pytest.approx((15, 0.2))
    assert wide_budget(40) == pytest.approx((53, 41 / 53))
    assert wide_budget(500) == pytest.approx((60, 0.8))


def test_a_wide_table_is_measured_at_the_requests_temperature(folders: dict[str, str]) -> None:
    target = Engine(TableModel.random(4)).target
    table = measure_wide(target, {}, GenerationOptions(temperature=0.7))
    assert table.provenance["temperature"] == 0.7
    assert table.target.nodes[-1] == 192


def test_lossy_engines_are_measured_by_the_cost_table(folders: dict[str, str]) -> None:
    """Their drafts are timed like those of any method."""
    from foredraft.engine.calibration import calibrate
    from foredraft.engine.load import load

    engine: Engine = load(
        folders["model"],
        method=method_names.lossy("2,2,1"),
        drafter=folders["drafter"],
        dtype="float32",
    )
    table = calibrate(engine.target, {LOSSY: engine}, nodes=(1, 4), contexts=(8,), budget_s=0.5)
    assert table.draft_costs(LOSSY) is not None


# --- equal budgets ----------------------------------------------------------------------------------

WIDE = CostTable(
    PassCosts((1, 8, 64), (0,), ((1.0, 1.0, 9.0),)),
    0.0,
    {
        name: DraftCosts(0.0, PassCosts((1,), (0,), ((0.01,),)))
        for name in ("speculative", "mcsd", LOSSY)
    },
)
"""Flat to 8 rows and steep beyond."""


def budget_run() -> Any:
    """A chain, a narrow tree and a wide one, on three prompts; the wider, the more is accepted."""
    kinds = {
        PLAIN: ((1,), 0),
        method_names.chain(2): ((1, 1, 1), 1),
        method_names.mcsd("2,1"): ((1, 2, 2), 2),
        method_names.mcsd("4,2"): ((1, 4, 8), 2),
        method_names.lossy("2,1"): ((2, 2), 1),
    }
    records = [
        prompt_of(
            *(
                answer_of(
                    name,
                    *[round_of(accepted, widths=widths, draft_rows=(1,) * (len(widths) - 1))] * n,
                )
                for name, (widths, accepted) in kinds.items()
            ),
            id=str(n),
        )
        for n in (1, 2, 3)
    ]
    return run_of(*records, costs=WIDE, lossy=[method_names.lossy("2,1")])


def test_the_best_of_each_family_is_chosen_by_the_price_of_its_rounds() -> None:
    run = budget_run()
    found = best_shapes(run, document_of(run)["rows"], (16,))
    best = {(row["price"], row["family"]): row for row in found}
    assert best["modelled", TREES]["method"] == method_names.mcsd(
        "2,1"
    )  # 13 rows cost too much here
    assert best["modelled", ROOTED]["lossless"] == "no"
    assert best["modelled", CHAINS]["modelled_vs_chain"] == pytest.approx(1)
    assert best["modelled", TREES]["modelled_vs_chain"] == pytest.approx(3 / 2)
    assert best["modelled", TREES]["rows"] == 5


def test_chains_with_a_decision_model_are_held_against_the_best_fixed_one() -> None:
    cut = method_names.cut(method_names.chain(5), "soft", "any")
    records = [
        prompt_of(
            answer_of(PLAIN, *[round_of(0, widths=(1,), draft_rows=())] * n),
            answer_of(
                method_names.chain(2), *[round_of(1, widths=(1, 1, 1), draft_rows=(1, 1))] * n
            ),
            answer_of(cut, *[round_of(1, widths=(1, 1), draft_rows=(1,))] * n),
            id=str(n),
        )
        for n in (1, 2, 3)
    ]
    run = run_of(*records, costs=WIDE)
    found = best_shapes(run, document_of(run)["rows"], (8,), "soft")
    (row,) = [r for r in found if (r["price"], r["family"]) == ("modelled", CUT_CHAINS)]
    assert row["method"] == cut
    assert row["modelled_vs_chain"] == pytest.approx(1.02 / 1.01)  # a draft pass less


def test_budgets_have_a_table_for_each_price() -> None:
    run = budget_run()
    found = best_shapes(run, document_of(run)["rows"], (8, 16))
    text = "\n".join(budget_tables(found))
    assert text.count("### ") == 4
    assert f"{method_names.lossy('2,1')} (lossless: no)" in text


@pytest.mark.parametrize("suites", ["builtin", "mine.jsonl,builtin/rag", "mine.jsonl"])
def test_hindsight_is_said(suites: str, tmp_path: Path) -> None:
    run = budget_run()
    rows = [
        {"temperature": 1.0, "label": row["method"], "greedy_agreement": None, **row}
        for row in document_of(run)["rows"]
    ]
    document = {
        "plan": {"paper": "improved-mcsd", "model": "toy", "temperatures": [1.0], "suites": suites},
        "provenance": {"command": "foredraft bench reproduce"},
        "widths": width_sentence(run),
        "rows": rows,
        "budgets": [{"temperature": 1.0, **row} for row in best_shapes(run, rows, (8,))],
        "notes": [],
    }
    text = report_text(document, tmp_path)
    assert "in hindsight" in text
    assert ("in-sample" in text) == ("builtin" in suites)
    assert "has 8 roots here" not in text  # no fork in these tables
    assert "### 8 draft tokens, priced by this machine" in text


def test_what_wide_passes_cost_is_told_from_the_table() -> None:
    assert width_costs(WIDE, 0) == pytest.approx({45: 1 + 37 / 7, 82: 9 + 18 / 7})
    sentence = width_sentence(budget_run())
    assert f"one of {PAPER_ROWS[0]} rows costs 6.3" in sentence
    assert "one of 82 rows 11.6 times" in sentence
    assert width_sentence(run_of(*budget_run().records)) == ""
