"""Linear layers that read the same input, and how they share one product: q, k and v; gate and up.

The first of them to be called computes all; the others take what is theirs, if they are called with the very
same tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from foredraft.backends.own_pass import keep, kept

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of siblings, in the order of their calls."""


class _Product(NamedTuple):
    """What a thread computed last."""

    owner: object
    hidden: Tensor
    parts: tuple[Tensor, ...]


def hand_out(owner: object, hidden: Tensor, parts: tuple[Tensor, ...]) -> Tensor:
    """Keep the parts of a product for the layers that follow, and give the first.

    Args:
        owner: what the layers share.
        hidden: their input.
        parts: the output of each, in the order of their calls.
    """
    keep(_Product(owner, hidden, parts))
    return parts[0]


def take(owner: object, hidden: Tensor, place: int, count: int) -> Tensor | None:
    """The part of a later layer; None where it has to compute it itself.

    Args:
        owner, hidden: as in `hand_out`.
        place: which of the `count` layers, from 1.
    """
    last = kept()
    if not isinstance(last, _Product) or last.owner is not owner:
        return None
    if place == count - 1:
        keep(None)
    return last.parts[place] if last.hidden is hidden else None


def siblings(model: nn.Module) -> Iterator[list[nn.Linear]]:
    """All groups of siblings among a model's layers of the usual class."""
    for module in model.modules():
        for names in GROUPS:
            found = [getattr(module, name, None) for name in names]
            if all(type(layer) is nn.Linear for layer in found):
                yield [layer for layer in found if isinstance(layer, nn.Linear)]


def joinable(layers: Sequence[nn.Linear]) -> bool:
    """Plain layers of one input, in one place, that nobody else has wrapped or shares."""
    first = layers[0]
    if len({id(layer.weight) for layer in layers}) < len(layers):
        return False
    return all(
        is_plain(layer)
        and layer.in_features == first.in_features
        and layer.weight.device == first.weight.device
        and layer.weight.dtype == first.weight.dtype
        and (layer.bias is None) == (first.bias is None)
        for layer in layers
    )


def is_plain(layer: nn.Linear) -> bool:
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
