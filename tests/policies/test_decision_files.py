"""Decision models on disk: the authors' layout, our folders, and everything that is neither."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foredraft import ConfigError, ModelError
from foredraft.policies.decision_net import (
    CONFIG,
    DecisionConfig,
    DecisionNet,
    read_decision,
    save_decision,
    sizes_for,
)
from tests.policies.decision_models import net


class Authors(nn.Module):
    """As the authors wrote it: a Sequential with its sigmoid inside."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            parts += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*parts[:-1], nn.Sigmoid())

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.layers(features)
        return output


PUBLISHED = {
    "soft-68m": ("soft", (768, 512, 256, 1)),
    "soft-tinyllama": ("soft", (2048, 1024, 512, 1)),
    "hard": ("hard", (11, 44, 1)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_authors_layout_is_read(name: str, tmp_path: Path) -> None:
    kind, sizes = PUBLISHED[name]
    torch.manual_seed(0)
    theirs = Authors(*sizes)
    torch.save(theirs.state_dict(), tmp_path / "model.pt")
    read = read_decision(tmp_path / "model.pt")
    assert (read.config.kind, read.config.sizes) == (kind, sizes)
    assert read.config.threshold == 0.4
    features = torch.randn(7, sizes[0])
    with torch.no_grad():
        torch.testing.assert_close(read(features), theirs(features)[:, 0])


def test_the_papers_sizes() -> None:
    assert sizes_for("soft", 768) == (768, 512, 256, 1)
    assert sizes_for("soft", 576) == (576, 512, 256, 1)
    assert sizes_for("soft", 2048) == (2048, 1024, 512, 1)
    assert sizes_for("hard", 768) == (11, 44, 1)


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_a_folder_gives_back_what_was_saved(kind: Any, tmp_path: Path) -> None:
    made = net(
        kind,
        threshold=0.3,
        rule="path",
        drafter="draft-model",
        drafter_weights="y",
        target={"weights": "x"},
    )
    save_decision(made, tmp_path / "new" / "folder")
    read = read_decision(tmp_path / "new" / "folder")
    assert read.config == made.config
    assert {k: v.tolist() for k, v in read.state_dict().items()} == {
        k: v.tolist() for k, v in made.state_dict().items()
    }
    assert not any(parameter.requires_grad for parameter in read.parameters())


def changed(**changes: Any) -> dict[str, Tensor]:
    """Tensors of a soft model, some of them others (None: missing); dots are written __."""
    tensors = dict(net("soft").state_dict())
    for name, value in changes.items():
        name = name.replace("__", ".")
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    return tensors


@pytest.mark.parametrize(
    ("tensors", "complaint"),
    [
        (changed(layers__0__weight=None), "the tensor layers.0.weight is missing"),
        (changed(layers__4__bias=None), "layers.4.bias of a soft decision model is missing"),
        (changed(layers__2__weight=None), "layers.2.weight of a soft decision model is missing"),
        (changed(layers__6__weight=torch.ones(1, 1)), "has a tensor layers.6.weight, for which"),
        (changed(extra=torch.ones(1)), "has a tensor extra, for which a soft decision model"),
        (changed(layers__2__weight=torch.ones(256, 3)), "layers.2.weight in"),
        (changed(layers__2__bias=torch.ones(3)), "has shape [3] instead of [256]"),
        (changed(layers__4__weight=torch.ones(2, 256)), "has shape [2, 256] instead of [1, 256]"),
        (changed(layers__0__weight=torch.ones(4)), "layers.0.weight has shape [4]"),
        (changed(layers__0__bias=torch.full((512,), float("nan"))), "holds no finite weights"),
        (changed(layers__0__bias=torch.ones(512, dtype=torch.int64)), "holds no finite weights"),
        ({}, "the tensor layers.0.weight is missing"),
    ],
)
def test_every_tensor_is_accounted_for(
    tensors: dict[str, Tensor], complaint: str, tmp_path: Path
) -> None:
    torch.save(tensors, tmp_path / "model.pt")
    with pytest.raises(ModelError) as caught:
        read_decision(tmp_path / "model.pt")
    assert complaint in str(caught.value)


def no_tensors(file: Path) -> None:
    torch.save({"layers.0.weight": "text"}, file)


def a_module(file: Path) -> None:
    torch.save(Authors(11, 44, 1), file)


def noise(file: Path) -> None:
    file.write_bytes(b"\x80\x02nothing")


def nothing(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("write", [no_tensors, a_module, noise, nothing])
def test_what_is_no_state_dict_is_refused(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / "model.pt")
    with pytest.raises(ModelError, match=r"model\.pt"):
        read_decision(tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"kind": "hard"}, "sizes="),
        ({"sizes": [8, 512, 256, 1]}, "holds a soft decision model of sizes [4, 512, 256, 1]"),
        ({"threshold": 2}, "threshold=2.0 is not allowed"),
        ({"rule": "all"}, "rule='all'"),
        ({"format": 9}, "format 9, and 1 is read"),
        ({"target": None}, "config.json"),
    ],
)
def test_a_config_that_does_not_fit(
    changes: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    save_decision(net("soft"), tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps(config | changes))
    with pytest.raises(ModelError) as caught:
        read_decision(tmp_path)
    assert complaint in str(caught.value)


def test_folders_that_hold_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no decision model that can be read"):
        read_decision(tmp_path)
    with pytest.raises(ModelError, match="cannot be read"):
        read_decision(tmp_path / "nowhere")


def test_a_config_of_no_decision_model() -> None:
    with pytest.raises(ConfigError, match="are not those of a hard decision model"):
        DecisionNet(DecisionConfig("hard", (11, 1)))
    with pytest.raises(ConfigError, match="kind='softer'"):
        DecisionConfig("softer", (11, 44, 1))  # type: ignore[arg-type]
