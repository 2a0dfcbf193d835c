"""Weights in 4 bits, in groups along a row: `w = (step - 8) * scale + middle`.

They lie as PyTorch's kernel for few bfloat16 rows has them: in blocks of rows, column by column, the first
half of a block in the low bits and the second half in the high ones. Whether the kernel of this machine
agrees is tried once. Where it does not, for many rows and for other dtypes, the weights are made dense for
the product: right anywhere, and slow for few rows.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from foredraft.backends.quantized.block import Block, chunks

GROUPS = (32, 16)
"""Columns that share a scale and a middle: the first that divides the row."""
KERNEL_GROUP = 32
MIDDLE, TOP = 8, 15
STARTS = (1.0, 0.9, 0.8)
"""Parts of a group's range that the search begins with."""
ROUNDS = 3
"""Of each search: steps for a scale and a middle, and these by least squares for the steps."""
BLOCKS = (64, 32)
"""Rows of a block in the kernel's layouts: with AVX-512, with AVX2."""
IN_CACHE = 2**17
"""Bytes of weights that are made dense at a time: what they become is still in the cache when it is read."""
KERNEL_ROWS = 64
"""Rows of a pass up to which the kernel is used: its time grows with each, and dense weights cost once."""


def group_of(columns: int) -> int | None:
    """Columns of a group in rows of this length; None where no group divides them."""
    return next((group for group in GROUPS if columns % group == 0), None)


class Int4Block(Block):
    """Weights in 4 bits.

    Args:
        weight: [N, K], of any floating dtype; a group divides K.
    """

    packed: Tensor
    worth: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight)
        self._group = group_of(self.in_features) or self.in_features
        kernel = kernel_block() if weight.device.type == "cpu" else None
        self._has_kernel = kernel is not None and self._group == KERNEL_GROUP
        steps, worth = quantize_groups(weight, self._group)
        missing = -len(steps) % (kernel or BLOCKS[0])  # rows that fill up the last block
        steps = torch.nn.functional.pad(steps, (0, 0, 0, missing))
        worth = torch.nn.functional.pad(worth, (0, 0, 0, missing))
        self.register_buffer("packed", pack(steps, kernel or BLOCKS[0]))
        self.register_buffer("worth", worth)

    @property
    def nbytes(self) -> int:
        """As in `Block`."""
        return self.packed.nbytes + self.worth.nbytes

    def product(self, rows: Tensor) -> Tensor:
        """As in `Block`."""
        if self._has_kernel and rows.dtype == torch.bfloat16 and len(rows) <= KERNEL_ROWS:
            return multiply(rows, self.packed, self.worth)[:, : self.out_features]
        at_a_time = max(1, IN_CACHE // self.packed[0].numel())
        parts = [
            torch.matmul(rows, self._scaled(packed, scale).to(rows.dtype))
            for packed, scale in zip(
                torch.split(self.packed, at_a_time),
                torch.split(self._scale, at_a_time),
                strict=True,
            )
        ]
        products = torch.cat(parts).transpose(0, 1).flatten(1)
        sums = rows.float().view(len(rows), -1, self._group).sum(-1)
        products = products + sums @ self.worth[..., 1].float()
        return products[:, : self.out_features].to(rows.dtype)

    def dequantized(self) -> Tensor:
        """As in `Block`."""
        weights = self._scaled(self.packed, self._scale).transpose(1, 2).flatten(0, 1)
        middle = self.worth[..., 1].float().repeat_interleave(self._group, 0)
        return (weights + middle.T)[: self.out_features]

    @property
    def _scale(self) -> Tensor:
        """bfloat16 [N / B, groups, 1, B]"""
        blocks = self.worth[..., 0].reshape(len(self.worth), len(self.packed), -1)
        return blocks.transpose(0, 1)[:, :, None]

    def _scaled(self, packed: Tensor, scale: Tensor) -> Tensor:
        """Weights but for their middles, from the steps and scales of some blocks: float32 [blocks, K, B]."""
        steps = torch.cat([packed & TOP, packed >> 4], -1).view(torch.int8).sub_(MIDDLE)
        grouped = steps.view(len(steps), -1, self._group, steps.shape[-1])
        return (grouped * scale.float()).flatten(1, 2)


def quantize_groups(weight: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """A matrix in 4 bits.

    Args:
        weight: [N, K].
        group: columns of a group; it divides K.

    Returns:
        Steps uint8 [N, K]; scale and middle of each group, bfloat16 [K / group, N, 2].
    """
    steps, worth = zip(*(_quantize(part, group) for part in chunks(weight)), strict=True)
    return torch.cat(steps), torch.cat(worth).transpose(0, 1).contiguous()


def _quantize(wide: Tensor, group: int) -> tuple[Tensor, Tensor]:
    grouped = wide.view(len(wide), -1, group)
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    best = torch.stack([torch.zeros_like(low), (low + high) / 2])
    least = torch.full_like(low, float("inf"))
    for start in STARTS:
        scale = (high - low) * (start / TOP)
        middle = (low + high) / 2 + scale / 2  # the steps are 0 to 15 about 8
        for _ in range(ROUNDS):
            worth = torch.stack([scale, middle]).bfloat16().float()
            steps = _steps(grouped, worth)
            error = (grouped - _weights(steps, worth)).square().sum(-1, keepdim=True)
            best = torch.where(error < least, worth, best)
            least = torch.minimum(error, least)
            scale, middle = _least_squares(grouped, steps)
    best = best.bfloat16().float()
    return _steps(grouped, best).to(torch.uint8).flatten(1), best.bfloat16()[..., 0].movedim(0, -1)


def _steps(grouped: Tensor, worth: Tensor) -> Tensor:
    scale, middle = worth.unbind()
    safe = torch.where(scale == 0, 1.0, scale)  # a group of one value
    return ((grouped - middle) / safe).round_().add_(MIDDLE).clamp_(0, TOP)


def _weights(steps: Tensor, worth: Tensor) -> Tensor:
    scale, middle = worth.unbind()
    return (steps - MIDDLE) * scale + middle


def _least_squares(grouped: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and middle with which these steps come nearest to the weights."""
    from_mean = steps - steps.mean(-1, keepdim=True)
    spread = from_mean.square().sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    scale = (from_mean * grouped).sum(-1, keepdim=True) / spread
    return scale, (grouped - (steps - MIDDLE) * scale).mean(-1, keepdim=True)


def pack(steps: Tensor, block: int) -> Tensor:
    """Two steps a byte: uint8 [N, K] -> [N / block, K, block / 2]; the block divides N."""
    columns = steps.view(-1, block, steps.shape[1]).transpose(1, 2)
    low, high = columns.chunk(2, -1)
    return (low | (high << 4)).contiguous()


def multiply(rows: Tensor, packed: Tensor, worth: Tensor) -> Tensor:
    """The kernel: bfloat16 [R, K] times what `pack` packed, [R, N]."""
    flat = packed.view(packed.shape[0] * packed.shape[2] * 2, -1)
    product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, flat, KERNEL_GROUP, worth)
    return product


@cache
@torch.inference_mode(False)
@torch.no_grad()
def kernel_block() -> int | None:
    """Rows of a block in the layout of this machine's kernel; None if it knows neither of ours."""
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(2 * BLOCKS[0], 2 * KERNEL_GROUP, generator=draw)
    rows = torch.randn(3, 2 * KERNEL_GROUP, generator=draw).bfloat16()
    steps, worth = quantize_groups(weight, KERNEL_GROUP)
    halves = worth.float().transpose(0, 1)[:, :, None].movedim(-1, 0)
    dense = _weights(steps.float().view(len(steps), -1, KERNEL_GROUP), halves[..., 0][..., None])
    expected = rows.float() @ dense.flatten(1).T
    for block in BLOCKS:
        try:
            found = multiply(rows, pack(steps, block), worth).float()
        except (RuntimeError, AttributeError, NotImplementedError):  # not in this build of PyTorch
            return None
        if torch.allclose(found, expected, atol=0.1, rtol=0.02):
            return block
    return None
