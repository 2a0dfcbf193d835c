"""Which group an operator of a pass belongs to.

An operator is known by three things: the module that it ran in, the operator that the module's code called
(the outermost one, such as `aten::contiguous`) and its own name (such as `aten::copy_`). Each falls into one
group.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from torch import nn


class Group(enum.Enum):
    """Groups of a pass's operators, by what they are for."""

    LINEAR = "linear layers"
    ATTENTION = "attention"
    ELEMENTWISE = "norms, activations, sums"
    ROTARY = "rotary embeddings"
    CACHE = "key-value cache writes"
    MASKS = "masks, positions, inputs"
    ENDS = "embedding and head"
    OTHER = "other"


class Place(enum.Enum):
    """Kinds of modules, as far as they tell operators apart."""

    ENDS = "ends"
    LINEAR = "linear"
    ELEMENTWISE = "elementwise"
    ROTARY = "rotary"
    ATTENTION = "attention"
    MODEL = "model"
    """The model, its decoder, or no module at all."""


WHOLE = {
    Place.ENDS: Group.ENDS,
    Place.LINEAR: Group.LINEAR,
    Place.ROTARY: Group.ROTARY,
}
"""Places whose operators are all of one group."""

ATEN = "aten::"
PRODUCTS = frozenset(
    f"{ATEN}{name}"
    for name in (
        *(
            "addmm",
            "addmm_",
            "mm",
            "bmm",
            "baddbmm",
            "matmul",
            "linear",
            "mv",
            "addmv",
            "addmv_",
            "dot",
        ),
        *("einsum", "_grouped_mm", "_scaled_mm", "mkldnn_linear", "_int_mm"),
        *("_weight_int8pack_mm", "_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu"),
        *("_dyn_quant_matmul_4bit", "_mkldnn_linear_pointwise"),
    )
)
WRITES = frozenset(
    f"{ATEN}{name}" for name in ("copy_", "index_copy_", "index_put_", "slice_scatter", "unbind")
)
"""What stores keys and values, called by an attention layer's cache; and the views of ours, cut before."""
SHAPES = frozenset(
    f"{ATEN}{name}"
    for name in (
        *(
            "view",
            "_unsafe_view",
            "reshape",
            "transpose",
            "permute",
            "t",
            "contiguous",
            "clone",
            "expand",
        ),
        *(
            "expand_as",
            "repeat",
            "flatten",
            "unflatten",
            "to",
            "_to_copy",
            "type_as",
            "dropout",
            "pad",
        ),
        *(
            "constant_pad_nd",
            "where",
            "masked_fill",
            "masked_fill_",
            "bitwise_not",
            "repeat_interleave",
            "empty",
            "empty_like",
            "zeros",
        ),
        *("zeros_like", "new_empty", "new_zeros", "resolve_conj", "resolve_neg", "result_type"),
    )
)
"""What an attention layer does around its products."""
TURNS = frozenset(
    f"{ATEN}{name}"
    for name in (
        *(
            "mul",
            "mul_",
            "add",
            "add_",
            "sub",
            "sub_",
            "neg",
            "cat",
            "slice",
            "narrow",
            "unsqueeze",
        ),
        *("squeeze", "chunk", "split", "split_with_sizes", "select", "stack", "cos", "sin", "div"),
        *("addcmul", "addcmul_", "view_as_complex", "view_as_real", "alias"),
    )
)
"""What an attention layer turns queries and keys with."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One call of an operator."""

    place: Place
    outermost: str
    """What the module's code called; the operator itself where that is it."""
    name: str


def group_of(operator: Operator) -> Group:
    """The group of an operator; `OTHER` for what is not known, such as kernels of a compiled region."""
    place, name = operator.place, operator.name
    if place in WHOLE:
        return WHOLE[place]
    if "attention" in operator.outermost or "attention" in name:
        return Group.ATTENTION
    if not (name.startswith(ATEN) and operator.outermost.startswith(ATEN)):
        return _of_compiled(name)
    if place is Place.ATTENTION:
        return _in_attention(operator)
    if name in PRODUCTS:
        return Group.LINEAR
    if place is Place.ELEMENTWISE:
        return Group.ELEMENTWISE
    return Group.CACHE if operator.outermost in WRITES else Group.MASKS


def _of_compiled(name: str) -> Group:
    """Inside regions that are no operators of PyTorch's, products are still told by their names."""
    return Group.LINEAR if name in PRODUCTS else Group.OTHER


def _in_attention(operator: Operator) -> Group:
    """What the code of an attention layer calls itself: its projections are modules of their own."""
    outermost = operator.outermost
    if outermost in WRITES:
        return Group.CACHE
    if outermost in TURNS:
        return Group.ROTARY
    known = outermost in SHAPES or outermost in PRODUCTS or "softmax" in outermost
    return Group.ATTENTION if known else Group.OTHER


def place_of(module: nn.Module, ends: tuple[nn.Module, ...]) -> Place:
    """The kind of a module, by what it is and by what its class is called.

    Args:
        module: any part of a model.
        ends: the model's embeddings and head.
    """
    name = type(module).__name__.lower()
    if any(module is end for end in ends) or isinstance(module, nn.Embedding):
        return Place.ENDS
    if "rotary" in name:
        return Place.ROTARY
    if "norm" in name:
        return Place.ELEMENTWISE
    if any(True for _ in module.children()):
        return _container(name)
    return Place.LINEAR if _has_matrix(module) else Place.ELEMENTWISE


def _container(name: str) -> Place:
    if "attention" in name or "attn" in name:
        return Place.ATTENTION
    inner = ("layer", "mlp", "block", "expert", "moe", "feedforward", "ffn")
    return Place.ELEMENTWISE if any(word in name for word in inner) else Place.MODEL


def _has_matrix(module: nn.Module) -> bool:
    tensors: list[Any] = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return any(tensor.dim() > 1 for tensor in tensors)
