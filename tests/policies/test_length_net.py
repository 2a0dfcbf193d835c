"""Length predictors: the formula, rounding and clamping, and their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from foredraft import ConfigError, ModelError
from foredraft.policies.length_net import (
    CONFIG,
    WEIGHTS,
    LengthConfig,
    LengthNet,
    Past,
    read_length,
    save_length,
)
from tests.policies.length_nets import length_net

FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"loss": "ce", "k_max": 3},
    {"arch": "gru"},
    {"activation": "silu", "root_size": 3},
)


def by_hand(net: LengthNet, inputs: Tensor, past: Past | None = None) -> tuple[Tensor, Tensor]:
    """The net with nothing but matrix products."""
    weights = dict(net.state_dict())
    active = {"relu": torch.relu, "silu": F.silu, "gelu": F.gelu}[net.config.activation]
    parts, first = [], 0
    for size in net.config.sizes:
        part = inputs[:, first : first + size]
        first += size
        centred = part - part.mean(-1, keepdim=True)
        parts.append(centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt())

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    hidden = active(linear("enter", torch.cat(parts, -1)))
    state = hidden
    if net.config.arch == "gru":
        width = net.config.width
        before = torch.zeros(len(hidden), width) if past is None else past.state
        seen = torch.zeros(len(hidden), 3) if past is None else past.outcome
        x = torch.cat([hidden, seen], -1)
        new = x @ weights["memory.weight_ih"].T + weights["memory.bias_ih"]
        old = before @ weights["memory.weight_hh"].T + weights["memory.bias_hh"]
        reset, update = ((new + old)[:, i * width : (i + 1) * width].sigmoid() for i in (0, 1))
        fresh = (new[:, 2 * width :] + reset * old[:, 2 * width :]).tanh()
        state = (1 - update) * fresh + update * before
        hidden = hidden + state
    for block in ("blocks.0", "blocks.1"):
        hidden = hidden + active(linear(block, hidden))
    return linear("leave", hidden), state


@pytest.mark.parametrize("form", FORMS)
def test_the_net_is_its_formula(form: dict[str, Any]) -> None:
    net = length_net(**form)
    torch.manual_seed(1)
    inputs = torch.randn(4, sum(net.config.sizes))
    output, state = net(inputs)
    expected, remembered = by_hand(net, inputs)
    torch.testing.assert_close(output, expected if net.config.loss == "ce" else expected[:, 0])
    assert (state is None) == (not net.remembers)
    if state is not None:
        past = Past(state, net.outcome(torch.tensor([0.0, 1, 2, 8]), torch.tensor([1.0, 1, 4, 8])))
        torch.testing.assert_close(state, remembered)
        torch.testing.assert_close(net(inputs, past)[0], by_hand(net, inputs, past)[0][:, 0])


def test_what_a_gru_reads_of_a_round() -> None:
    outcome = length_net(arch="gru", k_max=8).outcome(
        torch.tensor([2.0, 4]), torch.tensor([4.0, 4])
    )
    assert outcome.tolist() == [[0.25, 0.5, 0.0], [0.5, 0.5, 1.0]]


@pytest.mark.parametrize(
    ("output", "length"),
    [(-3.0, 0), (0.4, 0), (0.6, 1), (3.49, 3), (4.6, 5), (5.2, 5), (99.0, 5), (float("nan"), 0)],
)
def test_lengths_are_rounded_and_clamped(output: float, length: int) -> None:
    assert length_net(k_max=5).lengths(torch.tensor([output])).tolist() == [length]


def test_classes_are_lengths() -> None:
    net = length_net(loss="ce", k_max=2)
    assert net.lengths(torch.tensor([[0.0, 1.0, 3.0], [2.0, 1.0, 0.0]])).tolist() == [2, 0]


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_gives_back_what_was_saved(form: dict[str, Any], tmp_path: Path) -> None:
    made = length_net(**form, drafter="eagle3", drafter_weights="y", target={"weights": "x"})
    save_length(made, tmp_path / "new")
    read = read_length(tmp_path / "new")
    assert read.config == made.config
    inputs = torch.randn(3, sum(made.config.sizes))
    assert torch.equal(read(inputs)[0], made(inputs)[0])
    assert not any(parameter.requires_grad for parameter in read.parameters())


def test_weights_of_half_precision_are_read(tmp_path: Path) -> None:
    save_length(length_net(), tmp_path)
    halves = {name: t.half() for name, t in load_file(tmp_path / WEIGHTS).items()}
    save_file(halves, tmp_path / WEIGHTS)
    assert next(read_length(tmp_path).parameters()).dtype is torch.float32


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"enter.bias": None}, "the tensor enter.bias is missing"),
        ({"blocks.2.bias": torch.ones(5)}, "has a tensor blocks.2.bias, for which"),
        ({"leave.bias": torch.ones(2)}, "leave.bias in"),
        ({"leave.bias": torch.full((1,), float("nan"))}, "leave.bias in"),
        ({"enter.weight": torch.ones(5, 4)}, "has shape [5, 4] instead of [5, 12]"),
    ],
)
def test_every_tensor_is_accounted_for(
    changes: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    save_length(length_net(), tmp_path)
    tensors = load_file(tmp_path / WEIGHTS) | changes
    save_file({k: v for k, v in tensors.items() if v is not None}, tmp_path / WEIGHTS)
    with pytest.raises(ModelError) as caught:
        read_length(tmp_path)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"format": 9}, "no length predictor of format 1"),
        ({"kind": "soft"}, "no length predictor of format 1"),
        ({"arch": "cnn"}, "arch='cnn' is not known; give one of mlp, gru"),
        ({"k_max": 0}, "k_max=0 is not allowed"),
        ({"surprise": 1}, "surprise"),
        ({"taps": None}, "config.json"),
    ],
)
def test_a_config_that_cannot_be_read(
    changes: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    save_length(length_net(), tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps(config | changes))
    with pytest.raises(ModelError) as caught:
        read_length(tmp_path)
    assert complaint in str(caught.value)


def test_folders_that_hold_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no length predictor that can be read"):
        read_length(tmp_path)
    save_length(length_net(), tmp_path)
    (tmp_path / WEIGHTS).write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        read_length(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "l2"},
        {"activation": "tanh"},
        {"width": 0},
        {"hidden_size": 0},
        {"k_max": 65},
        {"dropout": 1.0},
        {"taps": (1,)},
        {"root_size": -1},
        {"temperature": -1.0},
    ],
)
def test_values_out_of_their_range(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        LengthConfig(**{"hidden_size": 4, "taps": (0, 2)} | changes)
