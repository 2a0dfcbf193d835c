"""Hidden states read off while a model writes: training then begins without a pass over the corpus.

Whatever the model writes, it has computed the states of. They stay in memory until their shard is whole: as
many bytes a token as `StateCache` keeps on disk, and for conversations that are still written a rectangle of
the longest of those that began together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foredraft.backends.hf_taps import Taps
from foredraft.backends.identity import target_identity
from foredraft.train.corpus import Corpus, Sample
from foredraft.train.state_cache import STATES, ShardTokens, StateCache, is_kept

BLOCK = 128
"""Positions by which buffers grow."""
States = Mapping[int, Tensor]
"""Tap -> hidden states of one sample, [T, h]."""


class StateRecorder:
    """Reads the states that drafters learn from.

    Args:
        model: a `transformers` causal language model.
        taps: places where states are read, as in `Taps`; the last one is read as well.

    Raises:
        ModelError: a tap that the model does not have or that cannot be read.
    """

    def __init__(self, model: Any, taps: Sequence[int]) -> None:
        self._model = model
        last = int(model.config.get_text_config(decoder=True).num_hidden_layers)
        self._read = tuple(sorted({*taps, last}))
        self.hooks = Taps(model)
        self.hooks.require(self._read)

    def keep(self, folder: Path, samples: Sequence[Sample], states: Sequence[States]) -> None:
        """Put the states of a shard where training looks for them.

        Args:
            folder: of the corpus; the shard itself may be written later: states go by its tokens.
            samples: the shard, as it is stored.
            states: of each sample.

        Raises:
            ConfigError: the disk has no room for them.
        """
        if not states:
            return
        width = next(iter(states[0].values())).shape[1]
        cache = self._cache(folder, [ShardTokens.of(samples)], width)
        cache.reserve(self._read)
        for tap in self._read:
            for sample, of_taps in enumerate(states):
                rows = of_taps[tap]
                cache.write(tap, torch.tensor([sample]), torch.tensor([len(rows)]), rows[None])

    def shards_without(self, corpus: Corpus) -> int:
        """How many shards of a corpus lack states of these places: training will compute them."""
        shards = [shard for shard in ShardTokens.all_of(corpus) if len(shard.lengths)]
        place, key = corpus.folder / STATES, target_identity(self._model)
        return sum(not is_kept(place, key, shard, self._read) for shard in shards)

    def _cache(self, folder: Path, shards: Sequence[ShardTokens], width: int) -> StateCache:
        key = target_identity(self._model)
        return StateCache(folder / STATES, key, shards, width, self._model.dtype)


class CohortStates:
    """The states of sequences that are decoded together: for each tap a buffer [sequences, capacity, h]."""

    def __init__(self, num_sequences: int) -> None:
        self._count = num_sequences
        self._buffers: dict[int, Tensor] = {}

    def add(self, sequences: Sequence[int], first: int, states: Mapping[int, Tensor]) -> None:
        """Keep the states [R, N, h] of R sequences at positions from `first` on."""
        index = torch.tensor(sequences)
        for tap, new in states.items():
            stop = first + new.shape[1]
            self._with_room(tap, stop, new)[index, first:stop] = new.cpu()

    def take(self, sequence: int, length: int) -> States:
        """A copy of the first `length` rows of a sequence."""
        return {tap: buffer[sequence, :length].clone() for tap, buffer in self._buffers.items()}

    def _with_room(self, tap: int, stop: int, like: Tensor) -> Tensor:
        """The buffer of a tap, with `stop` positions at least."""
        old = self._buffers.get(tap)
        if old is not None and old.shape[1] >= stop:
            return old
        capacity = -(-stop // BLOCK) * BLOCK
        buffer = torch.zeros(self._count, capacity, like.shape[-1], dtype=like.dtype)
        if old is not None:
            buffer[:, : old.shape[1]] = old
        self._buffers[tap] = buffer
        return buffer
