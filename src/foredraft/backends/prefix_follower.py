"""One sequence's way through a prefix cache: the start that it is given, and the blocks that it adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from foredraft.backends.kv_cache import BLOCK_ROWS, KVCache
from foredraft.backends.prefix_cache import Block, PrefixCache


class PrefixFollower:
    """Restores the known start of a text, then adds each block of it as soon as it is whole.

    Args:
        prefixes: of the model.
        cache: of the sequence, with nothing in it.
        taps: whose hidden states the sequence shows.
    """

    def __init__(self, prefixes: PrefixCache, cache: KVCache, taps: Sequence[int] = ()) -> None:
        self.restored = 0
        """Tokens whose rows were not computed."""
        self._prefixes, self._cache, self._taps = prefixes, cache, tuple(taps)
        self._last: Block | None = prefixes.root  # the last whole block; None: no more is added
        self._token_ids: list[int] = []  # committed behind it
        self._features: list[Tensor] = []  # of those tokens, [n, F] each

    def restore(self, token_ids: Sequence[int]) -> Tensor | None:
        """Commit the longest known start of a text to the empty cache.

        Returns:
            The features [restored, F] of its tokens, taps behind one another; None where nothing is
            known, or nothing tapped.
        """
        blocks = self._prefixes.find(token_ids, self._taps)
        if not blocks:
            return None
        self._cache.restore([block.rows for block in blocks])
        self.restored, self._last = len(blocks) * BLOCK_ROWS, blocks[-1]
        if not self._taps:
            return None
        return torch.cat([torch.cat([b.states[t] for b in blocks]) for t in self._taps], -1)

    def commit(self, token_ids: Sequence[int], features: Tensor | None) -> None:
        """Tokens were committed to the cache; `features` [n, F] are theirs, of a tapped sequence."""
        if self._last is None:
            return
        self._token_ids += token_ids
        if features is not None:
            self._features.append(features)
        if len(self._token_ids) >= BLOCK_ROWS:
            self._add_blocks(len(self._token_ids) // BLOCK_ROWS * BLOCK_ROWS)

    def _add_blocks(self, count: int) -> None:
        """Those of the first `count` tokens."""
        first = self._cache.length - len(self._token_ids)
        features = torch.cat(self._features) if self._features else None
        last = self._last
        for start in range(0, count, BLOCK_ROWS):
            if last is None:
                break
            rows = slice(start, start + BLOCK_ROWS)
            states = {} if features is None else self._by_tap(features[rows])
            last = self._prefixes.extend(
                last,
                tuple(self._token_ids[rows]),
                partial(self._cache.read, first + start),
                states,
            )
        if last is not None:
            self._prefixes.use(last)
        del self._token_ids[:count]
        self._features = [] if features is None else [features[count:].clone()]
        self._last = last

    def _by_tap(self, features: Tensor) -> Mapping[int, Tensor]:
        parts = features.chunk(len(self._taps), -1)
        return dict(zip(self._taps, parts, strict=True))
