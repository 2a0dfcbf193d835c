"""Quantising a model in memory: its linear layers are exchanged one by one, and the originals let go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import nn

from foredraft.backends.identity import note_quantization, quantization_of
from foredraft.backends.quantized.block import Block
from foredraft.backends.quantized.int4 import Int4Block, group_of
from foredraft.backends.quantized.int8 import Int8Block
from foredraft.backends.quantized.linear import QuantizedHead, QuantizedLinear
from foredraft.backends.siblings import is_plain, joinable, siblings
from foredraft.config import check_quantization
from foredraft.errors import ModelError


@torch.inference_mode(False)  # the weights outlive the caller's mode
@torch.no_grad()
def quantize_linears(model: Any, kind: str) -> int:
    """Exchange a model's linear layers for ones with weights in fewer bits; gives how many.

    Siblings (q, k, v; gate, up) get one block of weights and one product. Embeddings, norms and biases stay.
    The language-model head is int8 with either kind, and a copy of its own where it is tied to the
    embeddings. With int4, rows that no group divides are int8. Layers of other classes, wrapped ones and
    those that share their weights stay as they are.

    The model can then not be trained, moved to another device, or saved.

    Args:
        model: a model or an EAGLE head that nobody else keeps, where it is to stay.
        kind: `int8` or `int4`.

    Raises:
        ConfigError: an unknown kind.
        ModelError: it has no linear layer that could be quantised, or is quantised already.
    """
    check_quantization(kind)
    name = type(model).__name__
    if quantization_of(model) is not None:
        raise ModelError(f"{name} is quantised already; load it anew to have it in {kind}")
    note_quantization(model, kind)
    count = _exchange_head(model) + _exchange_layers(model, kind)
    if count == 0:
        raise ModelError(
            f"{name} has no linear layers of the usual kind to quantise; load it without quantize={kind!r}"
        )
    model.save_pretrained = _refuse_to_save
    return count


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all weights that a model holds, quantised or not, each counted once."""
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    inside = {id(buffer) for block in blocks for buffer in block.buffers()}
    others = [t for t in (*model.parameters(), *model.buffers()) if id(t) not in inside]
    return sum(t.nbytes for t in others) + sum(block.nbytes for block in blocks)


def _exchange_head(model: Any) -> int:
    find = getattr(model, "get_output_embeddings", None)
    head = find() if find else getattr(model, "lm_head", None)
    if type(head) is not nn.Linear or not is_plain(head):
        return 0
    embed = model.get_input_embeddings() if find else None
    is_tied = isinstance(embed, nn.Embedding) and embed.weight is head.weight
    _put(model, head, QuantizedHead(head, embed if is_tied else None))
    return 1


def _exchange_layers(model: nn.Module, kind: str) -> int:
    count = 0
    for group in _groups(model):
        weights = [layer.weight.detach() for layer in group]
        block = _block(torch.cat(weights) if len(weights) > 1 else weights[0], kind)
        sizes = [layer.out_features for layer in group]
        for place, layer in enumerate(group):
            _put(model, layer, QuantizedLinear(block, sizes, place, layer))
        count += len(group)
        group.clear()  # the last that holds the originals
    return count


def _groups(model: nn.Module) -> Sequence[list[nn.Linear]]:
    """Siblings together, and every other layer that can be exchanged by itself."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1

    def is_free(layer: nn.Module) -> bool:
        return type(layer) is nn.Linear and is_plain(layer) and owners[id(layer.weight)] == 1

    joined = [group for group in siblings(model) if joinable(group) and all(map(is_free, group))]
    taken = {id(layer) for group in joined for layer in group}
    alone = [m for m in model.modules() if isinstance(m, nn.Linear) and is_free(m)]
    return [*joined, *([layer] for layer in alone if id(layer) not in taken)]


def _block(weight: torch.Tensor, kind: str) -> Block:
    if kind == "int4" and group_of(weight.shape[1]) is not None:
        return Int4Block(weight)
    return Int8Block(weight)


def _put(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)


def _refuse_to_save(*args: Any, **options: Any) -> NoReturn:
    raise ModelError(
        "a quantised model cannot be saved: what was written could not be read again; save the original"
    )
