"""Runs that were killed, interrupted, or asked to go on as something else; and two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft.errors import ConfigError
from foredraft.train.checkpoints import Checkpoints, random_states, restore_random_states
from foredraft.train.folder import CHECKPOINTS
from foredraft.train.loop import fit
from foredraft.train.metrics import Measure
from foredraft.train.objective import Batch, LossReport
from foredraft.train.options import OPTIMIZERS
from tests.train.run_toy import train_toy
from tests.train.toy_training import ToyObjective, counting_corpus, sample, toy_options

ROOT = Path(__file__).parents[2]
LIMIT_S = 240
"""A process that hangs fails; a busy machine does not."""


def run_toy(out: Path, *arguments: str, launcher: tuple[str, ...] = ()) -> int:
    """Train the toy in a process of its own; gives its exit code."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, "-m", "tests.train.run_toy", str(out), *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums in one order, as in the process that is killed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def saved(out: Path, rank: int = 0) -> dict[str, torch.Tensor]:
    """The weights that the process wrote at its end."""
    state: dict[str, torch.Tensor] = torch.load(out / f"rank-{rank}.pt", weights_only=True)
    return state


def metrics(out: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what depends on the clock."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("elapsed_s")
        line.pop("tokens_per_s", None)
    return lines


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Bit-equal weights."""
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


def test_a_killed_run_goes_on_to_the_very_same_weights(tmp_path: Path, one_thread: None) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    weights = train_toy(whole)
    assert run_toy(cut, "--kill-at", "22") == -9  # in the second micro-batch of step 11
    assert [f.name for f in sorted((cut / "checkpoints").glob("step*"))] == [
        "step-00000006.pt",
        "step-00000009.pt",
    ]
    assert not (cut / "toy.json").exists()
    assert same(train_toy(cut), weights)
    assert (whole / "toy.json").read_text() == (cut / "toy.json").read_text()
    assert metrics(whole) == metrics(cut), "a line is missing or stands there twice"


class Dying(ToyObjective):
    """Ends its process, as far as the loop can tell, in the middle of a step."""

    def __init__(self, last_call: int) -> None:
        super().__init__(dropout=0.3)
        self._left = last_call

    def __call__(self, batch: Batch) -> LossReport:
        self._left -= self.module.training
        if not self._left:
            raise KeyboardInterrupt
        return super().__call__(batch)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_by_either_optimizer_goes_on_to_the_very_same_weights(
    tmp_path: Path, one_thread: None, optimizer: str
) -> None:
    options = toy_options(optimizer=optimizer, checkpoint_steps=3, accumulate=2)
    whole, resumed = ToyObjective(dropout=0.3), ToyObjective(dropout=0.3, seed=5)
    fit(whole, counting_corpus(100), options, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):  # in the second micro-batch of step 8
        fit(Dying(last_call=16), counting_corpus(100), options, tmp_path / "cut")
    kept = Checkpoints(tmp_path / "cut" / CHECKPOINTS).latest()
    assert kept is not None
    assert kept["position"]["step"] == 6
    assert set(kept["optimizer"]) == {"adamw", optimizer}
    assert all(state["state"] for state in kept["optimizer"].values())
    fit(resumed, counting_corpus(100), options, tmp_path / "cut", resume=True)
    assert same(whole.module.state_dict(), resumed.module.state_dict())
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "cut")


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    def killed(measure: Measure) -> None:
        if measure.step >= 5:
            raise KeyboardInterrupt

    whole, cut = ToyObjective(), ToyObjective()
    fit(whole, counting_corpus(), toy_options(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit(ToyObjective(), counting_corpus(), toy_options(), tmp_path / "cut", report=killed)
    assert metrics(tmp_path / "cut")
    assert not list((tmp_path / "cut").glob("checkpoints/step-*"))
    fit(cut, counting_corpus(), toy_options(), tmp_path / "cut", resume=True)
    assert same(whole.module.state_dict(), cut.module.state_dict())
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "cut")


def test_two_processes_train_one_model(tmp_path: Path) -> None:
    here = ("--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2")
    launcher = ("-m", "torch.distributed.run", *here)
    run_toy(tmp_path / "two", launcher=launcher)
    first, second = (saved(tmp_path / "two", rank) for rank in range(2))
    assert same(first, second)
    untrained = ToyObjective(dropout=0.3).module.state_dict()
    assert not same(first, untrained)
    assert metrics(tmp_path / "two")[-1]["step"] == 20
    assert metrics(tmp_path / "two")[-1]["loss"] < metrics(tmp_path / "two")[0]["loss"]
    run = json.loads((tmp_path / "two" / "run.json").read_text())
    assert run["processes"] == 2


def test_processes_that_do_not_know_of_one_another_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(ToyObjective(), counting_corpus(), toy_options(steps=1), tmp_path / "a")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match="3 processes were launched, and each sees 1"):
        fit(ToyObjective(), counting_corpus(), toy_options(steps=1), tmp_path / "b")


def stop_after(steps: int) -> Any:
    """A `stop` that is True from its n-th question on."""
    asked = iter(range(10**6))
    return lambda: next(asked) >= steps


def test_a_stopped_run_leaves_a_drafter_and_can_be_gone_on_with(tmp_path: Path) -> None:
    whole = ToyObjective()
    fit(whole, counting_corpus(), toy_options(), tmp_path / "whole")
    first = fit(
        ToyObjective(), counting_corpus(), toy_options(), tmp_path / "cut", stop=stop_after(5)
    )
    assert not first.finished
    assert 0 < first.position.step < 12
    assert (tmp_path / "cut" / "toy.json").exists()
    assert not json.loads((tmp_path / "cut" / "recipe.json").read_text())["finished"]
    objective = ToyObjective(seed=5)  # what it starts from does not matter
    second = fit(objective, counting_corpus(), toy_options(), tmp_path / "cut", resume=True)
    assert second.finished
    assert same(whole.module.state_dict(), objective.module.state_dict())


def test_a_run_stopped_before_it_was_measured_does_not_save_what_it_began_with(
    tmp_path: Path,
) -> None:
    objective = ToyObjective()
    options = toy_options(eval_steps=1000)
    result = fit(objective, counting_corpus(), options, tmp_path, stop=stop_after(8))
    assert not result.finished
    assert result.best is not None
    assert result.best.step == result.position.step > 0
    best = Checkpoints(tmp_path / CHECKPOINTS).best()
    assert best is not None
    assert same(best["module"], objective.module.state_dict())


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    once, twice = ToyObjective(), ToyObjective()
    fit(once, counting_corpus(), toy_options(), tmp_path)
    before = metrics(tmp_path)
    result = fit(twice, counting_corpus(), toy_options(), tmp_path, resume=True)
    assert result.finished
    assert same(once.module.state_dict(), twice.module.state_dict())
    assert metrics(tmp_path) == before


def test_a_run_can_be_made_longer(tmp_path: Path) -> None:
    fit(ToyObjective(), counting_corpus(), toy_options(steps=4), tmp_path)
    result = fit(ToyObjective(), counting_corpus(), toy_options(steps=9), tmp_path, resume=True)
    assert result.position.step == 9


def test_a_folder_with_a_run_is_not_written_over(tmp_path: Path) -> None:
    fit(ToyObjective(), counting_corpus(), toy_options(), tmp_path)
    with pytest.raises(ConfigError, match=r"holds a training run; go on with it by --resume"):
        fit(ToyObjective(), counting_corpus(), toy_options(), tmp_path)


def other_text() -> Any:
    """The usual corpus, with one token changed in place (case 86)."""
    corpus = counting_corpus()
    changed = corpus[3].token_ids.copy()
    changed[1] += 1
    corpus._samples[3] = sample(changed.tolist())
    return corpus


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"options": toy_options(lr=0.02)}, r"options\.lr=0\.01, and this is options\.lr=0\.02"),
        (
            {"options": toy_options(optimizer="muon")},
            r"options\.optimizer='adamw', and this is options\.optimizer='muon'",
        ),
        ({"options": toy_options(max_length=9)}, r"options\.max_length=2048"),
        ({"corpus": counting_corpus(39)}, r"corpus\.samples=40"),
        ({"corpus": other_text()}, r"corpus\.digest="),
        ({"objective": ToyObjective(depths=2)}, None),
        ({"recipe": {"kind": "toy", "draft_ids": "e5"}}, r"draft_ids='d4'"),
        ({"recipe": {"kind": "toy", "draft_ids": "d4", "notes": {"date": "later"}}}, None),
    ],
)
def test_another_run_is_refused_by_naming_the_difference(
    tmp_path: Path, change: dict[str, Any], named: str | None
) -> None:
    values: dict[str, Any] = {
        "objective": ToyObjective(),
        "corpus": counting_corpus(),
        "options": toy_options(),
        "recipe": {"kind": "toy", "draft_ids": "d4", "notes": {"date": "now"}},
    }
    recipe = values.pop("recipe")
    fit(*values.values(), tmp_path, recipe=recipe)
    values |= {"recipe": recipe} | change
    recipe = values.pop("recipe")
    if named is None:
        assert fit(*values.values(), tmp_path, recipe=recipe, resume=True).finished
        return
    with pytest.raises(ConfigError, match=named):
        fit(*values.values(), tmp_path, recipe=recipe, resume=True)


def test_resume_begins_where_there_is_nothing(tmp_path: Path) -> None:
    assert fit(ToyObjective(), counting_corpus(), toy_options(), tmp_path, resume=True).finished


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    fit(ToyObjective(), counting_corpus(), toy_options(), tmp_path)
    (tmp_path / "checkpoints" / "step-00000012.pt").write_bytes(b"half")
    with pytest.raises(ConfigError, match=r"step-00000012\.pt cannot be read"):
        fit(ToyObjective(), counting_corpus(), toy_options(), tmp_path, resume=True)


def test_one_run_at_a_time_has_a_folder(tmp_path: Path) -> None:
    def train_again() -> bool:
        with pytest.raises(ConfigError, match="in use by another training"):
            fit(ToyObjective(), counting_corpus(), toy_options(), tmp_path, resume=True)
        return True

    fit(ToyObjective(), counting_corpus(), toy_options(), tmp_path, stop=train_again)


def test_checkpoints_are_replaced_whole(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 3):
        checkpoints.save(step, {"step": step})
    (tmp_path / ".killed.partial").write_bytes(b"half")

    class Unsaveable:
        def __reduce__(self) -> Any:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        checkpoints.save(4, {"step": Unsaveable()})
    assert checkpoints.latest() == {"step": 3}
    assert sorted(f.name for f in tmp_path.iterdir()) == ["step-00000002.pt", "step-00000003.pt"]


def test_random_states_come_back(tmp_path: Path) -> None:
    import random

    import numpy as np

    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"random": random_states()})

    def draw() -> list[float]:
        return [float(torch.rand(())), float(np.random.rand()), random.random(), random.gauss()]

    first = draw()
    state = checkpoints.latest()
    assert state is not None
    restore_random_states(state["random"])
    assert draw() == first
