"""What turns gradients into steps: AdamW for every weight, or Muon for the matrices between the ends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from foredraft.errors import ConfigError
from foredraft.train.options import MUON, TrainOptions

ENDS = ("embed", "lm_head")
"""Parts of the names of weights with a row for each token: those are not for Muon."""


class Optimizers:
    """AdamW, and beside it Muon if asked for, its steps scaled to AdamW's size (arXiv 2502.16982).

    Args:
        module: its parameters that want a gradient are trained.
        options: which optimizer, and its constants.

    Raises:
        ConfigError: nothing in the module is trainable.
    """

    def __init__(self, module: nn.Module, options: TrainOptions) -> None:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise ConfigError("there is nothing to train: no parameter of the module is trainable")
        self.parameters = [parameter for _, parameter in named]
        inner = [p for name, p in named if options.optimizer == MUON and _is_inner(name, p)]
        chosen = {id(parameter) for parameter in inner}
        rest = [parameter for parameter in self.parameters if id(parameter) not in chosen]
        self._adamw = _adamw(rest, options) if rest else None
        self._muon = _muon(inner, options) if inner else None

    def step(self, lr: float, skip: Tensor) -> None:
        """One step, then zero gradients in the same memory.

        Args:
            lr: learning rate.
            skip: float scalar on the weights' device; 1 leaves everything as it is. Only Muon waits for it.
        """
        if self._adamw is not None:
            _set_lr(self._adamw, lr)
            self._adamw.found_inf = skip  # type: ignore[attr-defined]
            self._adamw.step()
        if self._muon is not None and not bool(skip):
            _set_lr(self._muon, lr)
            self._muon.step()
        for optimizer in self._all().values():
            optimizer.zero_grad(set_to_none=False)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {name: optimizer.state_dict() for name, optimizer in self._all().items()}

    def load(self, state: dict[str, Any]) -> None:
        """Put back what `state` gave."""
        for name, optimizer in self._all().items():
            optimizer.load_state_dict(state[name])

    def _all(self) -> dict[str, torch.optim.Optimizer]:
        named = {"adamw": self._adamw, "muon": self._muon}
        return {name: optimizer for name, optimizer in named.items() if optimizer is not None}


def _is_inner(name: str, parameter: Tensor) -> bool:
    return parameter.ndim == 2 and not any(part in name for part in ENDS)


def _adamw(parameters: list[nn.Parameter], options: TrainOptions) -> torch.optim.Optimizer:
    decay = options.weight_decay
    return torch.optim.AdamW(
        parameters, lr=options.lr, betas=options.betas, weight_decay=decay, fused=True
    )


def _muon(parameters: list[nn.Parameter], options: TrainOptions) -> torch.optim.Optimizer:
    return torch.optim.Muon(
        parameters,
        lr=options.lr,
        weight_decay=options.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )


def _set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
