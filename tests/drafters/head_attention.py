"""Attention for heads that tests run by hand."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class CausalAttention:
    """Plain attention over the rows of all calls so far, causal within a call.

    Args:
        window: how many rows of text a row sees. The first call is the text, and the later ones are a
            draft, whose rows see the last rows of text and one another.
    """

    def __init__(self, window: int = 10**9) -> None:
        self._window = window
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._num_text = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._keys.append(k)
        self._values.append(v)
        keys, values = torch.cat(self._keys, 2), torch.cat(self._values, 2)
        first = keys.shape[2] - k.shape[2]
        if not first:
            self._num_text = k.shape[2]
        rows = torch.arange(first, keys.shape[2])[:, None]
        columns = torch.arange(keys.shape[2])[None]
        begin = rows + 1 if not first else self._num_text
        seen = (columns <= rows) & (columns >= begin - self._window)
        return scaled_dot_product_attention(q, keys, values, attn_mask=seen, enable_gqa=True)
