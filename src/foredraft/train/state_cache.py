"""The target's hidden states on disk, so that every epoch and every drafter after the first pass reads them.

A pass of the target costs most of a training step. Its states depend on the corpus and the target alone;
one file a tapped place holds them, a row a token of the corpus, and a list of the rows each sample has.
Files are mapped into memory: a run that is killed keeps what was written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.files import write_json

DIGITS = 16
BLOCK = 512
"""Bytes of what `st_blocks` counts."""


class StateCache:
    """Hidden states of the samples of one corpus by one target.

    Args:
        folder: where caches of this corpus are kept; each target has a folder of its own inside.
        key: what the states depend on: corpus, weights, dtype. Another key, other files.
        lengths: int64 [S], tokens of each sample.
        width: h, numbers of one state.
        dtype: of the states.

    Raises:
        ConfigError: the disk has no room for a state of every token.
    """

    def __init__(
        self,
        folder: Path,
        key: Mapping[str, Any],
        lengths: NDArray[np.int64],
        width: int,
        dtype: torch.dtype,
    ) -> None:
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:DIGITS]
        self.folder = folder / digest
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "key.json", dict(key))
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._width, self._dtype = width, dtype
        self._places: dict[int, _Place] = {}

    def has(self, taps: Sequence[int], samples: Tensor, lengths: Tensor) -> bool:
        """Whether the first `lengths[i]` rows of every sample are there for every tap; int64 [B] each."""
        return all(
            self._place(tap).has(i, rows)
            for i, rows in zip(samples.tolist(), lengths.tolist(), strict=True)
            for tap in taps
        )

    def read(self, tap: int, samples: Tensor, lengths: Tensor) -> Tensor:
        """[B, T, h] states of a batch, padded with 0 on the right."""
        states = torch.zeros(len(samples), int(lengths.max()), self._width, dtype=self._dtype)
        rows = self._place(tap).rows
        for row, (i, length) in enumerate(zip(samples.tolist(), lengths.tolist(), strict=True)):
            first = int(self._starts[i])
            states[row, :length] = rows[first : first + length]
        return states

    def write(self, tap: int, samples: Tensor, lengths: Tensor, states: Tensor) -> None:
        """Keep the states [B, T, h] of a batch."""
        place = self._place(tap)
        states = states.cpu()
        for row, (i, length) in enumerate(zip(samples.tolist(), lengths.tolist(), strict=True)):
            first = int(self._starts[i])
            place.rows[first : first + length] = states[row, :length]
            place.held[i] = length  # last: a kill before it leaves the sample out

    def _place(self, tap: int) -> _Place:
        if tap not in self._places:
            tokens, samples = int(self._starts[-1]), len(self._starts) - 1
            self._places[tap] = _Place(
                self.folder / f"tap-{tap}", tokens, samples, self._width, self._dtype
            )
        return self._places[tap]


class _Place:
    """The two files of one tap: rows [tokens, h], and held int32 [S], how many rows each sample has."""

    def __init__(
        self, stem: Path, tokens: int, samples: int, width: int, dtype: torch.dtype
    ) -> None:
        file = stem.with_suffix(".states")
        size = tokens * width * dtype.itemsize
        _reserve(file, size)
        count = max(1, tokens * width)
        rows = torch.from_file(str(file), shared=True, size=count, dtype=dtype)
        self.rows = rows[: tokens * width].view(tokens, width)
        held = stem.with_suffix(".held")
        self.held = torch.from_file(str(held), shared=True, size=max(1, samples), dtype=torch.int32)

    def has(self, sample: int, rows: int) -> bool:
        return int(self.held[sample]) >= rows


def _reserve(file: Path, size: int) -> None:
    """Take the disk that a file will need: a page that finds none later would end the process."""
    if not size or (file.exists() and file.stat().st_blocks * BLOCK >= size):
        return
    try:
        with file.open("ab") as place:
            os.posix_fallocate(place.fileno(), 0, size)
    except AttributeError:  # a system without it: the file grows as it is written
        return
    except OSError as error:
        file.unlink(missing_ok=True)
        raise ConfigError(
            f"the target's hidden states take {size / 1e9:.1f} GB for each place they are read at, and "
            f"{file.parent} has no room for them ({error.strerror or error}); train with "
            "--no-keep-states, or put the corpus on another disk"
        ) from error
