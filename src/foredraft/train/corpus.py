"""A training corpus on disk: token shards and, for each conversation, what the assistant wrote.

```
corpus.json               the manifest: what made the corpus, and its shards in order
shard-00000.safetensors   tokens  uint16 or uint32 [T]
                          starts  int64 [S + 1]: sample s is tokens[starts[s] : starts[s + 1]]
                          spans   int32 [K, 3]: (sample, first, stop), positions within the sample
```

A span covers one reply with its end-of-turn token: what the target generates and a drafter has to
guess. Shards are read one at a time, so a corpus may be larger than memory.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from foredraft.errors import ConfigError, DataError
from foredraft.files import replace_with, write_json

MANIFEST = "corpus.json"
UNFINISHED = "unfinished"
"""What the manifest says until a corpus is finished: see `Unfinished`."""
FORMAT = 1
ENTRY = {"name": str, "samples": int, "tokens": int, "labelled": int}
"""What the manifest says of each shard at least."""
OPEN_SHARDS = 4
"""Shards kept in memory by a reader."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One conversation.

    Attributes:
        token_ids: uint16 or uint32 [T].
        spans: (first, stop) of each reply, its end-of-turn token included; increasing, disjoint.
    """

    token_ids: NDArray[Any]
    spans: tuple[tuple[int, int], ...]

    @property
    def num_labelled(self) -> int:
        """Tokens that the assistant wrote."""
        return sum(stop - first for first, stop in self.spans)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What a corpus is to become.

    Attributes:
        tokens: how many were asked for; None where all prompts were.
        command: what was typed to make it; None where nothing was.
    """

    tokens: int | None
    command: str | None


@dataclass(frozen=True, slots=True)
class _Shard:
    token_ids: NDArray[Any]
    starts: NDArray[np.int64]
    spans: NDArray[np.int32]

    @classmethod
    def read(cls, file: Path, samples: int) -> _Shard:
        try:
            tensors = load_file(file)
            shard = cls(tensors["tokens"], tensors["starts"], tensors["spans"])
            if not shard._fits(samples):
                raise ValueError(f"it does not hold {samples} samples with spans inside")
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise DataError(
                f"{file} is no shard of a corpus ({error}); make the corpus again"
            ) from error
        return shard

    def _fits(self, samples: int) -> bool:
        """Whether there are so many samples, and every span lies within its own."""
        starts, spans = self.starts, self.spans
        if self.token_ids.ndim != 1 or starts.shape != (samples + 1,) or spans.shape[1:] != (3,):
            return False
        lengths, (owner, first, stop) = np.diff(starts), spans.T
        apart = starts[0] == 0 and starts[-1] == len(self.token_ids) and (lengths >= 0).all()
        owned = (np.diff(owner) >= 0).all() and ((owner >= 0) & (owner < samples)).all()
        if not (apart and owned):
            return False
        return bool(((first >= 0) & (first <= stop) & (stop <= lengths[owner])).all())

    def __getitem__(self, index: int) -> Sample:
        first, stop = np.searchsorted(self.spans[:, 0], [index, index + 1])
        spans = tuple((int(a), int(b)) for _, a, b in self.spans[first:stop])
        return Sample(self.token_ids[self.starts[index] : self.starts[index + 1]], spans)


class Corpus:
    """A corpus, read lazily.

    Raises:
        DataError: the folder holds no corpus, or a part of it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self._shards: list[Mapping[str, Any]] = self.manifest["shards"]
        counts = {shard["name"]: shard["samples"] for shard in self._shards}
        self._firsts = np.cumsum([0, *(shard["samples"] for shard in self._shards)]).tolist()
        self._read = lru_cache(OPEN_SHARDS)(
            lambda name: _Shard.read(self.folder / name, counts[name])
        )

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of a corpus of {len(self)}")
        shard = bisect_right(self._firsts, index) - 1
        sample: Sample = self._read(self._shards[shard]["name"])[index - self._firsts[shard]]
        return sample

    def __iter__(self) -> Iterator[Sample]:
        return (self[index] for index in range(len(self)))

    def shard(self, number: int) -> Iterator[Sample]:
        """The samples of one shard; -1 is the last."""
        entry = self._shards[number]
        tokens = self._read(entry["name"])
        return (tokens[i] for i in range(entry["samples"]))

    @property
    def vocab_size(self) -> int:
        """V of the target that the tokens belong to."""
        return int(self.manifest["vocab_size"])

    @property
    def num_tokens(self) -> int:
        """Tokens in all."""
        return sum(shard["tokens"] for shard in self._shards)

    @property
    def num_labelled(self) -> int:
        """Tokens that the assistant wrote."""
        return sum(shard["labelled"] for shard in self._shards)

    @property
    def unfinished(self) -> Unfinished | None:
        """What is still to be made; None where nothing is."""
        mark = self.manifest.get(UNFINISHED)
        return None if mark is None else Unfinished(mark.get("tokens"), mark.get("command"))

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """[S] tokens of each sample."""
        parts = [np.diff(self._read(shard["name"]).starts) for shard in self._shards]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


class CorpusWriter:
    """Appends whole shards to a corpus; the manifest is replaced after each, so a kill loses one at most.

    Args:
        folder: made if it does not exist. A corpus that is already there is continued if `facts` are
            equal to its own, and begun anew if it holds no conversation.
        facts: what made the corpus; `vocab_size` is required.

    Raises:
        ConfigError: the folder holds conversations made in another way.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self._dtype = np.uint16 if facts["vocab_size"] <= 2**16 else np.uint32
        fresh = {"format": FORMAT, "dtype": np.dtype(self._dtype).name, **facts, "shards": []}
        self.manifest = fresh
        if (self.folder / MANIFEST).exists():
            before = read_manifest(self.folder)
            difference = _difference(before, fresh)
            holds_some = any(shard["samples"] for shard in before["shards"])
            if difference is not None and holds_some:
                raise ConfigError(f"{self.folder} holds a corpus made with {difference}")
            if difference is None:
                self.manifest = before
                return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / MANIFEST, self.manifest)

    def mark(self, notes: Mapping[str, Any]) -> None:
        """Say in the manifest that the corpus is unfinished, with notes such as those of `Unfinished`."""
        self.manifest = {**self.manifest, UNFINISHED: dict(notes)}
        write_json(self.folder / MANIFEST, self.manifest)

    def finish(self) -> None:
        """Take the mark away."""
        self.manifest = {k: v for k, v in self.manifest.items() if k != UNFINISHED}
        write_json(self.folder / MANIFEST, self.manifest)

    @property
    def num_shards(self) -> int:
        """Shards that are written."""
        return len(self.manifest["shards"])

    @property
    def num_tokens(self) -> int:
        """Tokens that are written."""
        return sum(shard["tokens"] for shard in self.manifest["shards"])

    def as_stored(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples as they will be read: their tokens in the corpus' own type."""
        return [Sample(np.asarray(s.token_ids, self._dtype), s.spans) for s in samples]

    def add_shard(self, samples: Sequence[Sample], **notes: Any) -> None:
        """Write a shard, then name it in the manifest together with `notes` about it."""
        name = f"shard-{self.num_shards:05d}.safetensors"
        samples = self.as_stored(samples)
        lengths = [len(sample.token_ids) for sample in samples]
        spans = [(i, *span) for i, sample in enumerate(samples) for span in sample.spans]
        ids = [sample.token_ids for sample in samples] or [np.zeros(0, self._dtype)]
        tensors = {
            "tokens": np.concatenate(ids),
            "starts": np.cumsum([0, *lengths], dtype=np.int64),
            "spans": np.array(spans, np.int32).reshape(-1, 3),
        }
        with replace_with(self.folder / name) as part:
            save_file(tensors, part)
        entry = {
            "name": name,
            "samples": len(samples),
            "tokens": sum(lengths),
            "labelled": sum(sample.num_labelled for sample in samples),
            **notes,
        }
        self.manifest = {**self.manifest, "shards": [*self.manifest["shards"], entry]}
        write_json(self.folder / MANIFEST, self.manifest)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a corpus.

    Raises:
        DataError: there is none, or it is of another format.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            reason = f"format {manifest['format']}, and this version reads {FORMAT}"
        elif _is_whole(manifest):
            return manifest
        else:
            reason = "parts of it are missing"
    except OSError as error:
        reason = str(error.strerror)
    except (ValueError, KeyError, TypeError):
        reason = "not a manifest"
    raise DataError(
        f"{folder} holds no corpus that can be read ({MANIFEST}: {reason}); make one with "
        "`foredraft data generate`"
    )


def _is_whole(manifest: Mapping[str, Any]) -> bool:
    """Whether it says what every reader asks for."""
    shards = manifest.get("shards")
    return (
        isinstance(manifest.get("vocab_size"), int)
        and isinstance(manifest.get(UNFINISHED, {}), dict)
        and isinstance(shards, list)
        and all(isinstance(shard, dict) for shard in shards)
        and all(isinstance(shard.get(n), t) for shard in shards for n, t in ENTRY.items())
    )


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """What tells two corpora apart, in words, without what grows; None where nothing does."""
    for name in sorted((old.keys() | new.keys()) - {"shards", UNFINISHED}):
        if old.get(name) != new.get(name):
            return (
                f"{name}={old.get(name)!r}, and this is {name}={new.get(name)!r}; continue it as it was "
                "made, or give another folder"
            )
    return None
