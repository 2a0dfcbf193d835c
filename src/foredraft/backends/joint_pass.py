"""One pass of a model over rows of several sequences, each with a cache, a tree and a length of its own.

The rows stand behind one another as if they were one sequence, [1, N] with N the sum of all, so linear
layers read their weights once and no row is padding. Only attention tells sequences apart:

- `apart`: where the model attends by the library's `sdpa`, which is ours in passes of ours
  (`grouped_attention`), each sequence's rows attend to its own cache, where it lies.
- `whole`: any other attention that takes a 4-D mask gets all caches behind one another, copied for the pass,
  and a mask that is empty between sequences.

Which of them a model can do is tried out with two sequences before it is used (`hf.HFTarget.joins`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer

from foredraft.backends.kv_cache import KVCache
from foredraft.errors import CacheError

Masks = Mapping[str | None, Tensor | None]
"""Of one sequence, by layer type: bool or additive [1, 1, n, L], or None where every row sees all."""


class Joining(enum.Enum):
    """How rows of several sequences attend in one pass."""

    APART = "apart"
    WHOLE = "whole"


class JointPass:
    """What layers are to know of a pass over several sequences.

    Args:
        caches: of each sequence; their passes are begun (`KVCache.writing`).
        rows: of each sequence.
        masks: of each sequence; where they attend as a whole, none is None.
        joining: how they attend.
    """

    def __init__(
        self,
        caches: Sequence[KVCache],
        rows: Sequence[int],
        masks: Sequence[Masks],
        joining: Joining,
    ) -> None:
        self.parts = tuple(slice(a, b) for a, b in pairwise(accumulate(rows, initial=0)))
        self.is_apart = joining is Joining.APART
        self._by_mask: dict[int, tuple[Tensor, list[Tensor | None]]] = {}
        self._by_key: dict[int, tuple[Tensor, list[tuple[Tensor, Tensor]]]] = {}
        self.cache = JointCache(caches, self)
        given = {kind: self._mask([m[kind] for m in masks]) for kind in masks[0]}
        self.mask: Any = given.get(None, given)

    def _mask(self, masks: list[Tensor | None]) -> Tensor:
        """What the model is given for one layer type; where they attend apart, a name for their masks."""
        if not self.is_apart:
            return _behind_one_another([mask for mask in masks if mask is not None])
        name = torch.ones(1, 1, 1, 1, dtype=torch.bool)
        self._by_mask[id(name)] = (name, masks)
        return name

    def show(self, key: Tensor, views: list[tuple[Tensor, Tensor]]) -> None:
        """A layer hands its rows' keys on; `views` is what each sequence's rows see."""
        self._by_key[id(key)] = (key, views)

    def seen(self, key: Tensor, mask: Tensor | None) -> Iterator[tuple[slice, Any, Any, Any]]:
        """(rows, keys, values, mask) of each sequence, in one layer's attention.

        Raises:
            CacheError: the layer attends to something else than it was given.
        """
        views, masks = self._by_key.get(id(key)), self._by_mask.get(id(mask))
        if views is None or masks is None:
            raise CacheError("the model does not attend to the keys and masks that it is given")
        for part, (keys, values), own in zip(self.parts, views[1], masks[1], strict=True):
            yield part, keys, values, own


class JointCache(Cache):  # type: ignore[misc]
    """The caches of several sequences in the form of one, for one pass."""

    def __init__(self, caches: Sequence[KVCache], joint: JointPass) -> None:
        of_layers = zip(*(cache.layers for cache in caches), strict=True)
        super().__init__(layers=[_joined(layers, joint) for layers in of_layers])


class _JointLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of several caches."""

    def __init__(self, layers: Sequence[CacheLayerMixin], joint: JointPass) -> None:
        super().__init__()
        self.is_sliding = layers[0].is_sliding
        self._layers, self._joint = layers, joint

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the caches are allocated before the pass."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Write each sequence's rows, [1, H, n, D], into its own cache; returns what attention is to get."""
        views = [
            layer.update(key_states[:, :, part], value_states[:, :, part])
            for layer, part in zip(self._layers, self._joint.parts, strict=True)
        ]
        if self._joint.is_apart:
            self._joint.show(key_states, views)
            return key_states, value_states
        keys, values = zip(*views, strict=True)
        return torch.cat(keys, -2), torch.cat(values, -2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Rows that `update` returns; they do not lie in order of position."""
        sizes = [
            layer.get_mask_sizes(part.stop - part.start)[0]
            for layer, part in zip(self._layers, self._joint.parts, strict=True)
        ]
        return sum(sizes), 0

    def get_seq_length(self) -> int:
        """Tokens before this pass in the longest of the sequences."""
        return max(int(layer.get_seq_length()) for layer in self._layers)

    def get_max_length(self) -> int:
        """-1: the buffers grow."""
        return -1


def _joined(layers: Sequence[Any], joint: JointPass) -> Any:
    return DummyLayer() if isinstance(layers[0], DummyLayer) else _JointLayer(layers, joint)


def _behind_one_another(masks: Sequence[Tensor]) -> Tensor:
    """One mask [1, 1, N, L] of all rows and columns; rows of one sequence see nothing of another."""
    first = masks[0]
    hidden = False if first.dtype == torch.bool else torch.finfo(first.dtype).min
    rows, columns = (sum(mask.shape[axis] for mask in masks) for axis in (2, 3))
    whole = first.new_full((1, 1, rows, columns), hidden)
    row = column = 0
    for mask in masks:
        height, width = mask.shape[2:]
        whole[:, :, row : row + height, column : column + width] = mask
        row, column = row + height, column + width
    return whole
