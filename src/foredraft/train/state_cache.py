"""The target's hidden states on disk, so that every epoch and every drafter after the first pass reads them.

A pass of the target costs most of a training step. Its states depend on the corpus and the target alone;
one file for each shard and tapped place holds them, a row a token, beside a list of the rows each sample has.
Files are mapped into memory: a run that is killed keeps what was written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.files import share_with_others
from foredraft.train.corpus import Corpus, Sample

STATES = "states"
"""Folder of a corpus that holds the states of its samples."""
DIGITS = 16
BLOCK = 512
"""Bytes of what `st_blocks` counts."""


@dataclass(frozen=True, slots=True)
class ShardTokens:
    """One shard of a corpus: what tells its text from any other, and int64 [S] the tokens of each sample."""

    digest: str
    lengths: NDArray[np.int64]

    @classmethod
    def all_of(cls, corpus: Corpus) -> list[ShardTokens]:
        """Every shard of a corpus, in order."""
        count = len(corpus.manifest["shards"])
        return [cls.of(corpus.shard(number)) for number in range(count)]

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> ShardTokens:
        """The shard of these samples, as they are stored."""
        digest, lengths = hashlib.sha256(), []
        for sample in samples:
            tokens = sample.token_ids
            digest.update(np.int64(len(tokens)).tobytes() + tokens.tobytes())
            lengths.append(len(tokens))
        return cls(digest.hexdigest(), np.array(lengths, np.int64))


class StateCache:
    """Hidden states of the samples of a corpus by one target.

    Args:
        folder: where caches of this corpus are kept. Each shard and target have a folder of their own
            inside, so a corpus that grows keeps what it has.
        target: what tells the target from others, as JSON.
        shards: the corpus.
        width: h, numbers of one state.
        dtype: of the states.
    """

    def __init__(
        self,
        folder: Path,
        target: Mapping[str, Any],
        shards: Sequence[ShardTokens],
        width: int,
        dtype: torch.dtype,
    ) -> None:
        self._width, self._dtype = width, dtype
        self._shards = [(_folder(folder, target, shard), shard.lengths) for shard in shards]
        self._firsts = np.cumsum([0, *(len(shard.lengths) for shard in shards)])
        self._places: dict[tuple[int, int], _Place] = {}

    def reserve(self, taps: Sequence[int]) -> None:
        """Take the room that states of these taps will need.

        Raises:
            ConfigError: the disk does not have it, or it cannot be written.
        """
        for shard in range(len(self._shards)):
            for tap in taps:
                self._place(shard, tap)

    def has(self, taps: Sequence[int], samples: Tensor, lengths: Tensor) -> bool:
        """Whether the first `lengths[i]` rows of every sample are there for every tap; int64 [B] each."""
        return all(
            place.has(i, rows)
            for tap in taps
            for place, i, rows in self._find(tap, samples, lengths)
        )

    def read(self, tap: int, samples: Tensor, lengths: Tensor) -> Tensor:
        """[B, T, h] states of a batch, padded with 0 on the right."""
        states = torch.zeros(len(samples), int(lengths.max()), self._width, dtype=self._dtype)
        for row, (place, i, length) in enumerate(self._find(tap, samples, lengths)):
            states[row, :length] = place.rows_of(i, length)
        return states

    def write(self, tap: int, samples: Tensor, lengths: Tensor, states: Tensor) -> None:
        """Keep the states [B, T, h] of a batch; what is there already stays, for others may read it."""
        states = states.cpu()
        for row, (place, i, length) in enumerate(self._find(tap, samples, lengths)):
            if place.has(i, length):
                continue
            place.rows_of(i, length).copy_(states[row, :length])
            place.held[i] = length  # last: a kill before it leaves the sample out

    def _find(
        self, tap: int, samples: Tensor, lengths: Tensor
    ) -> Iterator[tuple[_Place, int, int]]:
        """For each sample of a batch: its files, its number there, and its rows."""
        for sample, length in zip(samples.tolist(), lengths.tolist(), strict=True):
            shard = int(np.searchsorted(self._firsts, sample, side="right")) - 1
            yield self._place(shard, tap), sample - int(self._firsts[shard]), length

    def _place(self, shard: int, tap: int) -> _Place:
        if (shard, tap) not in self._places:
            folder, lengths = self._shards[shard]
            try:
                folder.mkdir(parents=True, exist_ok=True)
                place = _Place(folder / f"tap-{tap}", lengths, self._width, self._dtype)
            except (OSError, RuntimeError) as error:  # torch maps files, and raises the latter
                raise ConfigError(
                    f"the target's hidden states cannot be kept in {folder} "
                    f"({getattr(error, 'strerror', None) or error}); do without them (--no-keep-states in "
                    "training), or put the corpus where it can be written beside"
                ) from error
            self._places[shard, tap] = place
        return self._places[shard, tap]


def is_kept(
    folder: Path, target: Mapping[str, Any], shard: ShardTokens, taps: Sequence[int]
) -> bool:
    """Whether every sample of a shard has its states of these taps."""
    files = [_folder(folder, target, shard) / f"tap-{tap}.held" for tap in taps]
    return all(file.exists() for file in files) and all(
        bool((np.fromfile(file, np.int32)[: len(shard.lengths)] >= shard.lengths).all())
        for file in files
    )


def _folder(folder: Path, target: Mapping[str, Any], shard: ShardTokens) -> Path:
    key = json.dumps([dict(target), shard.digest], sort_keys=True)
    return folder / hashlib.sha256(key.encode()).hexdigest()[:DIGITS]


class _Place:
    """The files of one tap of one shard: rows [tokens, h], and held int32 [S], the rows of each sample."""

    def __init__(
        self, stem: Path, lengths: NDArray[np.int64], width: int, dtype: torch.dtype
    ) -> None:
        self._starts = np.cumsum([0, *lengths]).tolist()
        tokens, file, held = (
            self._starts[-1],
            stem.with_suffix(".states"),
            stem.with_suffix(".held"),
        )
        size = tokens * width * dtype.itemsize
        if not (file.exists() and file.stat().st_size >= size):
            held.unlink(missing_ok=True)  # what it says is not there
        _reserve(file, size)
        count = max(1, tokens * width)
        rows = torch.from_file(str(file), shared=True, size=count, dtype=dtype)
        self._rows = rows[: tokens * width].view(tokens, width)
        samples = max(1, len(lengths))
        self.held = torch.from_file(str(held), shared=True, size=samples, dtype=torch.int32)
        share_with_others(file, held)

    def has(self, sample: int, rows: int) -> bool:
        """Whether that many rows of a sample are there."""
        return int(self.held[sample]) >= rows

    def rows_of(self, sample: int, rows: int) -> Tensor:
        """[rows, h] the first rows of a sample, to be read or written."""
        first = self._starts[sample]
        return self._rows[first : first + rows]


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
            f"{file.parent} has no room for them ({error.strerror or error}); do without "
            "them (--no-keep-states in training), or put the corpus on another disk"
        ) from error
