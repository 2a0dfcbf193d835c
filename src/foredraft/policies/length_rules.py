"""What length predictors may be made of. Without tensors, for the command line."""

from __future__ import annotations

import math
from typing import Literal

from foredraft.errors import ConfigError

Arch = Literal["mlp", "gru"]
Loss = Literal["l1", "mse", "ce"]
Activation = Literal["relu", "gelu", "silu"]
ARCHS: tuple[Arch, ...] = ("mlp", "gru")
LOSSES: tuple[Loss, ...] = ("l1", "mse", "ce")
ACTIVATIONS: tuple[Activation, ...] = ("relu", "gelu", "silu")
K_MAX = 8
WIDTH = 256
MOST = 64
"""What k_max may be at most."""


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a word that means nothing.

    Raises:
        ConfigError: the message names it and the known ones.
    """
    if value not in known:
        raise ConfigError(f"{name}={value!r} is not known; give one of {', '.join(known)}")


def check_whole(name: str, value: int, most: float = math.inf) -> None:
    """Refuse what is no whole number from 1 to `most`.

    Raises:
        ConfigError: the message names it and the range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        span = "of 1 or more" if math.isinf(most) else f"from 1 to {most:g}"
        raise ConfigError(f"{name}={value!r} is not allowed; give a whole number {span}")
