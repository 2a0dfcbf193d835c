"""The training loop: it learns, measures, ends where it should, and survives bad numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft.errors import ConfigError, NumericsError
from foredraft.train.loop import fit
from foredraft.train.metrics import Measure
from foredraft.train.objective import Batch, LossReport
from foredraft.train.options import OPTIMIZERS, TrainOptions
from foredraft.train.schedule import Position, learning_rate, progress
from foredraft.train.stepping import Stepper, make_accelerator
from tests.train.toy_training import ToyObjective, counting_corpus, toy_options


def lines(out: Path) -> list[dict[str, Any]]:
    """metrics.jsonl."""
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_it_learns_and_tells(tmp_path: Path) -> None:
    told: list[Measure] = []
    options = toy_options(steps=60, eval_steps=20, log_steps=10, lr=0.03)
    result = fit(ToyObjective(), counting_corpus(200), options, tmp_path, report=told.append)
    assert result.finished
    assert result.best is not None
    assert result.best.acceptance[0] > 0.7
    assert [line["step"] for line in lines(tmp_path) if line["kind"] == "train"] == [
        *range(10, 61, 10)
    ]
    held_out = [line for line in lines(tmp_path) if line["kind"] == "held_out"]
    assert [line["step"] for line in held_out] == [0, 20, 40, 60]
    assert held_out[-1]["loss"] < held_out[0]["loss"]
    assert [m.as_dict() for m in told] == lines(tmp_path)
    assert (tmp_path / "plot.png").stat().st_size > 1000
    recipe = json.loads((tmp_path / "recipe.json").read_text())
    assert recipe["finished"]
    assert recipe["counts"]["trained"] + recipe["counts"]["held_out"] == 200


def test_it_learns_by_muon_too(tmp_path: Path) -> None:
    options = toy_options(steps=60, eval_steps=60, lr=0.03, optimizer="muon")
    result = fit(ToyObjective(), counting_corpus(200), options, tmp_path)
    assert result.best is not None
    assert result.best.acceptance[0] > 0.5  # 1 in 23 by chance
    assert json.loads((tmp_path / "run.json").read_text())["options"]["optimizer"] == "muon"


def test_the_folder_holds_the_best_weights(tmp_path: Path) -> None:
    """With a learning rate that ends by spoiling everything, the best is not the last."""

    class Spoilt(ToyObjective):
        calls = 0

        def __call__(self, batch: Batch) -> LossReport:
            self.calls += self.module.training
            report = super().__call__(batch)
            return replace(report, loss=-report.loss) if self.calls > 40 else report

    objective = Spoilt(dropout=0.0)
    options = toy_options(steps=60, eval_steps=10, lr_floor=1.0)
    result = fit(objective, counting_corpus(200), options, tmp_path)
    assert result.best is not None
    assert 0 < result.best.step < 60
    kept = torch.load(tmp_path / "checkpoints" / "best.pt", weights_only=True)["module"]
    saved = json.loads((tmp_path / "toy.json").read_text())
    assert saved == {name: tensor.tolist() for name, tensor in kept.items()}
    assert any(not kept[k].equal(v) for k, v in objective.module.state_dict().items())


@pytest.mark.parametrize(
    ("limits", "steps"),
    [
        ({"steps": 7}, 7),
        ({"steps": None, "epochs": 2}, None),
        ({"steps": 3, "epochs": 2, "minutes": 60.0}, 3),
    ],
)
def test_it_ends_at_the_first_limit(
    tmp_path: Path, limits: dict[str, Any], steps: int | None
) -> None:
    result = fit(ToyObjective(), counting_corpus(), toy_options(**limits), tmp_path)
    assert result.finished
    if steps is None:
        assert (result.position.epoch, result.position.index) == (2, 0)
    else:
        assert result.position.step == steps


def test_minutes_end_it_too(tmp_path: Path) -> None:
    options = toy_options(steps=None, minutes=0.02, eval_steps=10**6, held_out=0.0)
    result = fit(ToyObjective(), counting_corpus(), options, tmp_path)
    assert result.finished
    assert 1.2 <= result.position.elapsed_s < 10
    lrs = [line["lr"] for line in lines(tmp_path)]
    assert lrs[-1] < 0.2 * max(lrs), "the schedule follows the time"


def test_an_end_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"give steps=\.\.\., epochs=\.\.\. or minutes=\.\.\."):
        TrainOptions()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 0.0),
        ("lr", float("nan")),
        ("steps", 0),
        ("steps", 2.5),
        ("held_out", 1.0),
        ("betas", (0.9,)),
        ("optimizer", "sgd"),
        ("precision", "float16"),
        ("tokens_per_batch", "many"),
        ("clip_norm", -1.0),
        ("seed", None),
    ],
)
def test_options_out_of_range_are_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name}=.* is not allowed; give"):
        TrainOptions(**{"steps": 1} | {name: value})


def test_the_learning_rate_warms_up_and_follows_a_cosine() -> None:
    options = toy_options(lr=2.0, warmup_steps=4, lr_floor=0.1)
    assert learning_rate(0, 0.0, options) == pytest.approx(0.5)
    assert learning_rate(3, 0.0, options) == pytest.approx(2.0)
    assert learning_rate(50, 0.5, options) == pytest.approx(2.0 * 0.55)
    assert learning_rate(99, 1.0, options) == pytest.approx(0.2)


def test_progress_is_that_of_the_limit_which_is_nearest() -> None:
    at = Position(step=5, epoch=1, index=2, elapsed_s=30.0)
    assert progress(at, toy_options(steps=10), 4) == pytest.approx(0.5)
    assert progress(at, toy_options(steps=10, epochs=2), 4) == pytest.approx(0.75)
    assert progress(at, toy_options(steps=10, minutes=0.6), 4) == pytest.approx(0.5 / 0.6)
    assert progress(at, toy_options(steps=1), 4) == 1


def test_accumulated_gradients_are_those_of_the_whole(tmp_path: Path) -> None:
    """Two micro-batches of one step move the weights as their mean loss does."""
    from foredraft.train.batches import Batches

    corpus = counting_corpus(8)
    options = toy_options(held_out=0, accumulate=2, lr_floor=1.0)
    (pair, *_) = Batches(corpus, options).epoch(0)
    one = ToyObjective(dropout=0.0)
    Stepper(one, options, make_accelerator()).step(pair, 0.1)
    other = ToyObjective(dropout=0.0)
    parameters = list(other.module.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=0.1, betas=options.betas, weight_decay=0.0)
    torch.stack([other(batch).loss for batch in pair]).mean().backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    for name, tensor in one.module.state_dict().items():
        torch.testing.assert_close(tensor, other.module.state_dict()[name])


def test_gradients_can_be_cut_by_value() -> None:
    from foredraft.train.batches import Batches

    options = toy_options(held_out=0, clip_norm=None, clip_value=1e-3)
    (batches, *_) = Batches(counting_corpus(8), options).epoch(0)
    objective = ToyObjective(dropout=0.0)
    seen: list[float] = []
    stepper = Stepper(objective, options, make_accelerator())
    cut = torch.nn.utils.clip_grad_value_

    def spy(parameters: Any, value: float) -> None:
        cut(parameters, value)
        seen.append(max(float(p.grad.abs().max()) for p in parameters))

    torch.nn.utils.clip_grad_value_ = spy
    try:
        stepper.step(batches, 0.1)
    finally:
        torch.nn.utils.clip_grad_value_ = cut
    assert seen == [pytest.approx(1e-3)]


class SometimesNaN(ToyObjective):
    """Every n-th training loss is not a number."""

    def __init__(self, every: int) -> None:
        super().__init__(dropout=0.0)
        self.every, self.calls = every, 0

    def __call__(self, batch: Batch) -> LossReport:
        report = super().__call__(batch)
        self.calls += self.module.training
        bad = self.module.training and self.calls % self.every == 0
        return replace(report, loss=report.loss * (float("nan") if bad else 1.0))


def test_a_step_without_finite_gradients_is_skipped_and_counted(tmp_path: Path) -> None:
    objective = SometimesNaN(every=4)
    result = fit(objective, counting_corpus(), toy_options(steps=12, log_steps=6), tmp_path)
    assert result.finished
    assert lines(tmp_path)[-1]["skipped"] == 3
    assert all(tensor.isfinite().all() for tensor in objective.module.state_dict().values())
    assert all("loss" in line for line in lines(tmp_path))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_skipped_step_leaves_the_weights(optimizer: str) -> None:
    from foredraft.train.batches import Batches

    objective, options = SometimesNaN(every=2), toy_options(held_out=0, optimizer=optimizer)
    steps = Batches(counting_corpus(), options).epoch(0)
    stepper = Stepper(objective, options, make_accelerator())
    stepper.step(next(steps), 0.1)
    before = {name: tensor.clone() for name, tensor in objective.module.state_dict().items()}
    stepper.step(next(steps), 0.1)
    assert all(before[k].equal(v) for k, v in objective.module.state_dict().items())
    stepper.step(next(steps), 0.1)
    assert not all(before[k].equal(v) for k, v in objective.module.state_dict().items())


def test_too_many_skipped_steps_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(NumericsError, match="of the last 2 steps gave no finite gradient"):
        fit(SometimesNaN(every=1), counting_corpus(), toy_options(), tmp_path)


def test_nothing_to_train_is_an_error(tmp_path: Path) -> None:
    objective = ToyObjective()
    objective.module.requires_grad_(False)
    with pytest.raises(ConfigError, match="nothing to train"):
        fit(objective, counting_corpus(), toy_options(), tmp_path)


def test_bfloat16_computes_the_loss_in_it(tmp_path: Path) -> None:
    seen: list[torch.dtype] = []

    class Spy(ToyObjective):
        def predict(self, batch: Batch) -> Any:
            logits, *rest = super().predict(batch)
            seen.append(logits.dtype)
            return logits, *rest

    fit(Spy(), counting_corpus(), toy_options(steps=2, precision="bfloat16"), tmp_path / "a")
    assert set(seen) == {torch.bfloat16}
    seen.clear()
    fit(Spy(), counting_corpus(), toy_options(steps=2), tmp_path / "b")
    assert set(seen) == {torch.float32}


def test_measuring_changes_nothing(tmp_path: Path) -> None:
    """Dropout draws the same numbers however often the held-out samples are read."""
    found = []
    for eval_steps in (1, 10**6):
        objective = ToyObjective(dropout=0.5)
        options = toy_options(eval_steps=eval_steps)
        fit(objective, counting_corpus(), options, tmp_path / str(eval_steps))
        found.append(objective.module.state_dict())
    assert all(found[0][k].equal(v) for k, v in found[1].items())
