"""Linear layers that read the same input as one product: q, k and v; gate and up.

Small products cost more than their weights' bytes. The weights of such siblings are laid behind one another
in one block, of which each layer's own weight is a part: no memory more, the same parameters by the same
names. The first of them to be called computes all; the others hand out what is theirs, if they are called
with the very same tensor. A model that was moved, wrapped or given other weights since computes each layer on
its own, as before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from foredraft.backends.own_pass import in_own_pass

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of siblings, in the order of their calls."""


def join_linears(model: nn.Module) -> int:
    """Join all such siblings of a model, for passes of ours; returns how many groups there were."""
    groups = [group for group in _siblings(model) if _joinable(group)]
    for group in groups:
        _Joined(group)
    return len(groups)


class _Joined:
    """The weights of siblings in one block."""

    @torch.inference_mode(False)  # the block outlives the caller's mode
    @torch.no_grad()
    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self._layers = tuple(layers)
        self._sizes = [layer.out_features for layer in layers]
        self._weight = torch.cat([layer.weight.detach() for layer in layers])
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self._bias = torch.cat(biases) if biases else None
        for layer, weight in zip(layers, torch.split(self._weight, self._sizes), strict=True):
            layer.weight.data = weight
        if self._bias is not None:
            for layer, bias in zip(layers, torch.split(self._bias, self._sizes), strict=True):
                layer.bias.data = bias
        for index, layer in enumerate(layers):
            layer.forward = _Part(self, index, layer)  # type: ignore[method-assign, assignment]

    def part(self, index: int, hidden: Tensor) -> Tensor | None:
        """The output of one of the layers; None where it has to compute it itself."""
        if index == 0:
            if not self._is_whole():
                return None
            product = linear(hidden, self._weight, self._bias)
            parts: tuple[Tensor, ...] = torch.split(product, self._sizes, -1)
            _last.product = _Product(self, hidden, parts)
            return parts[0]
        last: _Product | None = getattr(_last, "product", None)
        if last is None or last.layers is not self or last.hidden is not hidden:
            return None
        if index == len(self._layers) - 1:
            _last.product = None
        return last.parts[index]

    def _is_whole(self) -> bool:
        """Whether every layer's weight is still its part of the block."""
        if not _lie_in(self._weight, [layer.weight for layer in self._layers]):
            return False
        return self._bias is None or _lie_in(self._bias, [layer.bias for layer in self._layers])


class _Product(NamedTuple):
    """What a thread computed last."""

    layers: _Joined
    hidden: Tensor
    parts: tuple[Tensor, ...]


_last = threading.local()


class _Part:
    """The `forward` of a joined layer."""

    def __init__(self, joined: _Joined, index: int, layer: nn.Linear) -> None:
        self._joined, self._index, self._layer = joined, index, layer

    def __call__(self, hidden: Tensor) -> Tensor:
        """[.., in] -> [.., out]"""
        part = self._joined.part(self._index, hidden) if in_own_pass() else None
        return linear(hidden, self._layer.weight, self._layer.bias) if part is None else part


def _lie_in(block: Tensor, parts: Sequence[Tensor | None]) -> bool:
    """Whether these lie behind one another in the block."""
    place = block.data_ptr()
    for part in parts:
        if part is None or part.data_ptr() != place or part.dtype != block.dtype:
            return False
        place += part.nbytes
    return True


def _siblings(model: nn.Module) -> Iterator[list[nn.Linear]]:
    for module in model.modules():
        for names in GROUPS:
            found = [getattr(module, name, None) for name in names]
            if all(type(layer) is nn.Linear for layer in found):
                yield [layer for layer in found if isinstance(layer, nn.Linear)]


def _joinable(layers: Sequence[nn.Linear]) -> bool:
    """Plain layers of one input, in one place, that nobody else has wrapped or shares."""
    first = layers[0]
    return all(
        layer.in_features == first.in_features
        and layer.weight.device == first.weight.device
        and layer.weight.dtype == first.weight.dtype
        and layer.weight.device.type != "meta"
        and not layer.weight.is_inference()
        and (layer.bias is None) == (first.bias is None)
        and "forward" not in vars(layer)
        and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)
        for layer in layers
    ) and len({id(layer.weight) for layer in layers}) == len(layers)
