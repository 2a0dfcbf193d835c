"""The nets that predict how much of a draft will be accepted, and their files (AdaEAGLE, arXiv 2412.18910).

```
config.json         sizes, form, k_max, and what it was made for
model.safetensors   enter, blocks.0, blocks.1, leave: weight and bias each; of a GRU its four tensors too
```

With x = [e; f], the input embedding and the final hidden state of the token before the root, each brought to
mean 0 and variance 1 over its numbers:

```
h1 = a(W1 x)     h2 = h1 + a(W2 h1)     h3 = h2 + a(W3 h2)     output = w h3
```

A GRU adds to h1 what it remembers of the rounds before: their h1 and what became of their drafts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foredraft.errors import ConfigError, ModelError
from foredraft.files import replace_with, write_json
from foredraft.policies.length_rules import (
    ACTIVATIONS,
    ARCHS,
    K_MAX,
    LOSSES,
    MOST,
    WIDTH,
    Activation,
    Arch,
    Loss,
    check_choice,
    check_whole,
)

FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
BLOCKS = 2
"""Residual layers behind the first."""
OUTCOME = 3
"""What a GRU reads of the last round: accepted and drafted, over k_max, and whether all was accepted."""
_ACTIVATIONS: Mapping[Activation, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


@dataclass(frozen=True, slots=True)
class LengthConfig:
    """What a length predictor is, beside its weights.

    Attributes:
        hidden_size: h of the target; the two states that are read have as many numbers each.
        taps: of the target: the input of its first layer and its state after the final norm.
        root_size: numbers of the root's embedding, which is read too; 0 for none.
        k_max: the longest draft.
        arch: `mlp`, or `gru`, which remembers earlier rounds of the request.
        loss: what it was trained by; `ce` has an output for each length 0 to k_max, the others one number.
        width: of its layers.
        activation: between them.
        dropout: in training.
        temperature: whose acceptance it predicts.
        drafter: what it was made for, by name; empty where nobody said.
        drafter_weights: what tells that drafter from others, as `drafter_digest` gives it; likewise.
        target: what tells the target from others, as `target_identity` gives it.

    Raises:
        ConfigError: a value out of its range.
    """

    hidden_size: int
    taps: tuple[int, ...]
    root_size: int = 0
    k_max: int = K_MAX
    arch: Arch = "mlp"
    loss: Loss = "l1"
    width: int = WIDTH
    activation: Activation = "relu"
    dropout: float = 0.1
    temperature: float = 0.0
    drafter: str = ""
    drafter_weights: str = ""
    target: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("arch", self.arch, ARCHS)
        check_choice("loss", self.loss, LOSSES)
        check_choice("activation", self.activation, ACTIVATIONS)
        check_whole("hidden_size", self.hidden_size)
        check_whole("width", self.width)
        check_whole("k_max", self.k_max, MOST)
        if len(self.taps) != 2 or self.root_size < 0:
            raise ConfigError(
                f"taps={list(self.taps)} with root_size={self.root_size} cannot be read; a length predictor "
                "reads two states of the target, and perhaps an embedding"
            )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout={self.dropout!r} is not allowed; give 0 or more, below 1")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(
                f"temperature={self.temperature!r} is not allowed; give a number of 0 or more"
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the parts of the input, in order."""
        own = (self.hidden_size, self.hidden_size)
        return (*own, self.root_size) if self.root_size else own

    @property
    def outputs(self) -> int:
        """Numbers that the net gives."""
        return self.k_max + 1 if self.loss == "ce" else 1


@dataclass(frozen=True, slots=True)
class Past:
    """What a GRU knows of earlier rounds, of B requests.

    Attributes:
        state: float32 [B, width].
        outcome: float32 [B, 3] of the last round, see `OUTCOME`.
    """

    state: Tensor
    outcome: Tensor


class LengthNet(nn.Module):
    """Predicts the accepted length of a draft from what the target knew before its root.

    Args:
        config: what it is. Weights are random until they are trained or read.
    """

    def __init__(self, config: LengthConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.enter = nn.Linear(sum(config.sizes), width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(BLOCKS))
        self.leave = nn.Linear(width, config.outputs)
        if config.arch == "gru":
            self.memory = nn.GRUCell(width + OUTCOME, width)
        self.active = _ACTIVATIONS[config.activation]()
        self.drop = nn.Dropout(config.dropout)

    @property
    def remembers(self) -> bool:
        """Whether it is a GRU."""
        return self.config.arch == "gru"

    def forward(self, inputs: Tensor, past: Past | None = None) -> tuple[Tensor, Tensor | None]:
        """One round of B requests.

        Args:
            inputs: [B, 2 h], or [B, 2 h + root_size]; computed in float32.
            past: of a GRU; None in a request's first round.

        Returns:
            The output, float32 [B], or [B, k_max + 1] of `ce`; and the GRU's next state [B, width].
        """
        parts = torch.split(inputs.float(), list(self.config.sizes), dim=-1)
        scaled = torch.cat([F.layer_norm(part, part.shape[-1:]) for part in parts], -1)
        hidden, state = self.drop(self.active(self.enter(scaled))), None
        if self.remembers:
            past = self.fresh(len(hidden), hidden.device) if past is None else past
            state = self.memory(torch.cat([hidden, past.outcome], -1), past.state)
            hidden = hidden + state
        for block in self.blocks:
            hidden = hidden + self.drop(self.active(block(hidden)))
        output: Tensor = self.leave(hidden)
        return (output if self.config.loss == "ce" else output.squeeze(-1)), state

    def fresh(self, count: int, device: torch.device) -> Past:
        """What a GRU knows before the first round."""
        zeros = torch.zeros(count, self.config.width, device=device)
        return Past(zeros, torch.zeros(count, OUTCOME, device=device))

    def outcome(self, accepted: Tensor, drafted: Tensor) -> Tensor:
        """What a GRU reads of rounds, float32 [B] each -> [B, 3]."""
        whole = (accepted >= drafted).float()
        return torch.stack([accepted / self.config.k_max, drafted / self.config.k_max, whole], -1)

    def lengths(self, output: Tensor) -> Tensor:
        """int64 [B]: min(k_max, max(0, round(output))), or the likeliest length of `ce`."""
        if self.config.loss == "ce":
            return output.argmax(-1)
        finite = output.nan_to_num(0.0, posinf=float(self.config.k_max))
        return finite.round().clamp(0, self.config.k_max).long()


def read_length(path: str | Path) -> LengthNet:
    """A net from a folder.

    Raises:
        ModelError: nothing is there, it cannot be read, or a tensor is missing, left over or of the wrong
            shape; the message names it.
    """
    from safetensors.torch import load_file

    path = Path(path).expanduser()
    net = LengthNet(_read_config(path / CONFIG))
    try:
        tensors = load_file(path / WEIGHTS)
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"{path / WEIGHTS} cannot be read ({reason[0]}); train the length predictor again"
        ) from None
    _check_tensors(path / WEIGHTS, tensors, net.state_dict())
    net.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return net.eval().requires_grad_(False)


def save_length(net: LengthNet, folder: Path) -> None:
    """Write a net into a folder, which is made if it does not exist; other files in it stay.

    Raises:
        OSError: the disk refused it.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().cpu().contiguous() for name, t in net.state_dict().items()}
    with replace_with(folder / WEIGHTS) as part:
        save_file(tensors, part, metadata={"format": "pt"})
    write_json(folder / CONFIG, {"format": FORMAT, "kind": "length", **asdict(net.config)})


def _read_config(file: Path) -> LengthConfig:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found.pop("format") != FORMAT or found.pop("kind") != "length":
            raise ValueError(f"it is no length predictor of format {FORMAT}")
        return LengthConfig(**{**found, "taps": tuple(found["taps"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(
            f"{file.parent} holds no length predictor that can be read ({CONFIG}: {reason}); make one with "
            "`foredraft train length-predictor`"
        ) from None


def _check_tensors(file: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    for name in sorted({*found, *wanted}):
        if name not in found:
            raise ModelError(f"the tensor {name} is missing in {file}")
        if name not in wanted:
            raise ModelError(f"{file} has a tensor {name}, for which {CONFIG} has no place")
        shapes: Sequence[tuple[int, ...]] = (tuple(found[name].shape), tuple(wanted[name].shape))
        if shapes[0] != shapes[1]:
            raise ModelError(
                f"the tensor {name} in {file} has shape {list(shapes[0])} instead of {list(shapes[1])}"
            )
        if not found[name].is_floating_point() or not bool(found[name].isfinite().all()):
            raise ModelError(f"the tensor {name} in {file} holds no finite weights")
