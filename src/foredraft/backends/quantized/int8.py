"""Weights in int8, with one scale for each row: `w[n, k] = scale[n] * steps[n, k]`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from foredraft.backends.quantized.block import Block, chunks
from foredraft.backends.quantized.kernels import (
    FLOAT32_DIGITS,
    HALF_DIGITS,
    MOST_COLUMNS,
    Kernel,
    best_kernel,
)

STEPS = 127
CLIPS = (1.0, 0.975, 0.95, 0.925, 0.9, 0.85, 0.8)
"""Parts of a row's largest weight that its scale is tried with: a few cut weights may be worth finer steps."""


class Int8Block(Block):
    """On the CPU, rows are multiplied as whole numbers (see `digits`); elsewhere the weights are made dense again.

    Args:
        weight: [N, K], of any floating dtype.
    """

    scale: Tensor
    _steps: Tensor | None

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight)
        steps, scale = quantize_rows(weight)
        best = best_kernel() if weight.device.type == "cpu" else None
        self._kernel: Kernel | None = None
        self._place = 0
        if best is not None and self.in_features <= MOST_COLUMNS:
            make, self._place = best
            self._kernel = make(steps, scale)
        self.register_buffer("scale", scale)
        self.register_buffer("_steps", steps if self._kernel is None else None)

    @property
    def steps(self) -> Tensor:
        """int8 [N, K]"""
        if self._kernel is not None:
            return self._kernel.steps()
        assert self._steps is not None
        return self._steps

    def product(self, rows: Tensor) -> Tensor:
        """As in `Block`."""
        if self._kernel is None:
            return linear(rows, self.dequantized().to(rows.dtype))
        digits = (HALF_DIGITS if rows.dtype.itemsize == 2 else FLOAT32_DIGITS)[self._place]
        split, worth = digits.split(rows)
        return digits.join(self._kernel.product(split, digits.zero), worth).to(rows.dtype)

    def dequantized(self) -> Tensor:
        """As in `Block`."""
        return self.steps * self.scale[:, None]


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix [N, K] as int8 steps [N, K] and float32 scales [N], each row with the scale of least error."""
    steps, scales = zip(*map(_quantize, chunks(weight)), strict=True)
    return torch.cat(steps), torch.cat(scales)


def _quantize(wide: Tensor) -> tuple[Tensor, Tensor]:
    largest = wide.abs().amax(-1).clamp_min(torch.finfo(torch.float32).tiny)
    best, least = largest / STEPS, torch.full_like(largest, float("inf"))
    for clip in CLIPS:
        scale = largest * (clip / STEPS)
        error = (wide - _steps(wide, scale) * scale[:, None]).square().sum(-1)
        best = torch.where(error < least, scale, best)
        least = torch.minimum(error, least)
    return _steps(wide, best).to(torch.int8), best


def _steps(wide: Tensor, scale: Tensor) -> Tensor:
    return (wide / scale[:, None]).round_().clamp_(-STEPS, STEPS)
