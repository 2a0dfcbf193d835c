"""What each layer of a model caches, learned once from a forward pass and never guessed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from foredraft.errors import ModelError


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """What one layer stores for a token, and for how long."""

    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device
    window: int | None = None
    """W: a token sees W positions, its own included; None is full attention."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's keys and values."""
        return self.heads * (self.key_dim + self.value_dim) * self.dtype.itemsize

    def held(self, length: int) -> int:
        """Rows that tokens after the first `length` can still attend to."""
        return length if self.window is None else min(length, self.window - 1)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Every layer's layout; None for a layer that stores nothing (it may read another's rows)."""

    layers: tuple[LayerLayout | None, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return sum(layer.row_bytes for layer in self.layers if layer is not None)

    @classmethod
    def of(cls, cache: Cache) -> KVLayout:
        """Read the layout from a `DynamicCache` that a forward pass has filled.

        Raises:
            ModelError: a layer keeps more than keys and values, or no layer keeps any.
        """
        layers = tuple(_layout_of(index, layer) for index, layer in enumerate(cache.layers))
        if not any(layers):
            raise ModelError("the model keeps no key-value cache; use a decoder that does")
        return cls(layers)


def _layout_of(index: int, layer: Any) -> LayerLayout | None:
    refuse_state(index, layer)
    keys, values = layer.keys, layer.values
    if keys is None:
        return None
    if keys.ndim != 4 or values.shape[:3] != keys.shape[:3]:
        raise ModelError(
            f"layer {index} caches keys {list(keys.shape)} and values {list(values.shape)}; "
            "only [batch, heads, tokens, features] can be committed row by row"
        )
    window = getattr(layer, "sliding_window", None)
    heads, key_dim = keys.shape[1], keys.shape[3]
    return LayerLayout(heads, key_dim, values.shape[3], keys.dtype, keys.device, window)


def refuse_state(index: int, layer: object) -> None:
    """Raise a `ModelError` for a cache layer whose state cannot be rolled back row by row."""
    if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer):
        raise ModelError(
            f"layer {index} keeps its past in a {type(layer).__name__} (recurrent, convolutional "
            "or compressed), which cannot forget rejected tokens; "
            "use a model with plain attention layers"
        )
