"""The one decoder layer of an EAGLE head.

A level of a draft is a few rows, so that small operators cost as much as products. Where siblings are one
product (`joined_linears`) the layer takes it whole: queries and keys are turned together, and the two norms
of the input are one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from foredraft.backends.joined_linears import joint_product
from foredraft.drafters.eagle.config import HeadConfig
from foredraft.drafters.eagle.rotary import Rotary, rotated

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [B, Hq, T, D], k [B, Hkv, T, D], v [B, Hkv, T, D]), rotated, of the rows of this call -> attention
output [B, Hq, T, D]. The caller owns the cache, the mask and the structure of unrolled steps."""


class RMSNorm(nn.Module):
    """`x / rms(x) * weight`, the mean square taken in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """[.., size] -> [.., size]."""
        return self.weight * over_rms(hidden, self.eps)


def over_rms(hidden: Tensor, eps: float) -> Tensor:
    """`x / rms(x)` over the last axis, rounded to the dtype of x."""
    wide = hidden.float()
    scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale).to(hidden.dtype)


class Attention(nn.Module):
    """Grouped-query attention whose cache and mask are the caller's."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        # EAGLE-3 projects the pair (embedding, hidden state), EAGLE-1 what fc made of it.
        size = config.hidden_size * (2 if config.variant == 3 else 1)
        self._counts = config.num_attention_heads, config.num_key_value_heads
        queries, keys = (count * config.head_dim for count in self._counts)
        self.q_proj = nn.Linear(size, queries, bias=config.attention_bias)
        self.k_proj = nn.Linear(size, keys, bias=config.attention_bias)
        self.v_proj = nn.Linear(size, keys, bias=config.attention_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=config.output_bias)

    def forward(self, hidden: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        """[B, T, size] -> [B, T, h]."""
        output = attend(*self._projected(hidden, rotary))
        projected: Tensor = self.o_proj(output.transpose(1, 2).flatten(-2))
        return projected

    def _projected(self, hidden: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, Hq, T, D], keys and values [B, Hkv, T, D], rotated."""
        layers = self.q_proj, self.k_proj, self.v_proj
        product = joint_product(layers, hidden)
        if product is None:
            q, k, v = (self._heads(project(hidden)) for project in layers)
            return rotated(q, rotary), rotated(k, rotary), v
        queries, keys = self._counts
        heads = self._heads(product)
        turned = rotated(heads[:, : queries + keys], rotary)
        return turned[:, :queries], turned[:, queries:], heads[:, queries + keys :]

    def _heads(self, product: Tensor) -> Tensor:
        """[B, T, H * D] -> [B, H, T, D]."""
        batch, rows, width = product.shape
        return product.view(batch, rows, width // self.head_dim, self.head_dim).transpose(1, 2)


class MLP(nn.Module):
    """The gated feed-forward part of a Llama layer."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        from transformers.activations import ACT2FN

        outer, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(outer, inner, bias=config.mlp_bias)
        self.up_proj = nn.Linear(outer, inner, bias=config.mlp_bias)
        self.down_proj = nn.Linear(inner, outer, bias=config.mlp_bias)
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, hidden: Tensor) -> Tensor:
        """[.., h] -> [.., h]."""
        product = joint_product((self.gate_proj, self.up_proj), hidden)
        if product is None:
            gate, up = self.gate_proj(hidden), self.up_proj(hidden)
        else:
            gate, up = product.chunk(2, -1)
        output: Tensor = self.down_proj(self.act_fn(gate) * up)
        return output


class MidLayer(nn.Module):
    """EAGLE-3 norms embedding and hidden state apart; EAGLE-1 norms neither."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        if config.variant == 3:
            self.input_layernorm = RMSNorm(size, eps)
            self.hidden_norm = RMSNorm(size, eps)
        self.post_attention_layernorm = RMSNorm(size, eps)

    def normed_pair(self, embeds: Tensor, hidden: Tensor) -> Tensor:
        """Embedding and hidden state, [.., h] each, normed apart: [.., 2, h]."""
        weights = torch.stack((self.input_layernorm.weight, self.hidden_norm.weight))
        pair = torch.stack((embeds, hidden), dim=-2)
        return weights * over_rms(pair, self.hidden_norm.eps)

    def forward(self, residual: Tensor, attended: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        """[B, T, h] what is added to, and [B, T, h or 2h] what is attended with -> [B, T, h]."""
        hidden = residual + self.self_attn(attended, rotary, attend)
        output: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output
