"""From a corpus to batches: split, bucketed by length, shuffled, shared out over processes.

Which samples stand together, and in which order, is a function of the corpus, the options and the epoch
alone. So a run can go on from any place, and every process knows all of it and reads only its own share.
Of a corpus with many shards, only samples of a few shards at a time are mixed: the reader keeps no more
in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from foredraft.errors import DataError
from foredraft.train.corpus import OPEN_SHARDS
from foredraft.train.objective import Batch
from foredraft.train.options import TrainOptions

Indices = NDArray[np.int64]

POOL = 1024
"""Samples that are sorted by length together: many make even batches, few mix better."""
DIGITS = 16
"""Of a digest, as hexadecimal."""
HELD_OUT_ORDER = (0, 2**32 - 1)
"""Seed and epoch of the order in which held-out samples are read, the same in every run."""


class AnySample(Protocol):
    """One sample of a corpus."""

    @property
    def token_ids(self) -> NDArray[Any]:
        """Unsigned [T]."""
        ...

    @property
    def spans(self) -> Sequence[tuple[int, int]]:
        """First position and the one after the last, of each piece that the assistant wrote."""
        ...


class Samples(Protocol):
    """A corpus, as far as it is read here; `foredraft.train.corpus.Corpus` is one."""

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What made it; `shards` names them in order, each with its number of `samples`."""
        ...

    @property
    def lengths(self) -> Indices:
        """int64 [S], tokens of each sample."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> AnySample: ...


@dataclass(frozen=True, slots=True)
class SampleCounts:
    """What became of the samples of a corpus."""

    trained: int
    held_out: int
    unlabelled: int
    """Dropped, for nothing is left to be predicted; truncation may be the reason."""
    truncated: int
    """Cut at `max_length`; of those that are used."""
    tokens: int
    """Of the samples to train on, after truncation."""
    labelled: int
    """Of these, written by the assistant."""


class Batches:
    """The batches of one process.

    Args:
        corpus: the samples.
        options: `tokens_per_batch`, `accumulate`, `max_length`, `held_out` and `seed`.
        rank: which process this is, of `world_size`.
        world_size: how many there are; each makes the same number of steps.

    Attributes:
        counts: what became of the samples.
        digest: changes with every token and every span of the corpus.

    Raises:
        DataError: no sample to train on is left.
    """

    def __init__(
        self, corpus: Samples, options: TrainOptions, rank: int = 0, world_size: int = 1
    ) -> None:
        self._corpus, self._options = corpus, options
        self._rank, self._world_size = rank, world_size
        self._lengths = np.minimum(np.asarray(corpus.lengths, np.int64), options.max_length)
        labelled, self.digest = _survey(corpus, options.max_length)
        held = is_held_out(len(corpus), options.held_out)
        self._train = np.flatnonzero(~held & (labelled > 0))
        self._held = np.flatnonzero(held & (labelled > 0))
        if not len(self._train):
            raise DataError(
                f"none of the {len(corpus)} samples has an answer to learn from within max_length="
                f"{options.max_length} tokens; raise max_length, or give another corpus"
            )
        used = labelled > 0
        self.counts = SampleCounts(
            trained=len(self._train),
            held_out=len(self._held),
            unlabelled=int((~used).sum()),
            truncated=int((used & (np.asarray(corpus.lengths) > options.max_length)).sum()),
            tokens=int(self._lengths[self._train].sum()),
            labelled=int(labelled[self._train].sum()),
        )
        self._shards = _shard_of(corpus)
        self._planned: tuple[int, list[Indices]] | None = None

    def steps_in_epoch(self, epoch: int) -> int:
        """Optimizer steps of an epoch: equal on all processes, 1 or more."""
        return max(1, len(self._plan(epoch)) // self._batches_a_step)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Batch]]:
        """The micro-batches of each step from step `start` on.

        Those that do not fill a last step are left out of the epoch, others each time; a corpus of less
        than one step is repeated within it.
        """
        plan, width = self._plan(epoch), self._batches_a_step
        for step in range(start, self.steps_in_epoch(epoch)):
            first = step * width + self._rank
            mine = range(first, (step + 1) * width, self._world_size)
            yield [self.read(plan[i % len(plan)]) for i in mine]

    def held_out(self) -> Iterator[Batch]:
        """This process's share of the held-out batches, in the same order each time."""
        plan = self._order(self._held, HELD_OUT_ORDER)
        for indices in plan[self._rank :: self._world_size]:
            yield self.read(indices)

    def read(self, indices: Indices) -> Batch:
        """These samples as a batch."""
        return collate([self._corpus[int(i)] for i in indices], self._options.max_length, indices)

    @property
    def _batches_a_step(self) -> int:
        return self._world_size * self._options.accumulate

    def _plan(self, epoch: int) -> list[Indices]:
        if self._planned is None or self._planned[0] != epoch:
            self._planned = epoch, self._order(self._train, (self._options.seed, epoch))
        return self._planned[1]

    def _order(self, samples: Indices, seeds: tuple[int, int]) -> list[Indices]:
        """The batches of these samples; a few shards, drawn anew for each seed, are read at a time."""
        random = np.random.default_rng(seeds)
        groups = shard_groups(samples, self._shards[samples], random)
        size = self._options.tokens_per_batch
        return [b for group in groups for b in plan_batches(group, self._lengths, size, random)]


def collate(samples: Sequence[AnySample], max_length: int, indices: Indices | None = None) -> Batch:
    """Rows of samples cut to `max_length`, padded to the longest; marks are cut with the tokens.

    `indices`, int64 [B], say which samples of the corpus they are.
    """
    lengths = [min(len(sample.token_ids), max_length) for sample in samples]
    token_ids = np.zeros((len(samples), max(lengths)), np.int64)
    labelled = np.zeros(token_ids.shape, np.bool_)
    for row, (sample, length) in enumerate(zip(samples, lengths, strict=True)):
        token_ids[row, :length] = sample.token_ids[:length]
        for first, stop in sample.spans:
            labelled[row, first : min(stop, length)] = True
    labelled[:, 0] = False  # nothing stands before it that could predict it
    numbers = np.arange(len(samples)) if indices is None else np.asarray(indices, np.int64)
    marks, places = torch.from_numpy(labelled), torch.from_numpy(numbers)
    return Batch(torch.from_numpy(token_ids), torch.tensor(lengths), marks, places)


def plan_batches(
    samples: Indices, lengths: Indices, tokens: int, random: np.random.Generator
) -> list[Indices]:
    """Which samples stand in which batch, and the batches in the order in which they are read.

    Args:
        samples: int64 [n], indices of samples.
        lengths: int64 [S], of all samples of the corpus.
        tokens: of a batch at most, padding included; a longer sample stands alone.
        random: what shuffles them.
    """
    shuffled = random.permutation(samples)
    batches: list[Indices] = []
    for start in range(0, len(shuffled), POOL):
        pool = shuffled[start : start + POOL]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches.extend(_cut(pool, lengths[pool], tokens))
    return [batches[i] for i in random.permutation(len(batches))]


def shard_groups(
    samples: Indices, shards: Indices, random: np.random.Generator
) -> Iterator[Indices]:
    """The samples of `OPEN_SHARDS` shards at a time, the shards in random order.

    Args:
        samples: int64 [n], increasing.
        shards: int64 [n], the shard of each.
        random: what shuffles them.
    """
    present = random.permutation(np.unique(shards))
    for first in range(0, len(present), OPEN_SHARDS):
        yield samples[np.isin(shards, present[first : first + OPEN_SHARDS])]


def _shard_of(corpus: Samples) -> Indices:
    """int64 [S], the shard of each sample."""
    sizes = [shard["samples"] for shard in corpus.manifest["shards"]]
    return np.repeat(np.arange(len(sizes)), sizes)


def _cut(pool: Indices, lengths: Indices, tokens: int) -> Iterator[Indices]:
    """Pieces of a pool in order of length, each as many samples as fit once padded."""
    first = 0
    for place, length in enumerate(lengths.tolist()):
        if place > first and (place - first + 1) * length > tokens:
            yield pool[first:place]
            first = place
    if first < len(pool):
        yield pool[first:]


def is_held_out(num_samples: int, share: float) -> NDArray[np.bool_]:
    """bool [S]: the samples that are never trained on, chosen by a hash of their index alone.

    So a corpus that grows keeps its split, and runs with other seeds have the same one. Where a share is
    asked for and no sample falls into it, the one of two or more that is nearest to it does.
    """
    hashes = _mix(np.arange(num_samples, dtype=np.uint64)).astype(np.float64) / 2.0**64
    held = hashes < share
    if share > 0 and num_samples > 1 and not held.any():
        held[np.argmin(hashes)] = True
    return held


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014), uint64 -> uint64."""
    with np.errstate(over="ignore"):
        z = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _survey(corpus: Samples, max_length: int) -> tuple[Indices, str]:
    """One pass over a corpus, however large.

    Returns:
        int64 [S], tokens to be predicted in each sample once it is cut to `max_length`; and a digest of
        every token and span.
    """
    counts, digest = np.zeros(len(corpus), np.int64), hashlib.sha256()
    for index in range(len(corpus)):
        sample = corpus[index]
        length = min(len(sample.token_ids), max_length)
        spans = ((max(first, 1), min(stop, length)) for first, stop in sample.spans)
        counts[index] = sum(max(0, stop - first) for first, stop in spans)
        digest.update(f"{len(sample.token_ids)} {sample.spans}".encode())
        digest.update(np.ascontiguousarray(sample.token_ids).data)
    return counts, digest.hexdigest()[:DIGITS]
