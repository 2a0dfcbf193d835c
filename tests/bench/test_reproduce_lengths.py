"""AdaEAGLE's comparison: who takes part, hand-counted figures, and the report of a tiny run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import foredraft
from foredraft.backends.hf import HFTarget
from foredraft.bench.folder import Run
from foredraft.bench.plan import PLAIN
from foredraft.bench.priced_twice import document_of
from foredraft.bench.reproduce.adaeagle import line_up
from foredraft.bench.reproduce.adaeagle.figures import (
    GPU_COSTS,
    best_length,
    best_structure,
    contests,
    gap_closed,
    host_work,
    oracles,
    over_best_length,
)
from foredraft.bench.reproduce.adaeagle.line_up import (
    ADAPTIVE,
    DEEPEST,
    FIXED_LENGTHS,
    PREDICTORS,
    RULES,
    fixed_structures,
    is_fixed,
    length_line_up,
)
from foredraft.bench.reproduce.adaeagle.published import CALLS, MAIN, TABLES
from foredraft.bench.reproduce.adaeagle.report import contest_table, length_table, plain_table
from foredraft.bench.reproduce.plan import PAPERS, ReproducePlan
from foredraft.bench.reproduce.report import write_reproduction
from foredraft.bench.reproduce.run import ReproduceRun
from foredraft.bench.rows import ALL
from foredraft.config import METHODS
from foredraft.costs import CostTable, DraftCosts, PassCosts
from foredraft.drafters.eagle.checkpoint import save_head
from foredraft.drafters.eagle.head import EagleHead
from foredraft.errors import ConfigError
from foredraft.methods import parse_method
from tests.bench.synthetic_runs import answer_of, prompt_of, round_of, run_of
from tests.tiny_folders import save_folder

PROMPTS = ("the cat sat on the mat the cat", "mat mat mat mat")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A tiny target, a head of it, and two suites of one question."""
    root = tmp_path_factory.mktemp("models")
    suites = [root / "cats.jsonl", root / "mats.jsonl"]
    for suite, text in zip(suites, PROMPTS, strict=True):
        suite.write_text(json.dumps({"prompt": text}))
    model = save_folder(root / "target")
    target = foredraft.load(model, drafter="none", dtype="float32", method=PLAIN).target
    assert isinstance(target, HFTarget)
    save_head(EagleHead.for_target(target.model, 3), root / "head")
    return {
        "model": str(model),
        "drafter": str(root / "head"),
        "suites": ",".join(map(str, suites)),
    }


def plan_of(folders: dict[str, str], **changes: Any) -> ReproducePlan:
    values: dict[str, Any] = {
        **folders,
        "paper": "adaeagle",
        "max_new_tokens": 8,
        "dtype": "float32",
    }
    return ReproducePlan(**values | changes)


def quick(*_: Any) -> CostTable:
    """Costs that are measured in their own tests."""
    return CostTable.flat(0.02, 0.002, ("eagle2", "eagle", "hybrid", ADAPTIVE, *FIXED_LENGTHS))


# --- who takes part ----------------------------------------------------------------------------------


def test_every_row_is_a_method_of_a_head_that_can_be_built() -> None:
    entries = length_line_up((), shipped=False, structures=True)
    methods = [entry.method for entry in entries]
    assert len(set(methods)) == len(methods)
    assert len({entry.label for entry in entries}) == len(entries)
    for name in methods:
        method = parse_method(name)
        method.check("head" if method.needs else None)


def test_the_line_up_is_the_papers_with_its_predictors() -> None:
    labels = {entry.label for entry in length_line_up((), shipped=True, structures=False)}
    assert set(MAIN.rows) <= labels
    assert {label for label, _ in RULES} < labels


def test_predictors_of_an_ablation_stand_in_both_forms() -> None:
    added = length_line_up(("runs/no-penalty",), shipped=False, structures=False)
    methods = {e.label: e.method for e in added if "no-penalty" in e.method}
    assert methods == {
        "AdaEAGLE, no-penalty": "adaeagle:length=runs/no-penalty",
        "AdaEAGLE with threshold, no-penalty": "adaeagle-threshold:length=runs/no-penalty",
    }


def test_fixed_structures_are_those_of_the_competition() -> None:
    found = [*FIXED_LENGTHS, *fixed_structures()]
    assert all(map(is_fixed, found))
    assert not any(is_fixed(m) for m in (PLAIN, ADAPTIVE, "adaeagle", f"{DEEPEST}:stop=confidence"))
    assert sum(m.startswith("hybrid") for m in found) * 2 == len(found)  # each with and without
    for depth in (3, 5, 7):
        for nodes in (8, 16, 24):
            assert f"eagle2:depth={depth}:nodes={nodes}" in found


def test_trees_have_sixteen_nodes_at_most() -> None:
    for tree in line_up.TREES:
        width = nodes = 1
        for k in map(int, tree.split(",")):
            width *= k
            nodes += width
        assert nodes - 1 <= 16


def test_without_a_predictor_of_the_head_a_note_says_so(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(folders)
    own = [entry.method for entry in plan.entries(0.0) if entry.method.startswith("adaeagle")]
    assert own == []
    assert len(plan.notes) == 1
    assert plan.notes[0].startswith("AdaEAGLE did not take part")
    monkeypatch.setattr(line_up, "METHODS", (*METHODS, "adaeagle"))
    monkeypatch.setattr(line_up, "shipped", lambda model, kind: Path("weights"))
    assert line_up.missing_predictor("smollm2", None) is None
    assert "--predictors FOLDER" in str(line_up.missing_predictor("smollm2", folders["drafter"]))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"drafter": None}, "no EAGLE head ships for .*give one with --drafter"),
        ({"budgets": (8,)}, "has no meaning for adaeagle"),
        ({"decision": "soft"}, "has no meaning for adaeagle"),
        ({"paper": "improved-mcsd", "structures": True}, "has no meaning for improved-mcsd"),
        ({"paper": "improved-mcsd", "predictors": ("x",)}, "has no meaning for improved-mcsd"),
        ({"temperatures": (0.0, 0.0)}, "one twice"),
        ({"repeats": 0}, "repeats=0"),
    ],
)
def test_mistakes_are_one_sentence(
    folders: dict[str, str], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        plan_of(folders, **changes)


def test_a_draft_model_is_no_head(folders: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="is a draft model, and draft lengths are compared with"):
        plan_of(folders, drafter=folders["model"])


def test_each_paper_has_temperatures_of_its_own(folders: dict[str, str]) -> None:
    assert plan_of(folders).temperatures == PAPERS["adaeagle"].temperatures == (0.0,)
    assert plan_of(folders, temperatures=(1.0,)).temperatures == (1.0,)
    assert list(plan_of(folders).runs) == ["t0"]


# --- as published ------------------------------------------------------------------------------------


def test_published_ratios_are_the_papers() -> None:
    assert MAIN.figure("AdaEAGLE with threshold", "vs plain") == pytest.approx(1.607, abs=0.001)
    assert MAIN.figure("AdaEAGLE", "vs best fixed length") == pytest.approx(1.011, abs=0.001)
    assert MAIN.figure("adaptive", "tau") is None
    assert CALLS.figure("AdaEAGLE", "target passes") == pytest.approx(1 / 3.03, abs=0.001)
    assert CALLS.figure("oracle", "waste") == 0
    assert all(len(values) == len(t.columns) for t in TABLES for values in t.rows.values())
    assert "| 33313 | 13952 | 0 | 0.30 | 0.70 | 0.00 |" in CALLS.text()


# --- figures, by hand --------------------------------------------------------------------------------

LEVELS = PassCosts((1,), (0,), ((1.0,),))
COSTS = CostTable(
    PassCosts((1, 11), (0,), ((10.0, 20.0),)),
    0.0,
    {
        name: DraftCosts(0.5, LEVELS)
        for name in ("eagle-chain-1", "eagle-chain-2", DEEPEST, "eagle", ADAPTIVE)
    },
)
"""A pass of n rows costs 9 + n seconds, one of the head 1, and the host half a second a draft."""
TREE = "eagle:tree=4,2"


def chain(depth: int, accepted: int) -> Any:
    """A round of a chain."""
    return round_of(accepted, widths=(1,) * (depth + 1), draft_rows=(1,) * depth)


def suite_of(name: str, lengths: Sequence[int], **adaptive: Any) -> list[Any]:
    """Two equal prompts: plain decoding, chains of 1 and 8, a tree, and the adaptive policy.

    The chain of 8 is accepted by these lengths; chains of 1 take a round more for each token past the first.
    """
    short = [length for n in lengths for length in _by_ones(n)]
    answers = [
        answer_of(PLAIN, *[round_of()] * sum(n + 1 for n in lengths)),
        answer_of("eagle-chain-1", *(chain(1, n) for n in short)),
        answer_of(DEEPEST, *(chain(8, n) for n in lengths)),
        answer_of(TREE, *[round_of(1, widths=(1, 4, 8), draft_rows=(1, 4))] * len(lengths)),
        answer_of(ADAPTIVE, *(chain(n, n) for n in lengths), **adaptive),
    ]
    return [prompt_of(*answers, suite=name, id=str(i)) for i in range(2)]


def _by_ones(length: int) -> list[int]:
    """What chains of 1 accept on the way: `length` + 1 tokens."""
    return [1] * ((length + 1) // 2) + [0] * ((length + 1) % 2)


def small_run() -> Run:
    """One suite where drafts are accepted by 2 and 0, and one where by 5."""
    return run_of(*suite_of("chat", (2, 0)), *suite_of("code", (5,)), costs=COSTS)


def rows_of(run: Run) -> list[dict[str, Any]]:
    """Its rows, priced twice."""
    rows: list[dict[str, Any]] = document_of(run, GPU_COSTS)["rows"]
    return rows


ONE, ZERO = 11 + 1 + 0.5, 10
"""Seconds of a chain of 1, and of a round without a draft."""
EIGHT = 18 + 8 + 0.5


def test_the_best_length_is_that_of_its_price_and_suite() -> None:
    rows = rows_of(small_run())
    assert best_length(rows, "modelled") == "eagle-chain-1"  # 10 tokens for 6 x 12.5, not 3 x 26.5
    assert best_length(rows, "gpu") == DEEPEST  # 3 passes with 8 levels at a twentieth
    assert best_length(rows, "modelled", "code") == DEEPEST  # 6 for 26.5, not 37.5
    assert best_structure(rows, "modelled") in ("eagle-chain-1", TREE)
    assert best_length([], "modelled") is None


def test_the_oracle_is_the_longest_chain_without_its_waste() -> None:
    run = small_run()
    found = {oracle["suite"]: oracle for oracle in oracles(run, rows_of(run))}
    assert set(found) == {"chat", "code", ALL}
    pooled = found[ALL]
    two, none, five = 12 + 2 + 0.5, 10, 15 + 5 + 0.5
    assert pooled["modelled_tokens_per_s"] == pytest.approx(10 / (two + none + five))
    assert (pooled["draft_passes"], pooled["target_passes"], pooled["waste"]) == (14, 6, 0)
    assert pooled["mean_acceptance_length"] == pytest.approx(1 + 7 / 3)
    assert pooled["modelled_vs_plain"] == pytest.approx(100 / (two + none + five))
    assert pooled["modelled_vs_length"] == pytest.approx(6 * ONE / (two + none + five))
    assert pooled["gpu_vs_length"] == pytest.approx((3 + 24 / 20) / (3 + 7 / 20))
    assert found["code"]["modelled_vs_length"] == pytest.approx(EIGHT / five)


def test_a_policy_that_drafts_as_the_oracle_does_closes_the_gap() -> None:
    """The adaptive policy here makes the oracle's rounds, with host work in each that drafts."""
    run = small_run()
    rows = rows_of(run)
    pooled = next(o for o in oracles(run, rows) if o["suite"] == ALL)
    priced = 14.5 + 10.5 + 20.5  # a round without a draft has host work too, of its policy
    best, top, mine = 10 / (6 * ONE), 10 / (14.5 + 10 + 20.5), 10 / priced
    assert gap_closed(rows, pooled, ADAPTIVE, "modelled") == pytest.approx(
        (mine - best) / (top - best)
    )
    assert gap_closed(rows, pooled, "eagle-chain-1", "modelled") == 0
    assert gap_closed(rows, pooled, ADAPTIVE, "gpu") == pytest.approx(1)
    assert gap_closed(rows, None, ADAPTIVE, "modelled") is None
    assert gap_closed(rows, pooled, "absent", "modelled") is None


def test_speeds_over_the_best_length_are_each_prices_own() -> None:
    run = small_run()
    ratios = over_best_length(run, rows_of(run), DEEPEST)
    assert ratios["modelled_vs_length"] == pytest.approx(6 * ONE / (3 * EIGHT))
    assert ratios["gpu_vs_length"] == pytest.approx(1)
    assert ratios["measured_vs_length"] == pytest.approx(2)  # 6 rounds of equal time against 3
    assert ratios["modelled_vs_length_low"] is not None


def test_contests_name_the_best_of_all_suites_and_each_suites_own() -> None:
    run = small_run()
    found = {row["suite"]: row for row in contests(run, rows_of(run))}
    assert list(found) == [ALL, "chat", "code"]
    overall = found[ALL]["overall"]
    assert all(row["overall"] == overall for row in found.values())
    assert found[ALL]["own"] == overall
    assert found["code"]["own"] == DEEPEST
    assert found["code"]["modelled_vs_own"] == pytest.approx(EIGHT / 20.5)
    without = run_of(*(prompt_of(*r.answers[:3], suite=r.suite, id=r.id) for r in run.records))
    assert list(contests(without, [])) == []


def test_without_a_cost_table_the_gpus_price_and_the_clock_are_left() -> None:
    run = run_of(*small_run().records)
    rows = rows_of(run)
    ratios = over_best_length(run, rows, ADAPTIVE)
    assert ratios["modelled_vs_length"] is None
    assert ratios["measured_vs_length"] is None  # which is held against the modelled best
    assert ratios["gpu_vs_length"] == pytest.approx((3 + 24 / 20) / (3 + 7 / 20))
    (pooled,) = (o for o in oracles(run, rows) if o["suite"] == ALL)
    assert "modelled_vs_plain" not in pooled
    assert "| oracle | 3.33 |" in plain_table([], pooled)
    assert set(host_work(run, DEEPEST).values()) == {None}


def test_host_work_is_what_drafting_adds_beside_passes() -> None:
    """Rounds of 20 ms: 4 of drafting, 2 of verification and 2 of the rest, as plain decoding has."""
    cheap = CostTable(
        PassCosts((1,), (0,), ((0.01,),)),
        0.0,
        {DEEPEST: DraftCosts(0.001, PassCosts((1,), (0,), ((0.0001,),)))},
    )
    run = run_of(
        prompt_of(answer_of(PLAIN, *[round_of()] * 4), answer_of(DEEPEST, *[chain(8, 3)] * 2)),
        costs=cheap,
    )
    found = host_work(run, DEEPEST)
    assert found["draft_host_ms"] == pytest.approx(4 - 8 * 0.1)
    assert found["host_share"] == pytest.approx(3.2 / 20)
    assert found["modelled_host_share"] == pytest.approx(1 / (10 + 0.8 + 1))


# --- a whole run -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished reproduction on the tiny model, with few structures."""
    out = tmp_path_factory.mktemp("reproduced")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_up, "DEPTHS", (3,))
        patch.setattr(line_up, "NODES", (8,))
        patch.setattr(line_up, "TREES", ("2,1",))
        plan = plan_of(folders, structures=True)
        for _ in ReproduceRun(plan, out, measure=quick):
            pass
        write_reproduction(plan, out)
    return out


def test_rows_have_the_oracles_and_the_best_lengths_beside_them(done: Path) -> None:
    document = json.loads((done / "results.json").read_text())
    (part,) = document["temperatures"]
    assert part["best_length"]["modelled"] in FIXED_LENGTHS
    assert [oracle["suite"] for oracle in part["oracles"]] == ["cats", "mats", ALL]
    assert [row["suite"] for row in part["contests"]] == [ALL, "cats", "mats"]
    pool = {row["label"]: row for row in document["rows"] if row["suite"] == ALL}
    assert {"plain decoding", "fixed 8", "adaptive", "eagle2:depth=3:nodes=8"} <= set(pool)
    assert {row["identical"] for row in pool.values()} == {"yes"}
    assert pool["fixed 8"]["draft_passes"] > pool["fixed 8"]["oracle_draft_passes"]
    assert part["oracles"][-1]["draft_passes"] == pool["fixed 8"]["oracle_draft_passes"]
    assert document["paper"]["tables"][0]["rows"]["AdaEAGLE"][0] == 2.93
    assert not list(done.glob("*/scores.jsonl"))  # nothing here changes answers


def test_the_report_has_each_table_once(done: Path) -> None:
    text = (done / "report.md").read_text()
    for heading in (
        "## Temperature 0, 2 prompts",
        "### Against plain decoding",
        "### Against the best fixed length",
        "### By suite: modelled, against plain decoding",
        "### Passes and waste, per emitted token",
        "### A round's time",
        "### The adaptive policy against fixed structures",
        "### Fixed structures, the fastest first",
        "## As published",
    ):
        assert text.count(heading) == 1
    assert "2412.18910" in text
    assert "| AdaEAGLE | 2.93 | 64.44 | 1.59 | 1.01 |" in text
    assert "AdaEAGLE did not take part" in text
    assert len([line for line in text.splitlines() if line.startswith("| oracle |")]) == 5
    line = next(line for line in text.splitlines() if line.startswith("| fixed 3 |"))
    assert "| 2.63 |" in line  # the paper's tau beside it
    assert "| hybrid:depth=10:tree=2,1 |" in text


def test_a_finished_reproduction_is_not_run_again(folders: dict[str, str], done: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("DEPTHS", (3,)), ("NODES", (8,)), ("TREES", ("2,1",))):
            patch.setattr(line_up, name, value)
        assert list(ReproduceRun(plan_of(folders, structures=True), done, measure=quick)) == []


def test_other_settings_are_refused(folders: dict[str, str], done: Path) -> None:
    with pytest.raises(ConfigError, match="methods"):
        ReproduceRun(plan_of(folders), done, measure=quick)


def test_nothing_finished_is_nothing_to_report(folders: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no finished prompt"):
        write_reproduction(plan_of(folders), tmp_path)


def test_tables_show_what_is_not_known_as_such() -> None:
    run = small_run()
    rows = [
        {
            **row,
            "label": row["method"],
            **over_best_length(run, rows_of(run), row["method"]),
            "modelled_gap_closed": None,
            "gpu_gap_closed": None,
        }
        for row in rows_of(run)
        if row["suite"] == ALL
    ]
    assert PLAIN not in length_table(rows, None)
    assert length_table(rows, None).count("| – |") >= 1
    assert contest_table(list(contests(run, rows_of(run)))).count(DEEPEST) == 1


def test_predictors_are_named_as_the_paper_names_them() -> None:
    assert dict(PREDICTORS) == {
        "AdaEAGLE": "adaeagle",
        "AdaEAGLE with threshold": "adaeagle-threshold",
    }
