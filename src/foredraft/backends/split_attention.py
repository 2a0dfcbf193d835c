"""Attention of a draft tree in two parts: the context, which every row sees whole, and the tree itself.

The context needs no mask, so kernels that take none (flash attention on a GPU) read it, for all query heads
of a key-value head at once; the few rows of the tree are attended to under the sliced mask. Both parts are
softmaxes over disjoint keys, and join exactly by their log-sum-exps:

    out = w * out_context + (1 - w) * out_tree,    w = sigmoid(lse_context - lse_tree)

On a CPU one masked call over both parts is faster (docs/experiments.md), so it is used on GPUs alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

CONTEXT_ROWS = "foredraft_context_rows"
"""Name under which a mask says how many of its first columns every row sees."""
LEAST_CONTEXT = 64
"""Columns below which a split costs more calls than it saves reading."""


def mark_context(mask: Tensor, rows: int) -> Tensor:
    """The mask, which says from now on that its first `rows` columns are seen by every row."""
    setattr(mask, CONTEXT_ROWS, rows)
    return mask


def context_rows(mask: Tensor | None) -> int:
    """How many of a mask's first columns every row sees; 0 where nobody said so."""
    return 0 if mask is None else int(getattr(mask, CONTEXT_ROWS, 0))


def splits(query: Tensor, mask: Tensor | None) -> bool:
    """Whether a split is possible and faster here: on a GPU in half precision, behind some context."""
    return (
        query.device.type == "cuda"
        and query.dtype in (torch.float16, torch.bfloat16)
        and context_rows(mask) >= LEAST_CONTEXT
    )


def split_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, rows: int, scale: float | None
) -> Tensor:
    """Attention over `rows` columns of context without a mask, joined with that over the others.

    Args:
        query: [B, H, R, D], query heads of a key-value head folded into its rows.
        key, value: [B, H, L, D].
        mask: additive [B or 1, 1, R, L]; zero in the first `rows` columns.
        rows: of context, 1 or more and fewer than L.
        scale: of scores; None takes 1 / sqrt(D).

    Returns:
        [B, H, R, D]. As one masked call to float rounding, however large the scores: within 1e-4 in float32,
        6e-2 in bfloat16.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    context, context_lse = _unmasked(query, key[..., :rows, :], value[..., :rows, :], scale)
    # In float32, as kernels score inside: rounded scores of some size would move weight between the parts.
    scores = query.float() @ key[..., rows:, :].float().transpose(-1, -2)
    scores = scores * scale + mask[..., rows:]
    tree_lse = scores.logsumexp(-1, keepdim=True)
    total = torch.logaddexp(context_lse, tree_lse)
    tree = (scores - total).exp().to(value.dtype) @ value[..., rows:, :]
    return torch.addcmul(tree, context, (context_lse - total).exp().to(context.dtype))


def _unmasked(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention without a mask, [B, H, R, D], and its log-sum-exp, float32 [B, H, R, 1]."""
    if query.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, scale=scale
        )
    else:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, scale=scale
        )
    return out, lse.view(*out.shape[:-1], 1)
