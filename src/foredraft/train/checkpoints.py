"""Checkpoints: written whole or not at all, and everything that an exact continuation needs.

```
checkpoints/step-00000400.pt    weights, optimizer, position, random states
checkpoints/best.pt             the weights that did best on the held-out samples
```
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foredraft.errors import ConfigError
from foredraft.files import replace_with

KEPT = 2
"""Checkpoints on disk: the last, and the one before in case that it cannot be read."""
BEST = "best.pt"


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: where they are; made when the first one is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write the checkpoint of a step, and remove all but the last two."""
        self._write(f"step-{step:08d}.pt", state)
        for old in self._files()[:-KEPT]:
            old.unlink()

    def save_best(self, state: Mapping[str, Any]) -> None:
        """Replace the best weights."""
        self._write(BEST, state)

    def latest(self) -> dict[str, Any] | None:
        """The last checkpoint, on the CPU; None where there is none.

        Raises:
            ConfigError: it cannot be read.
        """
        files = self._files()
        return _read(files[-1]) if files else None

    def best(self) -> dict[str, Any] | None:
        """What `save_best` was given last. Errors as in `latest`."""
        file = self._folder / BEST
        return _read(file, "module", "measure") if file.exists() else None

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("step-*.pt"))

    def _write(self, name: str, state: Mapping[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob(".*.partial"):  # of a process that was killed in writing
            left.unlink()
        with replace_with(self._folder / name) as partial, partial.open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())


def _read(file: Path, *parts: str) -> dict[str, Any]:
    """A file with these parts at least."""
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or not all(part in state for part in parts):
            raise ValueError("parts of it are missing")
    except Exception as error:  # a damaged file raises what it likes, also without a word
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"{file} cannot be read ({reason[0]}); remove it to go on without it, or give another --out"
        ) from error
    return state


def random_states() -> dict[str, Any]:
    """The states of every global generator of this process, as tensors and plain values."""
    kind, keys, *numbers = np.random.get_state()
    version, internal, gauss = random.getstate()
    state = {
        "torch": torch.get_rng_state(),
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys, np.int64)), *numbers],
        "python": [version, list(internal), gauss],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_states(state: Mapping[str, Any]) -> None:
    """Put back what `random_states` gave."""
    torch.set_rng_state(state["torch"])
    kind, keys, *numbers = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *numbers))
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
