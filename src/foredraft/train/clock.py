"""Time and interruption, the same on all processes."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from accelerate import Accelerator

AGREE_STEPS = 8
"""Steps between two agreements of several processes: each is a collective that waits for the device."""


class Clock:
    """Seconds of training, and whether it is to stop.

    What depends on time (the learning rate, checkpoints, the end) must be decided alike everywhere, so
    several processes go by what they agreed on last.

    Args:
        accelerator: the processes.
        elapsed_s: seconds of earlier runs.
        stop: asked whether to stop; True on any process stops all.
    """

    def __init__(
        self, accelerator: Accelerator, elapsed_s: float, stop: Callable[[], bool]
    ) -> None:
        self._accelerator, self._stop = accelerator, stop
        self._begun = time.monotonic() - elapsed_s
        self.elapsed_s = elapsed_s
        self.stopped = False

    def read(self, step: int) -> None:
        """Bring `elapsed_s` and `stopped` up to date, before a step."""
        alone = self._accelerator.num_processes == 1
        if alone or step % AGREE_STEPS == 0:
            self.agree()

    def agree(self) -> None:
        """Bring them up to date at once; all processes must call it."""
        now = time.monotonic() - self._begun, float(self._stop())
        if self._accelerator.num_processes > 1:
            shared = torch.tensor(now, device=self._accelerator.device)
            dist.all_reduce(shared, dist.ReduceOp.MAX)
            now = tuple(shared.tolist())
        self.elapsed_s, self.stopped = now[0], now[1] > 0
