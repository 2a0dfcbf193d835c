"""Linear layers that read the same input as one product: q, k and v; gate and up.

Small products cost more than their weights' bytes. The weights of such siblings are laid behind one another
in one block, of which each layer's own weight is a part: the same parameters by the same names. The first of
them to be called computes all; the others hand out what is theirs, if they are called with the very same
tensor. A model that was moved, wrapped, copied or given other weights since computes each layer on its own,
as before.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from foredraft.backends.own_pass import in_own_pass, keep, kept

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of siblings, in the order of their calls."""


def join_linears(model: nn.Module) -> int:
    """Join all such siblings of a model, for passes of ours; returns how many groups there were.

    Parameters then share their storage, which some ways to save a model take for tied weights: join
    models that nobody else keeps.
    """
    groups = [group for group in _siblings(model) if _joinable(group)]
    for group in groups:
        _join(group)
    return len(groups)


def joint_product(layers: Sequence[nn.Linear], hidden: Tensor) -> Tensor | None:
    """The outputs of all of these siblings, behind one another, for callers that need no parts of it.

    Args:
        layers: siblings, in the order of their calls.
        hidden: [.., in].

    Returns:
        [.., sum of out]; None outside our passes and for layers that are not one product.
    """
    first = layers[0]
    if not isinstance(first, _JoinedLinear) or not in_own_pass():
        return None
    block = first.siblings.block_of(layers)
    return None if block is None else linear(hidden, *block)


class _JoinedLinear(nn.Linear):
    """A layer that has siblings."""

    siblings: _Siblings
    place: int

    def forward(self, input: Tensor) -> Tensor:
        """[.., in] -> [.., out]"""
        part = self.siblings.part(self, input) if in_own_pass() else None
        return linear(input, self.weight, self.bias) if part is None else part


class _Siblings:
    """The weights of siblings in one block. A copy of a model has none: its layers are on their own."""

    def __init__(
        self, layers: Sequence[_JoinedLinear], weight: Tensor, bias: Tensor | None
    ) -> None:
        self._layers = tuple(weakref.ref(layer) for layer in layers)
        self._sizes = [layer.out_features for layer in layers]
        self._block: tuple[Tensor, Tensor | None] | None = (weight, bias)

    def __getstate__(self) -> dict[str, object]:
        return {}

    def __setstate__(self, state: dict[str, object]) -> None:
        self._layers, self._sizes, self._block = (), [], None

    def block_of(self, layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None] | None:
        """Weight and bias of all, if these are the siblings and each still has its part."""
        block = self._whole_block()
        if block is None or len(layers) != len(self._layers):
            return None
        ours = all(ref() is layer for ref, layer in zip(self._layers, layers, strict=True))
        return block if ours else None

    def part(self, layer: _JoinedLinear, hidden: Tensor) -> Tensor | None:
        """The output of one of the layers; None where it has to compute it itself."""
        if layer.place == 0:
            return self._first(layer, hidden)
        last = kept()
        if not isinstance(last, _Product) or last.siblings is not self:
            return None
        mine = last.hidden is hidden and self._layers[layer.place]() is layer
        if layer.place == len(self._sizes) - 1:
            keep(None)
        return last.parts[layer.place] if mine else None

    def _first(self, layer: _JoinedLinear, hidden: Tensor) -> Tensor | None:
        block = self._whole_block()
        if block is None or self._layers[0]() is not layer:
            return None
        product = linear(hidden, *block)
        parts: tuple[Tensor, ...] = torch.split(product, self._sizes, -1)
        keep(_Product(self, hidden, parts))
        return parts[0]

    def _whole_block(self) -> tuple[Tensor, Tensor | None] | None:
        """Weight and bias of all, while every layer still has its part of them; then the memory goes."""
        if self._block is None:
            return None
        layers = [layer() for layer in self._layers]
        weight, bias = self._block
        weights = [None if layer is None else layer.weight for layer in layers]
        biases = [None if layer is None else layer.bias for layer in layers]
        if _lie_in(weight, weights) and (
            _lie_in(bias, biases) if bias is not None else not any(b is not None for b in biases)
        ):
            return self._block
        self._block = None
        return None


class _Product(NamedTuple):
    """What a thread computed last."""

    siblings: _Siblings
    hidden: Tensor
    parts: tuple[Tensor, ...]


def _lie_in(block: Tensor, parts: Sequence[Tensor | None]) -> bool:
    """Whether these lie behind one another in the block."""
    place = block.data_ptr()
    for part in parts:
        if type(part) is not nn.Parameter or part.dtype != block.dtype:
            return False
        if part.data_ptr() != place:
            return False
        place += part.nbytes
    return True


@torch.inference_mode(False)  # the block outlives the caller's mode
@torch.no_grad()
def _join(layers: Sequence[nn.Linear]) -> None:
    sizes = [layer.out_features for layer in layers]
    weight = torch.cat([layer.weight.detach() for layer in layers])
    for layer, part in zip(layers, torch.split(weight, sizes), strict=True):
        layer.weight.data = part
    bias = None
    if layers[0].bias is not None:
        bias = torch.cat([layer.bias.detach() for layer in layers])
        for layer, part in zip(layers, torch.split(bias, sizes), strict=True):
            layer.bias.data = part
    joined: list[_JoinedLinear] = []
    for place, layer in enumerate(layers):
        layer.__class__ = _JoinedLinear
        assert isinstance(layer, _JoinedLinear)
        layer.place = place
        joined.append(layer)
    siblings = _Siblings(joined, weight, bias)
    for one in joined:
        one.siblings = siblings


def _siblings(model: nn.Module) -> Iterator[list[nn.Linear]]:
    for module in model.modules():
        for names in GROUPS:
            found = [getattr(module, name, None) for name in names]
            if all(type(layer) is nn.Linear for layer in found):
                yield [layer for layer in found if isinstance(layer, nn.Linear)]


def _joinable(layers: Sequence[nn.Linear]) -> bool:
    """Plain layers of one input, in one place, that nobody else has wrapped or shares."""
    first = layers[0]
    if len({id(layer.weight) for layer in layers}) < len(layers):
        return False
    return all(
        _is_plain(layer)
        and layer.in_features == first.in_features
        and layer.weight.device == first.weight.device
        and layer.weight.dtype == first.weight.dtype
        and (layer.bias is None) == (first.bias is None)
        for layer in layers
    )


def _is_plain(layer: nn.Linear) -> bool:
    """A layer with numbers of its own, which computes in the usual way."""
    weight = layer.weight
    numbers = type(weight) is nn.Parameter and type(weight.data) is Tensor
    return (
        numbers
        and weight.is_floating_point()
        and weight.device.type != "meta"
        and not weight.is_inference()
        and "forward" not in vars(layer)
        and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)
    )
