"""Weights in int8, with one scale for each row: `w[n, k] = scale[n] * steps[n, k]`.

On a CPU whose int8 kernel is exact, rows are multiplied as whole numbers (see `digits`). Elsewhere PyTorch's
kernel for few rows takes bfloat16, and for other rows the weights are made dense for the product.
"""

from __future__ import annotations

from functools import cache

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
"""Parts of a row's largest weight that its scale is tried with: finer steps may be worth some cut weights."""
PACKED_ROWS = 16
"""Rows of a pass up to which the kernel for few rows is used: its time grows with each."""


class Int8Block(Block):
    """Weights in int8.

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

    @property
    def nbytes(self) -> int:
        """As in `Block`."""
        return self.out_features * self.in_features + self.scale.nbytes

    def product(self, rows: Tensor) -> Tensor:
        """As in `Block`."""
        if self._kernel is None:
            return self._dense_product(rows)
        digits = (HALF_DIGITS if rows.dtype.itemsize == 2 else FLOAT32_DIGITS)[self._place]
        split, worth = digits.split(rows)
        return digits.join(self._kernel.product(split, digits.zero), worth).to(rows.dtype)

    def _dense_product(self, rows: Tensor) -> Tensor:
        if len(rows) <= PACKED_ROWS and multiplies_packed(rows.device, rows.dtype):
            return multiply_packed(rows, self.steps, self.scale)
        return linear(rows, self.dequantized().to(rows.dtype))

    def dequantized(self) -> Tensor:
        """As in `Block`."""
        return self.steps * self.scale[:, None]


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix [N, K] as int8 steps [N, K] and float32 scales [N], each row with the scale of least error."""
    steps, scales = zip(*map(_quantize, chunks(weight)), strict=True)
    return torch.cat(steps), torch.cat(scales)


def _quantize(wide: Tensor) -> tuple[Tensor, Tensor]:
    largest = wide.abs().amax(-1).clamp_min(torch.finfo(torch.float32).tiny)
    best, least = largest, torch.full_like(largest, float("inf"))
    for clip in CLIPS:
        scale = (largest * (clip / STEPS)).bfloat16().float()  # which that kernel rounds it to
        error = (wide - _steps(wide, scale) * scale[:, None]).square().sum(-1)
        best = torch.where(error < least, scale, best)
        least = torch.minimum(error, least)
    return _steps(wide, best).to(torch.int8), best


def _steps(wide: Tensor, scale: Tensor) -> Tensor:
    return (wide / scale[:, None]).round_().clamp_(-STEPS, STEPS)


def multiply_packed(rows: Tensor, steps: Tensor, scale: Tensor) -> Tensor:
    """The kernel for few rows, [R, K] -> [R, N]."""
    product: Tensor = torch.ops.aten._weight_int8pack_mm(rows, steps, scale.to(rows.dtype))
    return product


@cache
@torch.inference_mode(False)
@torch.no_grad()
def multiplies_packed(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether that kernel is there for bfloat16 rows on this device, and right."""
    if dtype != torch.bfloat16:
        return False  # it takes others too, and is slower than a dense product
    draw = torch.Generator().manual_seed(0)
    steps, scale = quantize_rows(torch.randn(128, 256, generator=draw))
    rows = torch.randn(3, 256, generator=draw).to(dtype)
    expected = rows.float() @ (steps * scale[:, None]).T
    try:
        found = multiply_packed(rows.to(device), steps.to(device), scale.to(device))
    except (RuntimeError, AttributeError, NotImplementedError):  # not in this build of PyTorch
        return False
    return torch.allclose(found.float().cpu(), expected, atol=0.1, rtol=0.02)
