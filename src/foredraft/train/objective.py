"""What the training loop asks of a thing to train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of similar length, a row each: rows never share a text.

    Attributes:
        token_ids: int64 [B, T], padded on the right with 0.
        lengths: int64 [B], tokens of each row.
        labelled: bool [B, T]: this token was written by the assistant, so it is something to predict.
        samples: int64 [B], which samples of the corpus these are.
    """

    token_ids: Tensor
    lengths: Tensor
    labelled: Tensor
    samples: Tensor

    def to(self, device: torch.device) -> Batch:
        """The batch on a device; the copy may still be under way when this returns."""
        if device.type == "cpu":
            return self
        moved = (
            t.pin_memory().to(device, non_blocking=True)
            for t in (self.token_ids, self.lengths, self.labelled, self.samples)
        )
        return Batch(*moved)


@dataclass(frozen=True, slots=True)
class LossReport:
    """What a batch gave.

    Attributes:
        loss: float scalar, to be minimised: a mean over what is to be predicted.
        hits: float [K], for each depth, how often the drafter's best token was the target's best.
        counted: float [K], of how many, tokens that the drafter cannot say included.
    """

    loss: Tensor
    hits: Tensor
    counted: Tensor


class Objective(Protocol):
    """A module to train, and the loss that trains it.

    Everything trainable is a parameter of `module` and nothing else is; a frozen target stays outside
    of it. `module.state_dict()` is what a checkpoint keeps.
    """

    @property
    def module(self) -> nn.Module:
        """What is trained; its parameters are float32."""
        ...

    def __call__(self, batch: Batch) -> LossReport:
        """The loss of a batch, which is on the module's device."""
        ...

    def save(self, folder: Path) -> None:
        """Write the trained drafter into a folder from which `foredraft.load` takes it."""
        ...
