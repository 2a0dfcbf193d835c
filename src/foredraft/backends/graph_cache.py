"""The rows of a `KVCache` as a pass of static shape writes and reads them: by an index in a tensor."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from foredraft.backends.kv_cache import KVCache


class StaticRows:
    """What graphs need of a cache whose layers all attend to all of the text."""

    def __init__(self, arena: Any) -> None:
        self._arena = arena

    @classmethod
    def of(cls, cache: KVCache) -> StaticRows | None:
        """None for a cache of several layouts or with windows, or whose layers are not the model's."""
        arenas = cache._arenas
        full = len(arenas) == 1 and arenas[0].layout.window is None
        if not full or len(arenas[0].layer_ids) != len(cache.layers):
            return None
        return cls(arenas[0])

    @property
    def live(self) -> int:
        """Rows that hold something: of the text, and pending ones."""
        return int(self._arena.base + self._arena.extent.pending)

    @property
    def capacity(self) -> int:
        """Rows of the buffers."""
        return int(self._arena.capacity)

    @property
    def place(self) -> int:
        """Where the buffers are; another number once they have moved."""
        return int(self._arena.keys.data_ptr())

    def clear_free(self) -> None:
        """Make free rows finite: what is masked still takes part, with no weight."""
        for buffer in (self._arena.keys, self._arena.values):
            buffer[..., self.live :, :] = 0

    def note_written(self) -> None:
        """Tell the cache, inside `KVCache.writing`, that a replay has written every layer."""
        self._arena.written = [self._arena.incoming] * len(self._arena.layer_ids)

    def cache(self, slots: Tensor, context: int) -> Cache:
        """What the model is given: it writes the rows `slots` and reads the first `context`."""
        layers = [
            _StaticLayer(keys, values, slots, context)
            for keys, values in zip(self._arena.keys, self._arena.values, strict=True)
        ]
        return Cache(layers=layers)


class _StaticLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's rows, in the form that models expect of a cache layer."""

    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor, slots: Tensor, context: int) -> None:
        super().__init__()
        self._buffers, self._slots, self._context = (keys, values), slots, context

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the buffers are the cache's."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Write this pass's rows, [1, H, N, D]; returns the first rows of the buffers."""
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer.index_copy_(2, self._slots, states)
        return tuple(buffer[:, :, : self._context] for buffer in self._buffers)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Rows that `update` returns, and the position of the first of them."""
        return self._context, 0

    def get_seq_length(self) -> int:
        """0: positions and masks are given."""
        return 0

    def get_max_length(self) -> int:
        """Rows that can be read."""
        return self._context
