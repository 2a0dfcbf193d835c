"""Tokens of rows that grow unevenly, to a streamer that wants one of every row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Columns:
    """Gives a streamer what `generate` gives it: the prompts, then a token of every row at a time.

    Args:
        streamer: a `transformers` streamer.
        count: B, the rows.
        pad: the token of rows that have ended.
    """

    def __init__(self, streamer: Any, count: int, pad: int) -> None:
        self._streamer, self._pad = streamer, pad
        self._rows: list[list[int]] = [[] for _ in range(count)]
        self._ended: set[int] = set()
        self._shown = 0

    def start(self, input_ids: Tensor) -> None:
        """Show the prompts, int64 [B, T]."""
        self._streamer.put(input_ids.cpu())

    def add(self, row: int, token_ids: Sequence[int]) -> None:
        """Tokens of one row; whatever stands in all rows then is shown."""
        self._rows[row] += token_ids
        self._show()

    def end_row(self, row: int) -> None:
        """No more tokens come in this row."""
        self._ended.add(row)
        self._show()

    def end(self) -> None:
        """No more tokens come at all: what waited for rows that could not go on is shown."""
        self._ended.update(range(len(self._rows)))
        self._show()
        self._streamer.end()

    def _show(self) -> None:
        growing = [len(t) for row, t in enumerate(self._rows) if row not in self._ended]
        known = min(growing) if growing else max(map(len, self._rows))
        for at in range(self._shown, known):
            column = [tokens[at] if at < len(tokens) else self._pad for tokens in self._rows]
            self._streamer.put(torch.tensor(column))
        self._shown = max(self._shown, known)
