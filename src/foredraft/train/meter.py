"""Sums over steps, and the measures that come of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor

from foredraft.train.stepping import BATCHES, FIRST_DEPTH, LOSS, SKIPPED


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all processes.

    Attributes:
        sums: [3 + 2K], see `stepping`.
        steps: how many were summed.
        tokens: that they read, padding left out.
        tokens_per_s: how fast.
    """

    sums: list[float]
    steps: int = 0
    tokens: int = 0
    tokens_per_s: float | None = None

    @property
    def loss(self) -> float | None:
        """Mean of the finite losses; None when there were none."""
        return self.sums[LOSS] / self.sums[BATCHES] if self.sums[BATCHES] else None

    @property
    def acceptance(self) -> tuple[float, ...]:
        """[K] hits / counted of each depth, 0 where nothing counted."""
        depths = (len(self.sums) - FIRST_DEPTH) // 2
        hits, counted = self.sums[FIRST_DEPTH:][:depths], self.sums[FIRST_DEPTH:][depths:]
        return tuple(h / c if c else 0.0 for h, c in zip(hits, counted, strict=True))


class Meter:
    """Gathers what steps give, without waiting for the device until it is read."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._sums: list[Tensor] = []
        self._tokens = 0
        self._since = time.monotonic()

    def __len__(self) -> int:
        """Steps since the last reading."""
        return len(self._sums)

    def add(self, sums: Tensor, tokens: int) -> None:
        """One step more: its sums, and the tokens it read on this process."""
        self._sums.append(sums)
        self._tokens += tokens

    def read(self) -> tuple[Totals, int]:
        """Totals since the last reading, and how many steps were skipped. All processes must call it."""
        now, local = time.monotonic(), torch.stack(self._sums).sum(0)
        tokens = torch.tensor([float(self._tokens)], device=local.device)
        *sums, read = self._accelerator.reduce(torch.cat([local, tokens]), "sum").tolist()
        skipped = round(sums[SKIPPED] / self._accelerator.num_processes)
        speed = read / max(now - self._since, 1e-9)
        totals = Totals(sums, len(self._sums), round(read), speed)
        self._sums, self._tokens, self._since = [], 0, now
        return totals, skipped

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside is not the time of training steps."""
        begun = time.monotonic()
        yield
        self._since += time.monotonic() - begun
