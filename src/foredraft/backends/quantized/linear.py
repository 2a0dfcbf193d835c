"""Linear layers whose weights are in fewer bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from foredraft.backends.quantized.block import Block
from foredraft.backends.quantized.int8 import Int8Block
from foredraft.backends.siblings import hand_out, take


class QuantizedLinear(nn.Module):
    """In the place of an `nn.Linear`: the same but for the rounding of the weights.

    Args:
        block: the weights of all layers that read this input.
        sizes: outputs of each of these layers, in the order of their calls.
        place: which of them this one is.
        layer: whose place it takes; its bias stays, as the parameter that it is.
    """

    bias: nn.Parameter | None
    block: Block

    def __init__(self, block: Block, sizes: Sequence[int], place: int, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.block, self._sizes, self._place = block, list(sizes), place
        self.register_parameter("bias", layer.bias)
        self.dtype = layer.weight.dtype

    @property
    def weight(self) -> Tensor:
        """[out, in]: what the weights stand for, made anew at every call, for whoever wants rows of them."""
        start = sum(self._sizes[: self._place])
        return self.block.dequantized()[start : start + self.out_features].to(self.dtype)

    def weight_rows(self, rows: Tensor | slice) -> Tensor:
        """A copy of some rows of the weights: int64 [N], or a slice -> [N, in]."""
        return self.weight[rows].clone()

    def forward(self, input: Tensor) -> Tensor:
        """[.., in] -> [.., out]"""
        product = self._product(input)
        return product if self.bias is None else product + self.bias

    def _product(self, hidden: Tensor) -> Tensor:
        count = len(self._sizes)
        if self._place > 0:
            part = take(self.block, hidden, self._place, count)
            return self._all(hidden)[self._place] if part is None else part
        parts = self._all(hidden)
        return parts[0] if count == 1 else hand_out(self.block, hidden, parts)

    def _all(self, hidden: Tensor) -> tuple[Tensor, ...]:
        rows = hidden.reshape(-1, self.in_features)
        product = self.block.product(rows).view(*hidden.shape[:-1], -1)
        parts: tuple[Tensor, ...] = torch.split(product, self._sizes, -1)
        return parts


class QuantizedHead(QuantizedLinear):
    """A language-model head in int8, rows of which drafters read at any time.

    Args:
        layer: the head whose place it takes.
        tied: the embeddings if the head's weight is theirs: they stay as they are, and give the rows. Else
            the int8 rows are kept in plain form, beside what the kernel made of them.
    """

    block: Int8Block
    _plain: Tensor | None

    def __init__(self, layer: nn.Linear, tied: nn.Embedding | None) -> None:
        block = Int8Block(layer.weight)
        super().__init__(block, (layer.out_features,), 0, layer)
        self._tied = (tied,)  # in a tuple: it is not a part of this module
        self.register_buffer("_plain", block.steps if tied is None else None, persistent=False)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":  # the library ties weights anew: this copy stays as it is
            return
        super().__setattr__(name, value)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.block.scale.device

    @property
    def weight(self) -> Tensor:
        """[out, in], as in `QuantizedLinear`; the embeddings' own where the head is tied to them."""
        tied = self._tied[0]
        return self.weight_rows(slice(None)) if tied is None else tied.weight.detach()

    def weight_rows(self, rows: Tensor | slice) -> Tensor:
        """As in `QuantizedLinear`."""
        if self._plain is None:
            tied = self._tied[0]
            assert tied is not None
            return tied.weight.detach()[rows].clone()
        scale = self.block.scale[rows]
        return (self._plain[rows] * scale[:, None]).to(self.dtype)


def rows_of(head: nn.Module, rows: Tensor | slice) -> Tensor:
    """A copy of some rows of a language-model head's weights, quantised or not: [N, in].

    Args:
        head: a layer with a weight [out, in].
        rows: int64 [N], where the head is; or a slice.
    """
    if isinstance(head, QuantizedLinear):
        return head.weight_rows(rows)
    weight = head.weight
    assert isinstance(weight, Tensor)
    return weight.detach()[rows].clone()
