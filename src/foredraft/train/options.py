"""Options of a training run. Each default exists once, here."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from foredraft.errors import ConfigError

PRECISIONS = ("float32", "bfloat16")
ADAMW, MUON = OPTIMIZERS = ("adamw", "muon")
MOST_SEED = 2**31 - 1
"""NumPy's generators take 32 bits, and each process adds its own number."""
MAY_CHANGE = (
    "steps",
    "epochs",
    "minutes",
    "checkpoint_steps",
    "checkpoint_minutes",
    "log_steps",
    "eval_steps",
)
"""What a resumed run may be given anew: how long it goes on, how often it saves and tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """How to train. A run ends at the first of `steps`, `epochs` and `minutes` that are given.

    Raises:
        ConfigError: a value is out of its range; the message names it and the range.
    """

    steps: int | None = None
    """Optimizer steps at most."""
    epochs: int | None = None
    """Times that every sample is seen, at most."""
    minutes: float | None = None
    """Minutes of training at most, those of interrupted runs included, loading left out."""
    optimizer: str = ADAMW
    """Muon takes the matrices between embeddings and head, AdamW the rest; at the same learning rate."""
    lr: float = 5e-4
    """Learning rate after the warm-up."""
    lr_floor: float = 0.05
    """Share of it that is left at the end of the cosine."""
    warmup_steps: int = 100
    """Steps during which the learning rate rises."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's."""
    weight_decay: float = 0.0
    """Share of itself that a weight loses, times the learning rate, in each step."""
    clip_norm: float | None = 1.0
    """Gradients are scaled down to this norm; None leaves them."""
    clip_value: float | None = None
    """Each gradient is cut to at most this size; None leaves them."""
    tokens_per_batch: int = 4096
    """Tokens of a micro-batch, padding included; a longer sample is a batch of its own."""
    accumulate: int = 1
    """Micro-batches of an optimizer step, on each process."""
    max_length: int = 2048
    """Samples are cut after this many tokens."""
    held_out: float = 0.02
    """Share of the samples that is only measured, never trained on."""
    seed: int = 0
    """Of the order of samples, and of whatever an objective draws."""
    precision: str = "bfloat16"
    """In which arithmetic the loss is computed; weights and optimizer are float32."""
    checkpoint_steps: int | None = None
    """Steps between checkpoints."""
    checkpoint_minutes: float | None = 5.0
    """Minutes between checkpoints."""
    log_steps: int = 10
    """Steps between lines of `metrics.jsonl`."""
    eval_steps: int = 250
    """Steps between measurements on the held-out samples."""
    eval_tokens: int = 65_536
    """Tokens of the held-out samples that such a measurement reads, about, always the same ones."""

    def __post_init__(self) -> None:
        for name, allowed, holds in _RULES:
            value = getattr(self, name)
            try:
                right = holds(value)
            except TypeError:
                right = False
            if not right:
                raise ConfigError(f"{name}={value!r} is not allowed; give {allowed}")
        if self.steps is None and self.epochs is None and self.minutes is None:
            raise ConfigError(
                "there is no end to this training; give steps=..., epochs=... or minutes=..."
            )

    def fixed(self) -> dict[str, Any]:
        """The options that a resumed run must share with its beginning."""
        values = {k: v for k, v in asdict(self).items() if k not in MAY_CHANGE}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _whole(least: int) -> Any:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= least


def _above(least: float) -> Any:
    return lambda v: math.isfinite(v) and v > least


def _optional(holds: Any) -> Any:
    return lambda v: v is None or holds(v)


_RULES: tuple[tuple[str, str, Any], ...] = (
    ("steps", "a whole number of 1 or more, or None", _optional(_whole(1))),
    ("epochs", "a whole number of 1 or more, or None", _optional(_whole(1))),
    ("minutes", "a number above 0, or None", _optional(_above(0))),
    ("optimizer", f"one of {', '.join(OPTIMIZERS)}", lambda v: v in OPTIMIZERS),
    ("lr", "a number above 0", _above(0)),
    ("lr_floor", "a number from 0 to 1", lambda v: 0 <= v <= 1),
    ("warmup_steps", "a whole number of 0 or more", _whole(0)),
    (
        "betas",
        "two numbers from 0 to below 1",
        lambda v: len(v) == 2 and all(0 <= b < 1 for b in v),
    ),
    ("weight_decay", "a number of 0 or more", lambda v: math.isfinite(v) and v >= 0),
    ("clip_norm", "a number above 0, or None", _optional(_above(0))),
    ("clip_value", "a number above 0, or None", _optional(_above(0))),
    ("tokens_per_batch", "a whole number of 1 or more", _whole(1)),
    ("accumulate", "a whole number of 1 or more", _whole(1)),
    ("max_length", "a whole number of 2 or more", _whole(2)),
    ("held_out", "a share from 0 to below 1", lambda v: 0 <= v < 1),
    (
        "seed",
        f"a whole number from 0 to {MOST_SEED}",
        lambda v: _whole(0)(v) and v <= MOST_SEED,
    ),
    ("precision", f"one of {', '.join(PRECISIONS)}", lambda v: v in PRECISIONS),
    ("checkpoint_steps", "a whole number of 1 or more, or None", _optional(_whole(1))),
    ("checkpoint_minutes", "a number above 0, or None", _optional(_above(0))),
    ("log_steps", "a whole number of 1 or more", _whole(1)),
    ("eval_steps", "a whole number of 1 or more", _whole(1)),
    ("eval_tokens", "a whole number of 1 or more", _whole(1)),
)
