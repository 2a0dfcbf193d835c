"""Training on labelled positions: it learns, the penalty does what it says, and runs go on exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from foredraft import ConfigError, DataError, NumericsError
from foredraft.policies.length_net import read_length
from foredraft.train.folder import TrainFolder
from foredraft.train.length import LengthResult, fit_length, length_loss
from foredraft.train.length_examples import LabelsFolder, split
from foredraft.train.length_figures import calibration, length_figures
from foredraft.train.length_labels import Labels
from foredraft.train.length_options import LengthOptions
from tests.policies.length_nets import length_net

H, K_MAX = 6, 4
QUICK = {"k_max": K_MAX, "width": 16, "dropout": 0.0, "lr": 5e-3, "batch": 32, "held_out": 0.2}


def planted(count: int = 40, noise: float = 0.0, seed: int = 0) -> Labels:
    """Texts of 25 positions each, whose label is the place of the largest of the first numbers."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count * 25, 2 * H, generator=generator)
    lengths = features[:, : K_MAX + 1].argmax(1).float()
    other = torch.randint(0, K_MAX + 1, lengths.shape, generator=generator).float()
    swapped = torch.rand(lengths.shape, generator=generator) < noise
    lengths = torch.where(swapped, other, lengths)
    samples = torch.arange(count).repeat_interleave(25)
    places = torch.arange(25).repeat(count)
    return Labels(features, lengths, torch.arange(count * 25) % 7, places, samples)


def fit(labels: Labels, out: Path, resume: bool = False, **changes: Any) -> LengthResult:
    given = {
        "stop": changes.pop("stop", lambda: False),
        "report": changes.pop("report", lambda measure: None),
    }
    options = LengthOptions(**QUICK | changes)
    folder = TrainFolder(out)
    run = {"options": options.as_dict(), "target": {"weights": "t"}, "drafter": {"name": "d"}}
    with folder.in_use():
        folder.check(run, resume)
        folder.begin(run)
        return fit_length(
            labels,
            options,
            folder,
            run,
            taps=(0, 2),
            embeddings=(lambda ids: torch.eye(7)[ids]) if options.root else None,
            device=torch.device("cpu"),
            **given,
        )


@pytest.mark.parametrize(
    "form", [{}, {"loss": "mse"}, {"loss": "ce"}, {"arch": "gru"}, {"root": True}]
)
def test_what_can_be_predicted_is_learnt(form: dict[str, Any], tmp_path: Path) -> None:
    epochs = 60 if form.get("arch") == "gru" else 25
    result = fit(planted(60), tmp_path, epochs=epochs, under_weight=None, **form)
    assert result.finished
    guess = length_figures(torch.full((100,), 2), torch.arange(100) % 5).mae  # 1.2
    assert result.held_out.mae < 0.9 * guess
    assert result.rounds is not None
    read = read_length(tmp_path)
    assert (read.config.arch, read.config.loss) == (form.get("arch", "mlp"), form.get("loss", "l1"))
    assert read.config.root_size == (7 if "root" in form else 0)
    assert (read.config.drafter, read.config.target) == ("d", {"weights": "t"})


def test_the_penalty_makes_predictions_longer(tmp_path: Path) -> None:
    found = [
        fit(planted(noise=0.9), tmp_path / str(weight), epochs=4, under_weight=weight).held_out
        for weight in (1, 8)
    ]
    assert found[0].under > 2 * found[1].under
    assert found[0].predicted + 0.5 < found[1].predicted


def test_the_loss_by_hand() -> None:
    labels = torch.tensor([2.0, 2.0, 2.0])
    output = torch.tensor([0.0, 2.0, 5.0])
    assert length_loss(length_net(), output, labels, 3.0).tolist() == [6.0, 0.0, 3.0]
    assert length_loss(length_net(loss="mse"), output, labels, 3.0).tolist() == [12.0, 0.0, 9.0]
    classes = length_loss(length_net(loss="ce", k_max=3), torch.eye(4)[:3] * 2, labels, 1.0)
    expected = -torch.log_softmax(torch.eye(4)[:3] * 2, -1)[:, 2]
    torch.testing.assert_close(classes, expected)


def test_what_a_run_leaves(tmp_path: Path) -> None:
    fit(planted(), tmp_path, epochs=2, draft_cost=0.1)
    recipe = json.loads((tmp_path / "recipe.json").read_text())
    assert {"finished", "held_out", "calibration", "rounds", "counts", "options"} <= recipe.keys()
    assert {"mae", "under", "over", "predicted", "observed", "rounds"} == recipe["held_out"].keys()
    assert sum(part["count"] for part in recipe["calibration"]) == recipe["held_out"]["rounds"]
    assert list(recipe["rounds"]["fixed"]) == ["1", "2", "3", "4"]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["epoch"]) for line in lines] == [
        (kind, epoch) for epoch in range(3) for kind in ("train", "held_out")
    ]
    assert (tmp_path / "lengths.png").stat().st_size > 1000


@pytest.mark.parametrize("arch", ["mlp", "gru"])
def test_a_stopped_run_goes_on_to_the_same_weights(arch: str, tmp_path: Path) -> None:
    form = {"arch": arch, "epochs": 3, "dropout": 0.2}
    whole = fit(planted(), tmp_path / "whole", **form)
    asked = iter([False, True])
    part = fit(planted(), tmp_path / "part", stop=lambda: next(asked), **form)
    assert (whole.finished, part.finished) == (True, False)
    again = fit(planted(), tmp_path / "part", resume=True, **form)
    assert again.finished
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "part"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_expected_lengths_are_learnt_too(tmp_path: Path) -> None:
    labels = planted(60)
    halves = Labels(
        labels.features, labels.lengths / 2, labels.roots, labels.places, labels.samples
    )
    result = fit(halves, tmp_path, epochs=25, temperature=1.0, under_weight=1)
    assert result.rounds is None
    assert result.held_out.mae < 0.5
    assert read_length(tmp_path).config.temperature == 1.0


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(NumericsError, match="lower lr"):
        fit(planted(), tmp_path, lr=1e30, epochs=3)


# --- figures, splits, options -----------------------------------------------------------------------


def test_figures_by_hand() -> None:
    predicted, observed = torch.tensor([1, 2, 2, 0]), torch.tensor([1.0, 4.0, 1.0, 0.0])
    figures = length_figures(predicted, observed)
    assert figures.as_dict() == {
        "mae": 0.75,
        "under": 0.25,
        "over": 0.25,
        "predicted": 1.25,
        "observed": 1.5,
        "rounds": 4,
    }
    found = calibration(predicted, observed)
    assert [(p.length, p.observed, p.count) for p in found] == [
        (0, 0.0, 1),
        (1, 1.0, 1),
        (2, 2.5, 2),
    ]


def test_texts_are_split_whole() -> None:
    labels = planted(20)
    parts = split(labels, 0.3)
    texts = [
        set(labels.samples[of].tolist()) for of in (parts.train, parts.choosing, parts.reporting)
    ]
    assert [len(part) for part in texts] == [14, 3, 3]
    assert len(set.union(*texts)) == 20
    with pytest.raises(DataError, match="leave too few"):
        split(planted(3), 0.3)


def test_labels_are_kept_in_parts(tmp_path: Path) -> None:
    labels, facts = planted(2), {"k_max": K_MAX}
    folder = LabelsFolder(tmp_path, facts)
    folder.add(labels, 2)
    folder.add(labels, 3)
    again = LabelsFolder(tmp_path, facts)
    assert (again.num_texts, again.num_positions) == (5, 100)
    read = again.read()
    assert read.samples.unique().tolist() == [0, 1, 2, 3]
    assert torch.equal(read.features, torch.cat([labels.features] * 2))
    with pytest.raises(ConfigError, match="made with k_max=4, and this is k_max=5"):
        LabelsFolder(tmp_path, {"k_max": 5})
    (tmp_path / "part-00001.safetensors").write_bytes(b"x")
    with pytest.raises(DataError, match="is no part of labels"):
        again.read()
    with pytest.raises(DataError, match="holds no labelled position"):
        LabelsFolder(tmp_path / "empty", facts).read()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"arch": "rnn"}, "arch='rnn' is not known; give one of mlp, gru"),
        ({"loss": "l2"}, "loss='l2' is not known"),
        ({"under_weight": 0.5}, "under_weight=0.5 is not allowed; give a number of 1 or more"),
        ({"loss": "ce", "under_weight": 2}, "under_weight=2 has no meaning with loss=ce"),
        ({"loss": "ce", "temperature": 1.0}, "loss=ce learns from whole lengths"),
        ({"arch": "gru", "temperature": 1.0}, "arch=gru learns from whole lengths"),
        ({"k_max": 0}, "k_max=0 is not allowed; give a whole number from 1 to 64"),
        ({"held_out": 1.0}, "held_out=1.0 is not allowed"),
        ({"dropout": 1.0}, "dropout=1.0 is not allowed"),
        ({"max_length": "x"}, "max_length='x' is not allowed"),
        ({"seed": -1}, "seed=-1 is not allowed"),
        ({"draft_cost": -1.0}, "draft_cost=-1.0 is not allowed"),
    ],
)
def test_options_out_of_their_range(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LengthOptions(**changes)
    assert complaint in str(caught.value)


def test_the_penalty_where_none_is_given() -> None:
    assert LengthOptions(loss="ce").as_dict()["under_weight"] == 1
    assert LengthOptions().as_dict()["under_weight"] > 1
