"""The nets of decision models, and their files (arXiv 2409.10644).

```
config.json         kind, sizes, threshold, rule, and what it was made for
model.safetensors   layers.0.weight, layers.0.bias, layers.2.weight, ..: a ReLU behind each but the last
```

The authors publish such tensors in a `.pt` file alone; it is read as it is.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foredraft.errors import ConfigError, ModelError
from foredraft.files import replace_with, write_json
from foredraft.policies.decision_rules import KINDS, THRESHOLD, Kind, Rule, check_rule

TOP = 10
HARD_FEATURES = 1 + TOP
"""Entropy and the ten largest probabilities: a net of so many inputs is hard, any other soft."""
NUM_LAYERS: Mapping[Kind, int] = {"soft": 3, "hard": 2}
NARROW = 1024
"""Hidden states up to this wide get the paper's 512-256, wider ones halves and quarters of themselves."""
FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"


@dataclass(frozen=True, slots=True)
class DecisionConfig:
    """What a decision model is, beside its weights.

    Attributes:
        kind: `soft` reads hidden states [H], `hard` entropy and top-10 probabilities [11].
        sizes: (inputs, .., 1).
        threshold: go on above it.
        rule: how the predictions of a level make one decision, see `DecisionPolicy`.
        drafter: what it was made for, by name; empty where nobody said.
        drafter_weights: what tells that drafter from others, as `drafter_digest` gives it; likewise.
        target: what tells the target from others, as `target_identity` gives it.

    Raises:
        ConfigError: a value out of its range.
    """

    kind: Kind
    sizes: tuple[int, ...]
    threshold: float = THRESHOLD
    rule: Rule = "any"
    drafter: str = ""
    drafter_weights: str = ""
    target: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"kind={self.kind!r} is not known; give one of {', '.join(KINDS)}")
        if len(self.sizes) != NUM_LAYERS[self.kind] + 1 or self.sizes[-1] != 1:
            raise ConfigError(
                f"sizes={list(self.sizes)} are not those of a {self.kind} decision model; it has "
                f"{NUM_LAYERS[self.kind]} layers, the last with one output"
            )
        check_rule(self.threshold, self.rule)


def sizes_for(kind: Kind, hidden_size: int) -> tuple[int, ...]:
    """The paper's sizes: 768-512-256-1 and 2048-1024-512-1 (soft), 11-44-1 (hard)."""
    if kind == "hard":
        return (HARD_FEATURES, 44, 1)
    inner = (512, 256) if hidden_size <= NARROW else (hidden_size // 2, hidden_size // 4)
    return (hidden_size, *inner, 1)


class DecisionNet(nn.Module):
    """Predicts from one row of a drafter how likely its next token is to be accepted.

    Args:
        config: what it is. Weights are random until they are trained or read.
    """

    def __init__(self, config: DecisionConfig) -> None:
        super().__init__()
        self.config = config
        parts: list[nn.Module] = []
        for inputs, outputs in zip(config.sizes, config.sizes[1:], strict=False):
            parts += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*parts[:-1])

    @property
    def num_inputs(self) -> int:
        """Features of a row."""
        return self.config.sizes[0]

    def logits(self, features: Tensor) -> Tensor:
        """log(s / (1 - s)) of the predictions s, float32 [.., inputs] -> [..]."""
        output: Tensor = self.layers(features)
        return output.squeeze(-1)

    def forward(self, features: Tensor) -> Tensor:
        """Predicted acceptance in 0 .. 1, float32 [.., inputs] -> [..]."""
        return self.logits(features).sigmoid()


def read_decision(path: str | Path) -> DecisionNet:
    """A net from a folder of ours, or from a `.pt` or `.safetensors` file of tensors alone.

    Raises:
        ModelError: nothing is there, it cannot be read, or a tensor is missing, left over or of the wrong
            shape; the message names it.
    """
    path = Path(path).expanduser()
    config = _read_config(path / CONFIG) if path.is_dir() else None
    file = path / WEIGHTS if path.is_dir() else path
    tensors = _read_tensors(file)
    kind, sizes = _sizes(file, tensors)
    if config is None:
        config = DecisionConfig(kind, sizes)
    elif config.sizes != sizes or config.kind != kind:
        raise ModelError(
            f"{file} holds a {kind} decision model of sizes {list(sizes)}, and {CONFIG} beside it says "
            f"{config.kind} and {list(config.sizes)}; train it again"
        )
    net = DecisionNet(config)
    net.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return net.eval().requires_grad_(False)


def save_decision(net: DecisionNet, folder: Path) -> None:
    """Write a net into a folder, which is made if it does not exist; other files in it stay.

    Raises:
        OSError: the disk refused it.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().cpu().contiguous() for name, t in net.state_dict().items()}
    with replace_with(folder / WEIGHTS) as part:
        save_file(tensors, part, metadata={"format": "pt"})
    write_json(folder / CONFIG, {"format": FORMAT, **asdict(net.config)})


def _read_config(file: Path) -> DecisionConfig:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']!r}, and {FORMAT} is read")
        return DecisionConfig(
            kind=found["kind"],
            sizes=tuple(int(size) for size in found["sizes"]),
            threshold=float(found["threshold"]),
            rule=found["rule"],
            drafter=str(found["drafter"]),
            drafter_weights=str(found.get("drafter_weights", "")),
            target=dict(found["target"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(
            f"{file.parent} holds no decision model that can be read ({CONFIG}: {reason}); make one with "
            "`foredraft train decision`"
        ) from None


def _read_tensors(file: Path) -> dict[str, Tensor]:
    """Tensors by name; nothing else in a pickle is loaded or run."""
    from safetensors.torch import load_file

    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ModelError(
            f"{file} holds more than tensors, or is damaged, and is not loaded; give a state dict"
        ) from None
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"{file} cannot be read ({reason[0]}); give a folder of `foredraft train decision` or a .pt file"
        ) from None
    if not isinstance(content, dict) or not all(isinstance(t, Tensor) for t in content.values()):
        raise ModelError(f"{file} is no mapping of names to tensors; give a state dict")
    return content


def _sizes(file: Path, tensors: Mapping[str, Tensor]) -> tuple[Kind, tuple[int, ...]]:
    """Kind and sizes, from shapes alone; every tensor is accounted for."""
    first = tensors.get("layers.0.weight")
    if first is None or first.dim() != 2:
        shape = "is missing" if first is None else f"has shape {list(first.shape)}"
        raise ModelError(f"the tensor layers.0.weight {shape} in {file}; it is no decision model")
    kind: Kind = "hard" if first.shape[1] == HARD_FEATURES else "soft"
    names = [f"layers.{2 * i}" for i in range(NUM_LAYERS[kind])]
    expected = {f"{name}.{part}" for name in names for part in ("weight", "bias")}
    for name in sorted(expected | tensors.keys()):
        if name not in tensors:
            raise ModelError(f"the tensor {name} of a {kind} decision model is missing in {file}")
        if name not in expected:
            raise ModelError(
                f"{file} has a tensor {name}, for which a {kind} decision model has no place"
            )
    return kind, _chained(file, tensors, names)


def _chained(file: Path, tensors: Mapping[str, Tensor], names: Sequence[str]) -> tuple[int, ...]:
    """(inputs, .., 1), where every layer takes what the one before it gives."""
    sizes = [int(tensors["layers.0.weight"].shape[1])]
    for name in names:
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        outputs = 1 if name == names[-1] else int(weight.shape[0]) if weight.dim() else 0
        for part, tensor, shape in (
            ("weight", weight, (outputs, sizes[-1])),
            ("bias", bias, (outputs,)),
        ):
            if tuple(tensor.shape) != shape:
                raise ModelError(
                    f"the tensor {name}.{part} in {file} has shape {list(tensor.shape)} instead of "
                    f"{list(shape)}"
                )
            if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
                raise ModelError(f"the tensor {name}.{part} in {file} holds no finite weights")
        sizes.append(outputs)
    return tuple(sizes)
