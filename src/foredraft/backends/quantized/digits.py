"""Rows of floating numbers as rows of small whole numbers, which an int8 kernel multiplies exactly.

A row is divided by a unit of its own, so that its largest number has a few digits in base b, and each digit
becomes a row:

    x[r, k] = unit[r] * (d0[r, k] + b d1[r, k] + b^2 d2[r, k] + ..),   |d| <= b / 2

The products of whole numbers have no rounding, so a row's result hangs on this row alone, to the last bit,
whatever else is in the pass. With three digits in base 254 the step is 2^-23 of the row's largest number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

FLOAT32_WHOLE = 2**23
"""Below this, float32 tells whole numbers and halves apart."""

SMALLEST = torch.finfo(torch.float32).tiny
"""The unit of a row of zeros."""


@dataclass(frozen=True, slots=True)
class Digits:
    """How rows are written.

    Attributes:
        base: b, even.
        count: digits of a number.
    """

    base: int
    count: int

    @property
    def zero(self) -> int:
        """What stands for the digit 0, where digits are stored without sign."""
        return self.base // 2 + 1

    @property
    def limit(self) -> int:
        """The largest number that can be written."""
        return self.base // 2 * self.powers[-1]

    @property
    def powers(self) -> list[int]:
        """What each digit counts for, the lowest first."""
        return [self.base**place for place in range(self.count)]

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Write rows of floating numbers [R, K].

        Returns:
            Digits float32 [count * R, K], the lowest of all rows first; and what they count for, float32
            [count, R, 1].
        """
        wide = rows.to(torch.float32 if self.limit < FLOAT32_WHOLE else torch.float64)
        largest = torch.linalg.vector_norm(wide, math.inf, -1, keepdim=True)
        unit = (largest / self.limit).clamp_min(SMALLEST)
        worth = unit * _places(self, wide.dtype)
        whole = (wide / worth).round_()
        digits = torch.sub(whole[:-1], whole[1:], alpha=self.base)
        return digits.float().flatten(0, 1), worth[:-1].float()

    def join(self, products: Tensor, worth: Tensor) -> Tensor:
        """The products of the rows [R, N] from those of their digits, float32 [count * R, N]."""
        return (products.view(self.count, -1, products.shape[-1]) * worth).sum(0)


@cache
def _places(digits: Digits, dtype: torch.dtype) -> Tensor:
    """The powers, and one more place in which every number is 0: [count + 1, 1, 1]."""
    return torch.tensor([*digits.powers, math.inf], dtype=dtype)[:, None, None]
