"""Options of the training of a length predictor. Each default exists once, here."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from foredraft.errors import ConfigError
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

UNDER_WEIGHT = 5.0
"""Ours; the paper says above 1. Too short a draft costs a pass of the target, too long a one a level."""
LABELLED = ("k_max", "temperature", "max_length", "seed")
"""What labels depend on. More positions add to them; the rest says what is learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthOptions:
    """What to label, and how to learn from it.

    Raises:
        ConfigError: a value is out of its range; the message names it and the range.
    """

    arch: Arch = "mlp"
    """`gru` remembers the rounds before."""
    loss: Loss = "l1"
    """`l1` and `mse` of a number, `ce` of a class for each length."""
    under_weight: float | None = None
    """What an error counts where the prediction is below the label; None: `UNDER_WEIGHT`, of `ce` 1."""
    k_max: int = K_MAX
    """The longest draft."""
    width: int = WIDTH
    """Of the layers."""
    activation: Activation = "relu"
    """Between them."""
    dropout: float = 0.3
    """In training."""
    root: bool = False
    """Read the embedding of the root too."""
    temperature: float = 0.0
    """Of the acceptance that is predicted; above 0 the corpus must have been sampled at it."""
    positions: int = 150_000
    """Positions to label, about; a corpus may have fewer."""
    max_length: int = 1024
    """Texts are cut after so many tokens."""
    tokens_per_batch: int = 2048
    """Of a pass that labels, padding included."""
    epochs: int = 5
    """Times that every position is seen; the paper's."""
    batch: int = 128
    """Positions of a step; of a GRU, as many rounds as make a few requests."""
    lr: float = 1e-4
    """Of AdamW, falling along a cosine to 0; the paper's is 5e-5."""
    held_out: float = 0.125
    """Share of the texts that is only measured."""
    draft_cost: float | None = None
    """Cost of a level of the draft in target passes; None leaves rounds unpriced."""
    seed: int = 0
    """Of the order of texts and of training."""

    def __post_init__(self) -> None:
        check_choice("arch", self.arch, ARCHS)
        check_choice("loss", self.loss, LOSSES)
        check_choice("activation", self.activation, ACTIVATIONS)
        for name in ("width", "positions", "tokens_per_batch", "epochs", "batch"):
            check_whole(name, getattr(self, name))
        check_whole("k_max", self.k_max, MOST)
        for name, allowed, holds in _RULES:
            value = getattr(self, name)
            try:
                right = holds(value)
            except TypeError:
                right = False
            if not right:
                raise ConfigError(f"{name}={value!r} is not allowed; give {allowed}")
        self._check_whole_lengths()

    def _check_whole_lengths(self) -> None:
        """Refuse what has no meaning with expected lengths, or with classes."""
        for name, value in (("arch", self.arch), ("loss", self.loss)):
            if self.temperature > 0 and value in ("gru", "ce"):
                raise ConfigError(
                    f"{name}={value} learns from whole lengths, and at temperature={self.temperature:g} "
                    "labels are expectations; give arch=mlp with loss=l1 or mse, or temperature=0"
                )
        if self.loss == "ce" and self.under_weight not in (None, 1):
            raise ConfigError(
                f"under_weight={self.under_weight:g} has no meaning with loss=ce, whose classes are neither "
                "above nor below; leave it out"
            )

    @property
    def penalty(self) -> float:
        """What an error below the label counts."""
        if self.under_weight is not None:
            return self.under_weight
        return 1.0 if self.loss == "ce" else UNDER_WEIGHT

    def labelled(self) -> dict[str, Any]:
        """The options that labels depend on."""
        return {name: getattr(self, name) for name in LABELLED}

    def as_dict(self) -> dict[str, Any]:
        """All of them."""
        return {**asdict(self), "under_weight": self.penalty}


_RULES: tuple[tuple[str, str, Any], ...] = (
    (
        "under_weight",
        "a number of 1 or more",
        lambda v: v is None or (math.isfinite(v) and v >= 1),
    ),
    ("dropout", "0 or more, below 1", lambda v: 0 <= v < 1),
    ("temperature", "a number of 0 or more", lambda v: math.isfinite(v) and v >= 0),
    ("max_length", "a whole number of 3 or more", lambda v: isinstance(v, int) and v >= 3),
    ("lr", "a number above 0", lambda v: math.isfinite(v) and v > 0),
    ("held_out", "a share above 0 and below 1", lambda v: 0 < v < 1),
    ("draft_cost", "a number of 0 or more", lambda v: v is None or (math.isfinite(v) and v >= 0)),
    ("seed", "a whole number of 0 or more", lambda v: isinstance(v, int) and v >= 0),
)
