"""How far a run is, and the learning rate there."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foredraft.train.options import TrainOptions

SECONDS = 60.0


@dataclass(slots=True)
class Position:
    """Where a run stands; a checkpoint keeps it."""

    step: int = 0
    """Optimizer steps done, skipped ones included."""
    epoch: int = 0
    """Epochs done."""
    index: int = 0
    """Steps done in this epoch."""
    tokens: int = 0
    """Tokens read, padding left out, over all processes."""
    elapsed_s: float = 0.0
    """Seconds of training, measuring and saving."""

    def as_dict(self) -> dict[str, float]:
        """The values, for a checkpoint."""
        return {name: getattr(self, name) for name in self.__slots__}


def progress(position: Position, options: TrainOptions, steps_in_epoch: int) -> float:
    """From 0 at the beginning to 1, where the first of the limits of `options` is reached."""
    shares = [0.0]
    if options.steps is not None:
        shares.append(position.step / options.steps)
    if options.epochs is not None:
        shares.append((position.epoch + position.index / steps_in_epoch) / options.epochs)
    if options.minutes is not None:
        shares.append(position.elapsed_s / (SECONDS * options.minutes))
    return min(1.0, max(shares))


def learning_rate(step: int, done: float, options: TrainOptions) -> float:
    """Linear warm-up in steps times a cosine over the progress, down to a floor.

    lr(step, p) = lr * min(1, (step + 1) / warmup_steps) * (f + (1 - f) (1 + cos(pi p)) / 2)

    Args:
        step: optimizer steps done before this one.
        done: p, the progress from 0 to 1.
        options: where lr, its floor f and the warm-up stand.
    """
    warm = min(1.0, (step + 1) / options.warmup_steps) if options.warmup_steps else 1.0
    cosine = (1 + math.cos(math.pi * done)) / 2
    return options.lr * warm * (options.lr_floor + (1 - options.lr_floor) * cosine)
