"""The steps of EAGLE-3's training-time test (arXiv 2503.01840), over a whole batch at once.

Row j of a text pairs the target's feature of token j with the embedding of token j + 1 and predicts token
j + 2, as in decoding. A later step i goes on from the head's own output: it embeds token j + 1 + i at
position j + i and predicts token j + 2 + i, and attends to the first step's keys up to j and to its own of
the steps between. Rows of a later step do not see one another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from foredraft.drafters.eagle.head import EagleHead


class Unroll:
    """The steps of the training-time test over one batch.

    Args:
        head: in training, or not.
        token_ids: int64 [B, T].
        features: [B, T, F] of the same tokens.
    """

    def __init__(self, head: EagleHead, token_ids: Tensor, features: Tensor) -> None:
        self._head = head
        with torch.no_grad():
            self._embeds = _as_computed(head.embed(token_ids), head.dtype)
        self._features = _as_computed(features, head.dtype)
        self._first: tuple[Tensor, Tensor] | None = None
        self._later: list[tuple[Tensor, Tensor]] = []
        self._rows = torch.zeros(0)
        self._step = 0

    def first(self) -> Tensor:
        """Step 0 over all rows: outputs [B, T - 1, h]."""
        count = self._features.shape[1] - 1
        positions = torch.arange(count, device=self._features.device)
        hidden = self._head.fuse(self._features[:, :-1])
        rotary = self._head.rotary(positions)
        return self._head.step(self._embeds[:, 1:], hidden, rotary, self._attend_causally)

    def choose(self, rows: Tensor, output: Tensor) -> Tensor:
        """Go on from these rows [B, R] alone: their outputs [B, R, h]."""
        self._rows = rows
        return output.gather(1, _wide(rows, output))

    def keep(self, places: Tensor, output: Tensor) -> Tensor:
        """Go on with some of the chosen rows, int64 [B, S] places among them: their outputs [B, S, h]."""
        self._rows = self._rows.gather(1, places)
        self._later = [(_kept(key, places), _kept(value, places)) for key, value in self._later]
        return output.gather(1, _wide(places, output))

    def next(self, output: Tensor) -> Tensor:
        """One step more: [B, R, h] -> [B, R, h]."""
        self._step += 1
        last = self._embeds.shape[1] - 1
        tokens = (self._rows + 1 + self._step).clamp_max(last)
        embeds = self._embeds.gather(1, _wide(tokens, self._embeds))
        rotary = self._head.rotary(self._rows + self._step)
        return self._head.step(embeds, self._head.recycle(output), rotary, self._attend_later)

    def _attend_causally(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self._first = key, value
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    def _attend_later(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[B, Hq, R, D] rows over step 0's keys up to their own, and their own keys of the later steps."""
        assert self._first is not None
        self._later.append((key, value))
        keys, values = self._first
        batch, heads, count, width = query.shape
        groups = query.reshape(batch, keys.shape[1], -1, count, width) / math.sqrt(width)
        seen = torch.arange(keys.shape[2], device=keys.device) <= self._rows[..., None]
        context = torch.matmul(groups, keys[:, :, None].transpose(-1, -2))
        context = context.masked_fill(~seen[:, None, None], -torch.inf)
        own = torch.stack([(groups * k[:, :, None]).sum(-1) for k, _ in self._later], -1)
        law = torch.cat([context, own.to(context.dtype)], -1).float().softmax(-1)
        law = law.to(values.dtype)
        mixed = torch.matmul(law[..., : keys.shape[2]], values[:, :, None])
        for place, (_, own_value) in enumerate(self._later):
            mixed = mixed + law[..., keys.shape[2] + place, None] * own_value[:, :, None]
        return mixed.reshape(batch, heads, count, width)


def _as_computed(states: Tensor, dtype: torch.dtype) -> Tensor:
    """Autocast takes states of any dtype; without it they must have the weights' own."""
    return states if torch.is_autocast_enabled(states.device.type) else states.to(dtype)


def _wide(rows: Tensor, like: Tensor) -> Tensor:
    """Indices [B, R] as [B, R, h], to gather whole vectors."""
    return rows[..., None].expand(-1, -1, like.shape[-1])


def _kept(states: Tensor, places: Tensor) -> Tensor:
    """[B, H, R, D] of these rows alone, [B, S] -> [B, H, S, D]."""
    shape = (-1, states.shape[1], -1, states.shape[3])
    return states.gather(2, places[:, None, :, None].expand(shape))


def unrolled_logits(
    head: EagleHead, token_ids: Tensor, features: Tensor, steps: int
) -> Sequence[Tensor]:
    """Logits [B, T - 1, Vd] of each step of the training-time test, all rows of it."""
    unroll = Unroll(head, token_ids, features)
    output = unroll.first()
    logits = [head.logits(output)]
    rows = torch.arange(output.shape[1], device=output.device).expand(output.shape[0], -1)
    output = unroll.choose(rows, output)
    for _ in range(1, steps):
        output = unroll.next(output)
        logits.append(head.logits(output))
    return logits
