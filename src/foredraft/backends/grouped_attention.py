"""Attention of few rows with grouped queries, without copying keys and values for every query head.

The query heads that share a key-value head become further rows of one product, under the same mask. On a
CPU, `scaled_dot_product_attention` with `enable_gqa`, or with repeated keys, copies what it reads.

In a pass over several sequences each attends to its own cache (`joint_pass`). The mask is folded, and made
additive, once a pass: the library would do it anew in every layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from foredraft.backends.own_pass import in_own_pass, joint_pass, once
from foredraft.backends.split_attention import context_rows, split_attention, splits

SDPA = "sdpa"
MOST_ROWS = 32
"""Rows of a pass that are folded: with more, products are large enough for what the copies cost."""


def use_grouped_attention() -> None:
    """Have every model that attends by the library's `sdpa` attend so in passes of ours.

    The name stays: the library asks for it in many places, and outside of our passes it is its own function.
    """
    AttentionInterface.register(SDPA, grouped_attention)


def grouped_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **given: Any,
) -> tuple[Tensor, None]:
    """The attention function.

    Args:
        module: the attention layer.
        query: [B, Hq, N, D].
        key, value: [B, Hkv, L, D], L the rows that the cache hands out.
        attention_mask: bool or additive [B, 1, N, L]; None where each row sees all before it.
        given: what else `transformers` passes; `scaling` is heeded.

    Returns:
        [B, N, Hq, D], and no weights.
    """
    joint = joint_pass()
    if joint is None or not joint.is_apart:
        return _attend(module, query, key, value, attention_mask, given)
    attended = [
        _attend(module, query[:, :, part], keys, values, mask, given)[0]
        for part, keys, values, mask in joint.seen(key, attention_mask)
    ]
    return torch.cat(attended, 1), None


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    given: dict[str, Any],
) -> tuple[Tensor, None]:
    """Attention of one sequence; arguments as in `grouped_attention`."""
    rows, groups = query.shape[2], query.shape[1] // key.shape[1]
    split = splits(query, attention_mask)
    ours = in_own_pass() and (split or (groups > 1 and query.device.type == "cpu"))
    if not (ours and _foldable(rows, attention_mask, given)):
        attended: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **given
        )
        return attended
    batch, heads, _, width = query.shape
    folded = query.reshape(batch, key.shape[1], groups * rows, width)
    mask = None if attention_mask is None else _folded(attention_mask, groups, query.dtype)
    scale = given.get("scaling")
    if split and mask is not None:
        before = context_rows(attention_mask)
        output = split_attention(folded, key, value, mask, before, scale)
    else:
        output = scaled_dot_product_attention(folded, key, value, mask, scale=scale)
    output = output.view(batch, heads, rows, value.shape[-1])
    return output.transpose(1, 2).contiguous(), None


def _foldable(rows: int, mask: Tensor | None, given: dict[str, Any]) -> bool:
    """Whether the rows and their mask say all there is to say."""
    if any(given.get(name) for name in ("dropout", "softcap", "output_attentions")):
        return False
    if given.get("position_bias") is not None:
        return False
    if mask is None:
        return rows == 1
    return rows <= MOST_ROWS and mask.shape[1] == 1 and mask.shape[2] == rows


def _folded(mask: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """The additive mask [B, 1, groups * N, L] of folded rows, made once a pass."""

    def fold() -> Tensor:
        additive = mask
        if mask.dtype == torch.bool:
            additive = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
            additive.masked_fill_(~mask, -torch.inf)
        return additive.repeat(1, 1, groups, 1)

    return once(mask, ("folded", groups, dtype), fold)
