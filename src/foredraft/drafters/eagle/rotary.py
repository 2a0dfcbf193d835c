"""Rotary positions of a head: the angles, the table of all of them, and the turn itself."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from foredraft.drafters.eagle.config import HeadConfig

Rotary = tuple[Tensor, Tensor]
"""cos and sin, each [.., T, D]; the first half of sin has its sign turned."""

ROTARY_ROWS = 2048
"""The table of rotary angles grows by whole multiples of this."""


class Rotates(Protocol):
    """What knows the angles of its positions: a head."""

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        ...

    def rotary(self, positions: Tensor) -> Rotary:
        """Of positions, int64 [T]."""
        ...


class RotaryTable:
    """cos and sin [rows, D] of every position so far; shared by all requests, and grown on demand."""

    def __init__(self, head: Rotates) -> None:
        self._head = head
        self._table: Rotary | None = None

    def rows(self, first: int, stop: int) -> Rotary:
        """Of positions first .. stop - 1, each [stop - first, D]."""
        table = self._table
        if table is None or len(table[0]) < stop:
            count = -(-stop // ROTARY_ROWS) * ROTARY_ROWS
            table = self._head.rotary(torch.arange(count, device=self._head.device))
            self._table = table  # whole or not at all: other threads read it
        return table[0][first:stop], table[1][first:stop]


def rotated(x: Tensor, rotary: Rotary) -> Tensor:
    """Turn heads [B, H, T, D] by the angles [B, T, D] or [T, D] of their positions; T may be 1 for all."""
    cos, sin = (part.to(x.dtype).unsqueeze(-3) for part in rotary)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((second, first), dim=-1) * sin


def rope_frequencies(config: HeadConfig) -> tuple[Tensor, float]:
    """Radians a position, float32 [D / 2], and what cos and sin are multiplied by."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    like_llama = LlamaConfig(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=dict(config.rope_parameters),
    )
    with torch.device("cpu"):  # also where a head is made without memory for its weights
        embedding = LlamaRotaryEmbedding(like_llama)
    # A plain tensor, which a module does not register: `to(bfloat16)` must not round the angles.
    return embedding.inv_freq.detach().clone(), float(embedding.attention_scaling)
