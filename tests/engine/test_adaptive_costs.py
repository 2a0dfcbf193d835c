"""Prices of the adaptive policy: measured at first use, kept by the weights, and never in the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import foredraft
from foredraft import Engine
from foredraft.backends.hf import HFTarget
from foredraft.costs import CostTable, DraftCosts, PassCosts
from foredraft.engine import adaptive_costs
from foredraft.engine.adaptive_costs import drafter_key, keep_costs, with_prices
from foredraft.engine.cost_files import FOLDER
from foredraft.methods import parse_method
from foredraft.policies.adaptive import AdaptivePolicy
from foredraft.policies.prices import Prices
from tests.drafters.eagle_rounds import make_head
from tests.tiny_models import tiny_llama

pytestmark = pytest.mark.measures
MODEL = tiny_llama()
TARGET = HFTarget(MODEL)
HEAD = make_head(MODEL, "eagle3")
OTHER = make_head(MODEL, "eagle3", seed=1)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path))
    monkeypatch.setattr(adaptive_costs, "BUSY_SPREAD", 1e9)  # this machine may be busy
    return tmp_path


def unpriced(head: object | None = HEAD, method: str = "adaptive") -> Engine:
    parts = parse_method(method).build(head)
    return Engine(TARGET, parts.drafter, parts.policy, parts.verifier)


def prices_of(engine: Engine) -> Prices:
    assert isinstance(engine.policy, AdaptivePolicy)
    return engine.policy.prices


def told(engine: Engine) -> tuple[Engine, list[str]]:
    """The engine with prices, and what was reported."""
    lines: list[str] = []
    return with_prices(engine, report=lines.append), lines


def test_prices_are_measured_once() -> None:
    first, lines = told(unpriced())
    assert lines == ["measuring what passes cost on this machine (once)"]
    again, lines = told(unpriced())
    assert lines == []
    assert prices_of(first) == prices_of(again)
    assert prices_of(first).level is not None
    assert prices_of(first) != Prices.assumed(has_model=True)


def test_every_drafter_has_an_entry_of_its_own() -> None:
    for head in (HEAD, OTHER, None):
        assert told(unpriced(head))[1]
    for head in (HEAD, OTHER, None):
        assert not told(unpriced(head))[1]
    assert prices_of(told(unpriced(None))[0]).level is None


def test_another_dtype_is_another_table() -> None:
    told(unpriced(None))
    half = HFTarget(tiny_llama().bfloat16())
    parts = parse_method("adaptive").build(None)
    assert told(Engine(half, parts.drafter, parts.policy, parts.verifier))[1]


def test_a_damaged_table_is_measured_again(home: Path) -> None:
    told(unpriced(None))
    (file,) = (home / FOLDER).iterdir()
    file.write_text(file.read_text()[:50])
    assert told(unpriced(None))[1]
    assert json.loads(file.read_text())["drafts"]


def test_a_home_that_cannot_be_written_costs_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path / "file"))
    for _ in range(2):
        engine, lines = told(unpriced(None))
        assert lines
        assert engine.generate([1, 2, 3], max_new_tokens=4).token_ids


def test_a_longer_calibration_is_what_is_read() -> None:
    level = PassCosts((1,), (0,), ((0.25,),))
    passes = PassCosts((1, 8), (0,), ((1.0, 1.5),))
    table = CostTable(passes, 0.125, {"any name": DraftCosts(0.0625, level)})
    keep_costs(table, unpriced())
    engine, lines = told(unpriced())
    assert not lines
    assert prices_of(engine) == Prices(passes, level, 0.125, 0.0625)


def test_what_was_measured_on_a_busy_machine_is_not_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptive_costs, "BUSY_SPREAD", -1.0)
    assert told(unpriced(None))[1]
    assert not (home / FOLDER).exists()
    monkeypatch.undo()
    monkeypatch.setenv("FOREDRAFT_HOME", str(home))
    assert told(unpriced(None))[1]


def test_other_methods_are_left_as_they_are() -> None:
    engine = unpriced(HEAD, "eagle2")
    assert told(engine) == (engine, [])


def test_a_slow_model_is_measured_at_few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a pass took so long that no more than the last grid could be paid."""
    monkeypatch.setattr(adaptive_costs, "BUDGET_S", 1e-9)
    engine, _ = told(unpriced(None))
    assert prices_of(engine).target.nodes == adaptive_costs.GRIDS[-1][0]


def test_keys_tell_drafters_apart() -> None:
    keys = [drafter_key(unpriced(head)) for head in (HEAD, OTHER, None)]
    assert len(set(keys)) == 3
    draft = foredraft.load(TARGET, method="speculative", drafter=HFTarget(tiny_llama(seed=2)))
    assert drafter_key(draft) not in keys
