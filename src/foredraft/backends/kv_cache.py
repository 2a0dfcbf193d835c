"""A preallocated key-value cache that works as a transaction.

A forward pass writes *pending* rows in place, inside `KVCache.writing`; `KVCache.commit` keeps the
rows of one path and drops the others. What a model's layers need is learned once (`KVLayout.of`).
Layers that need the same share one *arena*, so a commit moves rows once per arena, not per layer:

```
| slid out | held: committed, still visible | pending | being written | free |
0                                           base                             capacity
```

Windowed layers hold at most W - 1 committed rows. They move right with every commit, and back to
the front only when the end of the buffer is reached. Rows of the last unfinished block stay there until
it is whole and can be read (`KVCache.read`), even where no token sees them any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer

from foredraft.backends.kv_layout import KVLayout, LayerLayout
from foredraft.config import MAX_TREE_NODES
from foredraft.errors import CacheError

GROWTH_ROWS = 256
"""Buffers are whole multiples of this, and grow by half: few reallocations, each of them large."""
ROWS = 3
"""The axis of cached tokens in an arena."""
BLOCK_ROWS = 16
"""Tokens of a block, the unit in which rows are read out and put back."""

KVRows: TypeAlias = tuple[tuple[Tensor, Tensor], ...]
"""Of each arena, keys and values [layers, 1, H, BLOCK_ROWS, D] of one block."""


@dataclass(slots=True)
class _Extent:
    """Tokens in the cache; one object that the cache and all of its arenas share."""

    length: int = 0
    pending: int = 0


class _Arena:
    """The buffers of all layers with one layout: keys and values [layers, 1, H, capacity, D]."""

    def __init__(
        self, layout: LayerLayout, layer_ids: list[int], extent: _Extent, capacity: int
    ) -> None:
        self.layout = layout
        self.layer_ids = layer_ids
        self.extent = extent
        self.base = 0
        self.incoming = 0
        self.written: list[int] = []
        self._allocate(self._rows_for(capacity))

    @property
    def held(self) -> int:
        return self.layout.held(self.extent.length)

    @property
    def behind(self) -> int:
        """Committed rows that may not be lost: those held, and those of an unfinished block."""
        return max(self.held, self.extent.length % BLOCK_ROWS)

    @property
    def capacity(self) -> int:
        return int(self.keys.shape[ROWS])

    def read(self, first: int, stop: int) -> tuple[Tensor, Tensor]:
        """Copies of the keys and values of committed tokens."""
        shift = self.base - self.extent.length  # every row of the buffer before `base` is a token's
        assert first + shift >= 0, "these rows have been overwritten"
        rows = slice(first + shift, stop + shift)
        return self.keys[..., rows, :].clone(), self.values[..., rows, :].clone()

    def restore(self, blocks: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Put the rows at the end of a text of these blocks into an empty buffer, as far as they are held."""
        length = len(blocks) * BLOCK_ROWS
        held = self.layout.held(length)
        for number in range((length - held) // BLOCK_ROWS, len(blocks)):
            stop = (number + 1) * BLOCK_ROWS - (length - held)
            count = min(stop, BLOCK_ROWS)
            for buffer, rows in zip((self.keys, self.values), blocks[number], strict=True):
                buffer[..., stop - count : stop, :] = rows[..., BLOCK_ROWS - count :, :]
        self.base = held

    def begin(self, n: int) -> None:
        """Make room for n rows behind the pending ones, and cut the views that the layers use."""
        self._make_room(n)
        first = self.base + self.extent.pending
        self.incoming, self.written = n, [0] * len(self.layer_ids)
        new = slice(first, first + n)
        seen = slice(self.base - self.held, first + n)
        self.new_keys, self.new_values = self.keys[..., new, :], self.values[..., new, :]
        self.seen_keys = self.keys[..., seen, :].unbind()
        self.seen_values = self.values[..., seen, :].unbind()

    def check(self) -> None:
        """Raise a `CacheError` unless every layer was written the rows of this pass once."""
        if self.written == [self.incoming] * len(self.written):
            return
        slot = next(i for i, rows in enumerate(self.written) if rows != self.incoming)
        raise wrong_rows(self.layer_ids[slot], self.written[slot], self.incoming)

    def commit(self, path: Sequence[int], in_place: int) -> None:
        """Keep the pending rows `path`, of which the first `in_place` stand where they belong."""
        stop = self.base + len(path)
        if in_place < len(path):
            rows = torch.tensor(path[in_place:], device=self.layout.device) + self.base
            for buffer in (self.keys, self.values):
                buffer[..., self.base + in_place : stop, :] = buffer.index_select(ROWS, rows)
        self.base = stop

    def reserve(self, capacity: int) -> None:
        """Grow to hold `capacity` tokens and a draft."""
        if self._rows_for(capacity) > self.capacity:
            self._move_to_front(self._rows_for(capacity))

    def _rows_for(self, capacity: int) -> int:
        """Rows for that many tokens and a pending draft; windows get as many more to slide over."""
        if self.layout.window is not None:
            capacity = min(capacity, self.layout.window - 1 + MAX_TREE_NODES)
        return _rounded(capacity + MAX_TREE_NODES)

    def _make_room(self, n: int) -> None:
        pending = self.extent.pending
        if self.base + pending + n <= self.capacity:
            return
        needed = self.behind + pending + n
        fits = needed <= self.capacity
        larger = max(needed, self.capacity + self.capacity // 2)
        self._move_to_front(self.capacity if fits else _rounded(larger))

    def _move_to_front(self, capacity: int) -> None:
        kept, pending = self.behind, self.extent.pending
        live = slice(self.base - kept, self.base + pending)
        # Cloned, because the rows overlap their destination when the buffer stays.
        keys, values = (buffer[..., live, :].clone() for buffer in (self.keys, self.values))
        if capacity != self.capacity:
            self._allocate(capacity)
        self.keys[..., : kept + pending, :] = keys
        self.values[..., : kept + pending, :] = values
        self.base = kept

    def _allocate(self, rows: int) -> None:
        # Tensors made in inference mode could not be written outside it.
        layout = self.layout
        shape = (len(self.layer_ids), 1, layout.heads, rows)
        with torch.inference_mode(False):
            place = {"dtype": layout.dtype, "device": layout.device}
            keys = torch.empty(*shape, layout.key_dim, **place)  # type: ignore[call-overload]
            values = torch.empty(*shape, layout.value_dim, **place)  # type: ignore[call-overload]
        self.keys, self.values = keys, values  # both or, when memory runs out between them, neither


class _ArenaLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's slot in an arena, in the form that models expect of a cache layer."""

    def __init__(self, arena: _Arena, slot: int) -> None:
        super().__init__()
        self.is_sliding = arena.layout.window is not None
        self._arena, self._slot = arena, slot

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the arena is allocated before the pass."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Write this pass's rows, [1, H, N, D]; returns views of all rows the pass may see."""
        arena, slot = self._arena, self._slot
        rows = key_states.shape[-2]
        if rows != arena.incoming:
            raise wrong_rows(arena.layer_ids[slot], rows, arena.incoming)
        arena.new_keys[slot].copy_(key_states)
        arena.new_values[slot].copy_(value_states)
        arena.written[slot] += rows
        return arena.seen_keys[slot], arena.seen_values[slot]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Rows that `update` returns, and the position of the first of them."""
        extent, held = self._arena.extent, self._arena.held
        return held + extent.pending + query_length, extent.length - held

    def get_seq_length(self) -> int:
        """Tokens before this pass, pending ones included."""
        return self._arena.extent.length + self._arena.extent.pending

    def get_max_length(self) -> int:
        """-1: the buffers grow."""
        return -1


class KVCache(Cache):  # type: ignore[misc]
    """The cache of one sequence, made for `capacity` tokens and able to outgrow them."""

    def __init__(self, layout: KVLayout, capacity: int) -> None:
        self._extent = _Extent()
        members: dict[LayerLayout, list[int]] = {}
        for index, layer in enumerate(layout.layers):
            if layer is not None:
                members.setdefault(layer, []).append(index)
        arenas = {key: _Arena(key, ids, self._extent, capacity) for key, ids in members.items()}
        self._arenas = tuple(arenas.values())
        layers = [
            _ArenaLayer(arenas[layer], members[layer].index(index)) if layer else DummyLayer()
            for index, layer in enumerate(layout.layers)
        ]
        super().__init__(layers=layers)

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._extent.length

    @property
    def capacity(self) -> int:
        """Rows of its largest buffer."""
        return max(arena.capacity for arena in self._arenas)

    @property
    def pending(self) -> int:
        """Tokens written since the last commit."""
        return self._extent.pending

    @contextmanager
    def writing(self, n: int) -> Iterator[None]:
        """Run one forward pass over n tokens inside; its rows become pending when it ends well.

        Raises:
            CacheError: a layer was not written exactly n rows. Nothing more is pending then.
        """
        for arena in self._arenas:
            arena.begin(n)
        yield
        for arena in self._arenas:
            arena.check()
        self._extent.pending += n

    def commit(self, path: Sequence[int]) -> None:
        """Keep these pending rows, drop the rest; an empty path is a rollback.

        Args:
            path: [A] increasing indices into the pending rows.

        Raises:
            CacheError: the path is not increasing or leaves the pending rows.
        """
        bounds = [-1, *path, self.pending]
        if any(a >= b for a, b in pairwise(bounds)):
            raise CacheError(
                f"cannot commit rows {list(path)}: give increasing indices below {self.pending}, "
                "the number of pending rows"
            )
        in_place = next((i for i, row in enumerate(path) if row != i), len(path))
        for arena in self._arenas:
            arena.commit(path, in_place)
        self._extent.length += len(path)
        self._extent.pending = 0

    def read(self, first: int) -> KVRows:
        """Copies of the block whose first committed token this is.

        It must end in the last commit, or later than the last multiple of `BLOCK_ROWS` before that.
        """
        return tuple(arena.read(first, first + BLOCK_ROWS) for arena in self._arenas)

    def restore(self, blocks: Sequence[KVRows]) -> None:
        """Commit the text of these blocks, read from caches of the same layout. Nothing may be cached yet."""
        assert self.length + self.pending == 0, "blocks are the start of a text"
        self.reserve(len(blocks) * BLOCK_ROWS)
        for arena, rows in zip(self._arenas, zip(*blocks, strict=True), strict=True):
            arena.restore(rows)
        self._extent.length = len(blocks) * BLOCK_ROWS

    def reset(self) -> None:
        """Forget every token; the buffers stay for the next sequence."""
        self._extent.length = self._extent.pending = 0
        for arena in self._arenas:
            arena.base = 0

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` tokens at once."""
        for arena in self._arenas:
            arena.reserve(capacity)


def wrong_rows(layer: int, written: int, expected: int) -> CacheError:
    """The error for a layer that did not store what a pass computed."""
    return CacheError(
        f"layer {layer} wrote {written} rows into its KV cache where {expected} were expected; "
        "the model does not use the cache it is given, so its drafts cannot be rolled back"
    )


def _rounded(rows: int) -> int:
    return -(-rows // GROWTH_ROWS) * GROWTH_ROWS
