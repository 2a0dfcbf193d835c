"""Heads have costs as models have: each is timed once, and its rounds get a price."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import foredraft
from foredraft.backends.hf import HFTarget
from foredraft.bench.folder import RECORDS, RunFolder
from foredraft.bench.modelled import modelled_tokens_per_s
from foredraft.bench.plan import PLAIN, BenchPlan
from foredraft.bench.report import write_report
from foredraft.bench.runner import BenchRun
from foredraft.costs import CostTable
from foredraft.drafters.eagle.checkpoint import save_head
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.eagle.passes import HeadPasses
from foredraft.engine.calibration import calibrate, draft_model
from foredraft.engine.engine import Engine
from foredraft.engine.pass_costs import measure_passes
from foredraft.errors import ConfigError
from foredraft.protocols import Target
from foredraft.results import RoundRecord, Statistics
from foredraft.tree import NO_PARENT
from tests.tiny_folders import save_folder
from tests.tiny_models import tiny_llama


@pytest.fixture(scope="module")
def target() -> HFTarget:
    return HFTarget(tiny_llama())


@pytest.fixture(scope="module", params=[1, 3])
def head(request: pytest.FixtureRequest, target: HFTarget) -> EagleHead:
    ids = None if request.param == 1 else torch.arange(0, 96, 3)
    return EagleHead.for_target(target.model, request.param, draft_ids=ids)


def test_passes_of_a_head_are_timed_like_a_models(head: EagleHead) -> None:
    passes = HeadPasses(head, window=64)
    assert isinstance(passes, Target)
    costs = measure_passes(passes, (1, 4), (8, 40), 0.1)
    assert costs.nodes == (1, 4)
    assert costs.contexts == (8, 40)


def test_a_pass_is_a_level_of_a_draft(head: EagleHead) -> None:
    """The law of a row depends on the text and on its ancestors, and on no other row."""
    state = HeadPasses(head, window=64).start(32)
    state.prefill([5, 6, 7])
    alone = state.score([8], [NO_PARENT])
    state.commit(())
    assert state.length == 3
    among = state.score([9, 8, 4], [NO_PARENT] * 3)
    torch.testing.assert_close(among[1:2], alone, rtol=0, atol=1e-4)
    assert among.shape == (3, head.config.draft_vocab_size)
    below = state.score([8, 8], [0, 1])
    assert (below[0] - below[1]).abs().max() > 1e-3
    state.commit(())
    state.close()


def test_a_head_is_timed_once_for_all_its_methods(target: HFTarget, head: EagleHead) -> None:
    engines = {
        name: foredraft.load(target, method=name, drafter=head)
        for name in ("eagle2", "eagle", "eagle-chain-2")
    }
    said: list[str] = []
    table = calibrate(
        target, engines, nodes=(1, 4), contexts=(8,), budget_s=0.4, report=said.append
    )
    assert sum(line.startswith("reading") for line in said) == 2  # the target and the head
    assert table.drafts.keys() == engines.keys()
    assert len({id(costs.passes) for costs in table.drafts.values()}) == 1
    assert CostTable.from_dict(table.as_dict()).draft_costs("eagle2:nodes=9") is not None


def test_the_model_of_a_drafts_passes(target: HFTarget, head: EagleHead) -> None:
    engine = Engine(target, EagleDrafter(head, window=9))
    assert draft_model(engine) == HeadPasses(head, 9)
    assert draft_model(engine) != HeadPasses(head, 8)


# --- benchmarks -------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    """A model's folder and that of a head for it."""
    model = str(save_folder(tmp_path / "model"))
    loaded = foredraft.load(model, drafter="none", dtype="float32").target
    assert isinstance(loaded, HFTarget)
    save_head(EagleHead.for_target(loaded.model, 3), tmp_path / "head")
    return model, str(tmp_path / "head")


def plan(
    folders: tuple[str, str], tmp_path: Path, *methods: str, **changes: str | None
) -> BenchPlan:
    file = tmp_path / "suite.jsonl"
    file.write_text(json.dumps({"id": "a", "prompt": "the cat sat on the mat"}))
    values: dict[str, Any] = {
        "model": folders[0],
        "drafter": folders[1],
        "suites": str(file),
        "methods": methods,
        "max_new_tokens": 10,
        "dtype": "float32",
    }
    return BenchPlan(**values | changes)


def test_a_benchmark_runs_heads_and_prices_their_rounds(
    folders: tuple[str, str], tmp_path: Path
) -> None:
    methods = (PLAIN, "ngram", "eagle2:nodes=6:depth=2", "eagle-chain-3")
    made = plan(folders, tmp_path, *methods)

    def measure(target: Target, engines: dict[str, Engine], _: Any) -> CostTable:
        return calibrate(target, engines, nodes=(1, 8), contexts=(16,), budget_s=0.2)

    folder = RunFolder(tmp_path / "run")
    for _ in BenchRun(made, folder, measure=measure):  # type: ignore[arg-type]
        pass
    run = folder.read()
    (record,) = run.records
    assert [answer.method for answer in record.answers] == list(methods)
    assert {answer.identical for answer in record.answers} <= {"yes", "n/a"}
    for answer in record.answers:
        stats = Statistics.pool([answer.stats])
        assert modelled_tokens_per_s(stats, run.costs, answer.method)
        if answer.method.startswith("eagle"):
            assert any(r.draft_rows for r in stats.rounds)
    begun = folder.read_plan()
    assert begun is not None
    assert begun["provenance"]["head_weights"]


@pytest.fixture
def another(folders: tuple[str, str], tmp_path: Path) -> str:
    """The folder of a second head for the model."""
    loaded = foredraft.load(folders[0], drafter="none", dtype="float32").target
    assert isinstance(loaded, HFTarget)
    save_head(EagleHead.for_target(loaded.model, 1), tmp_path / "another")
    return str(tmp_path / "another")


def test_a_benchmark_sets_several_heads_beside_each_other(
    folders: tuple[str, str], another: str, tmp_path: Path
) -> None:
    named = f"eagle2:drafter={another}", f"eagle-chain-3:drafter={another}"
    made = plan(folders, tmp_path, PLAIN, "eagle2", *named)
    seen: dict[str, Any] = {}

    def measure(target: Target, engines: dict[str, Engine], _: Any) -> CostTable:
        seen.update({name: getattr(e.drafter, "head", None) for name, e in engines.items()})
        return CostTable.flat(0.02, 0.002)

    folder = RunFolder(tmp_path / "run")
    for _ in BenchRun(made, folder, measure=measure):  # type: ignore[arg-type]
        pass
    (record,) = folder.read().records
    assert [answer.method for answer in record.answers] == [PLAIN, "eagle2", *named]
    assert {answer.identical for answer in record.answers} == {"yes"}
    assert seen[named[0]] is seen[named[1]]
    assert (seen["eagle2"].config.variant, seen[named[0]].config.variant) == (3, 1)
    rows = write_report(folder, None)["rows"]
    assert {row["method"] for row in rows} == {PLAIN, "eagle2", *named}


def test_a_run_does_not_go_on_with_another_head_in_the_named_folder(
    folders: tuple[str, str], another: str, tmp_path: Path
) -> None:
    made = plan(folders, tmp_path, f"eagle2:drafter={another}", drafter=None)
    folder = RunFolder(tmp_path / "run")

    def measure(*_: Any) -> CostTable:
        return CostTable.flat(0.02, 0.002)

    for _ in BenchRun(made, folder, measure=measure):
        pass
    (folder.path / RECORDS).unlink()
    assert folder.read_plan()["provenance"]["own_weights"].keys() == {another}  # type: ignore[index]
    shutil.rmtree(another)
    shutil.copytree(folders[1], another)
    with pytest.raises(ConfigError, match="begun with own_weights"):
        list(BenchRun(made, folder, measure=measure))


def test_a_plan_knows_which_drafters_are_named(
    folders: tuple[str, str], another: str, tmp_path: Path
) -> None:
    own = f"eagle2:drafter={another}"
    assert not plan(folders, tmp_path, own, drafter=None).needed
    for methods, complaint in (
        ((own,), f"is not used by any of autoregressive, {own}; add eagle2 or eagle"),
        (("eagle2", "eagle2:drafter=eagle1"), "neither shipped nor a folder; none ships for this"),
        (("eagle2", f"speculative:drafter={another}"), "the drafter given is an EAGLE head"),
        (("eagle2", f"{own}:nodes=5", f"eagle2:nodes=5:drafter={another}"), "are the same"),
        (("eagle2", f"hf-assisted:drafter={another}"), "has no option"),
    ):
        with pytest.raises(ConfigError) as caught:
            plan(folders, tmp_path, *methods)
        assert complaint in str(caught.value)


def test_heads_and_draft_models_are_not_taken_for_each_other(
    folders: tuple[str, str], tmp_path: Path
) -> None:
    for methods, complaint in (
        (("ngram",), "not used by any of autoregressive, ngram; add eagle2 or eagle"),
        (("speculative", "eagle2"), "'speculative' needs a draft model; give one"),
        (("hf-assisted",), "'hf-assisted' needs a draft model; give one"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            plan(folders, tmp_path, *methods)
    model = folders[0], folders[0]
    with pytest.raises(ConfigError, match="'eagle2' needs an EAGLE head; give one"):
        plan(model, tmp_path, "eagle2")
    with pytest.raises(ConfigError, match="add speculative or hf-assisted"):
        plan(model, tmp_path, "ngram")


def test_a_price_of_a_head_depends_on_its_rows(target: HFTarget, head: EagleHead) -> None:
    engine = foredraft.load(target, drafter=head)
    table = calibrate(target, {"eagle2": engine}, nodes=(1, 2), contexts=(4,), budget_s=0.1)
    record = RoundRecord(8, (1, 2), (2, 1), 1, 2, False, 0.0, 0.0, 0.0, 0.0)
    unpriced = RoundRecord(8, (1, 2), (), 1, 2, False, 0.0, 0.0, 0.0, 0.0)
    priced, bare = table.passes_s(record, "eagle2"), table.passes_s(unpriced, "eagle2")
    assert priced is not None
    assert bare is not None
    assert priced > bare
