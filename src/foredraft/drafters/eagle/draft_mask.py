"""The mask of a draft's levels, kept from level to level and from round to round.

Text is seen by all rows, so its columns stay as they are; only the few columns of the draft are written.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROWTH = 256
"""Columns are whole multiples of this, and grow by half."""


class DraftMask:
    """Additive masks in one buffer: 0 where a row sees, -inf where it does not."""

    def __init__(self, groups: int, device: torch.device, dtype: torch.dtype) -> None:
        """`groups`: query heads that share a key head; their queries are more rows of one product."""
        self._groups = groups
        self._buffer = torch.zeros(0, 0, device=device, dtype=dtype)
        self._written = (0, 0)
        """Columns that may hold anything but 0."""

    def of(self, rows: Tensor, text: int) -> Tensor:
        """The mask of T rows, each group's again behind the last one's.

        Args:
            rows: bool [T, N] which rows of the draft each sees.
            text: rows of text before the draft, which all see.

        Returns:
            [groups * T, text + N], a part of the buffer: the next call may change it.
        """
        count, drafted = rows.shape
        stop = text + drafted
        self._make_room(self._groups * count, stop)
        if self._written[0] != text:
            self._buffer[:, slice(*self._written)] = 0
            self._written = text, stop
        self._written = text, max(self._written[1], stop)
        hidden = torch.zeros_like(rows, dtype=self._buffer.dtype).masked_fill_(~rows, -torch.inf)
        mask = self._buffer[: self._groups * count, :stop]
        mask[:, text:].view(self._groups, count, drafted).copy_(hidden)
        return mask

    def _make_room(self, rows: int, columns: int) -> None:
        have_rows, have_columns = self._buffer.shape
        if rows <= have_rows and columns <= have_columns:
            return
        if columns > have_columns:
            columns = -(-max(columns, have_columns * 3 // 2) // GROWTH) * GROWTH
        shape = max(rows, have_rows), max(columns, have_columns)
        self._buffer, self._written = self._buffer.new_zeros(shape), (0, 0)
