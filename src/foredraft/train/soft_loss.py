"""Soft cross-entropy of a reduced vocabulary, with its gradient computed in the forward pass.

The logits [N, Vd] are by far the largest tensor of a training step. They are made once, turned into their
own gradient in place, chunk by chunk while they are in the cache, and never kept for autograd.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK_ROWS = 64


@dataclass(frozen=True, slots=True)
class SoftLoss:
    """What `soft_cross_entropy` gives.

    Attributes:
        loss: scalar: sum over rows of weight * cross-entropy; it has a gradient.
        hits: bool [N], whether the best token is the teacher's best.
    """

    loss: Tensor
    hits: Tensor


@dataclass(frozen=True, slots=True)
class Finish:
    """What a frozen head does after its product; see `TargetEnds`.

    Attributes:
        bias: [Vd] added first, or None.
        scale: then the logits are multiplied by it.
        softcap: and capped: c * tanh(logits / c); None caps nothing.
    """

    bias: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None


PLAIN = Finish()


def soft_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    teacher: Tensor,
    row_weights: Tensor,
    finish: Finish = PLAIN,
    teacher_rows: Tensor | None = None,
    sharpen: float = 1.0,
) -> SoftLoss:
    """-sum_n row_weights[n] sum_v p_n[v] log softmax(finish(hidden[n] @ weight.T))[v], where
    p_n = softmax(sharpen * teacher[n]).

    Args:
        hidden: [N, h] what the language-model head reads; gets a gradient.
        weight: [Vd, h] its rows; get a gradient if they require one.
        teacher: [P, Vd] the target's logits for the same tokens; no gradient.
        row_weights: float [N].
        finish: what is done to the products; without a gradient of its own.
        teacher_rows: int64 [N], the teacher's row of each; None where they stand in the same order.
        sharpen: exponent of the teacher's law.

    Products are taken in the dtype of autocast, where it is on; sums and exponentials in float32.
    """
    labels = _Labels(teacher, row_weights, teacher_rows, sharpen)
    loss, hits = _SoftCrossEntropy.apply(hidden, weight, labels, finish)  # type: ignore[no-untyped-call]
    return SoftLoss(loss, hits)


def teacher_logits(states: Tensor, weight: Tensor, finish: Finish = PLAIN) -> Tensor:
    """The target's logits [.., Vd] for chosen tokens: final hidden states [.., h] times rows [Vd, h]."""
    with torch.no_grad():
        logits = F.linear(states.to(weight.dtype), weight, finish.bias) * finish.scale
        cap = finish.softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)


@dataclass(frozen=True, slots=True)
class _Labels:
    """What each row is taught, and how much it counts; see `soft_cross_entropy`."""

    teacher: Tensor
    weights: Tensor
    rows: Tensor | None
    sharpen: float


class _SoftCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: _Labels,
        finish: Finish,
    ) -> tuple[Tensor, Tensor]:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        rows, columns = hidden.detach().to(dtype), weight.detach().to(dtype)
        bias = None if finish.bias is None else finish.bias.to(dtype)
        logits = F.linear(rows, columns, bias)
        loss, hits = _to_gradient(logits, labels, finish)
        ctx.dtypes = hidden.dtype, weight.dtype
        ctx.hidden_gradient = logits @ columns if ctx.needs_input_grad[0] else None
        ctx.weight_gradient = logits.T @ rows if ctx.needs_input_grad[1] else None
        ctx.mark_non_differentiable(hits)
        return loss, hits

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.hidden_gradient, ctx.weight_gradient
        return (
            None if hidden is None else hidden.to(ctx.dtypes[0]) * scale,
            None if weight is None else weight.to(ctx.dtypes[1]) * scale,
            None,
            None,
        )


def _to_gradient(logits: Tensor, labels: _Labels, finish: Finish) -> tuple[Tensor, Tensor]:
    """Overwrite products [N, Vd] with the loss's gradient; returns the loss and the hits [N]."""
    losses, hits = [], []
    for rows in range(0, len(logits), CHUNK_ROWS):
        part = slice(rows, rows + CHUNK_ROWS)
        scores = logits[part].float() * finish.scale
        taught = labels.teacher[part if labels.rows is None else labels.rows[part]].float()
        slope: Tensor | float = finish.scale
        if finish.softcap is not None:
            scores = (scores / finish.softcap).tanh_()
            slope = (1 - scores.square()) * finish.scale
            scores = scores * finish.softcap
        hits.append(scores.max(-1).indices == taught.max(-1).indices)
        taught = (taught if labels.sharpen == 1 else taught * labels.sharpen).softmax(-1)
        log_probs = scores.log_softmax(-1)
        losses.append(-(taught * log_probs).sum(-1) * labels.weights[part])
        gradient = log_probs.exp_().sub_(taught).mul_(labels.weights[part, None])
        logits[part] = gradient.mul_(slope)
    if not losses:
        nothing = torch.zeros(0, dtype=torch.bool, device=logits.device)
        return logits.new_zeros((), dtype=torch.float32), nothing
    return torch.cat(losses).sum(), torch.cat(hits)
