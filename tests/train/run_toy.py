"""A training run in a process of its own: `python -m tests.train.run_toy OUT [--kill-at STEP]`.

Under a launcher each process writes its weights to OUT/rank-N.pt.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
from torch import Tensor

from foredraft.train.loop import fit
from foredraft.train.objective import Batch, LossReport
from tests.train.toy_training import ToyObjective, counting_corpus, toy_options


class Mortal(ToyObjective):
    """Kills its process in the middle of a step."""

    def __init__(self, kill_at: int | None) -> None:
        super().__init__(dropout=0.3)
        self._kill_at, self._calls = kill_at, 0

    def __call__(self, batch: Batch) -> LossReport:
        self._calls += self.module.training
        if self._calls == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)


def train_toy(out: Path, kill_at: int | None = None) -> dict[str, Tensor]:
    """Train for 20 steps, from wherever `out` is; gives the weights."""
    objective = Mortal(kill_at)
    options = toy_options(steps=20, checkpoint_steps=3, accumulate=2)
    fit(objective, counting_corpus(100), options, out, resume=True)
    return objective.module.state_dict()


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--kill-at", type=int)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    weights = train_toy(asked.out, asked.kill_at)
    rank = int(os.environ.get("RANK", "0"))
    torch.save(weights, asked.out / f"rank-{rank}.pt")


if __name__ == "__main__":
    main()
