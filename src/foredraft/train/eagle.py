"""What trains an EAGLE head: the losses of EAGLE-1 and of EAGLE-3's training-time test.

Row j of a text pairs the target's feature of token j with the embedding of token j + 1 and predicts token
j + 2, as in decoding. A later step i of the test goes on from the head's own output: it embeds token
j + 1 + i at position j + i and predicts token j + 2 + i, and attends to the first step's keys up to j and
to its own of the steps between (EAGLE-3, arXiv 2503.01840).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foredraft.drafters.eagle.checkpoint import save_head
from foredraft.drafters.eagle.head import EagleHead
from foredraft.train.features import TargetFeatures, TargetStates
from foredraft.train.objective import Batch, LossReport
from foredraft.train.soft_loss import PLAIN, Finish, soft_cross_entropy, teacher_logits
from foredraft.train.state_cache import StateCache


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleLoss:
    """The weights of the losses.

    Attributes:
        steps: K, unrolled steps (EAGLE-3); 1 trains on true features alone.
        decay: step i counts decay^i.
        later_share: share of the rows that later steps go on from, drawn anew in each batch. Rows of a
            later step do not see one another, so leaving some out changes no other row.
        feature: weight of the smooth L1 loss on features (EAGLE-1).
        soft_label: weight of the cross-entropy beside it (EAGLE-1).
        noise: width of the uniform noise on features (EAGLE-1), times 512 / length.
    """

    steps: int = 4
    decay: float = 0.8
    later_share: float = 0.5
    feature: float = 1.0
    soft_label: float = 0.1
    noise: float = 0.2


class EagleObjective:
    """Trains a head on what its target thinks of a corpus.

    Args:
        head: in float32; `head.config.variant` decides the loss.
        target_model: the frozen target.
        loss: its parts.
        label_ids: int64 [Vl], tokens that the soft-label loss of EAGLE-1 looks at; None looks at all.
        cache: where the target's states are kept; None computes them for each batch.
    """

    def __init__(
        self,
        head: EagleHead,
        target_model: Any,
        loss: EagleLoss | None = None,
        label_ids: Tensor | None = None,
        cache: StateCache | None = None,
    ) -> None:
        self.head, self.loss = head, loss or EagleLoss()
        self._states = TargetFeatures(target_model, head.config.taps, cache)
        ids = head.target_ids if head.config.variant == 3 else label_ids
        rows = head.ends.lm_rows.detach()
        chosen = slice(None) if ids is None else ids.to(rows.device)
        self._taught_rows = rows[chosen]
        bias = head.ends.lm_bias
        self._finish = Finish(
            None if bias is None else bias.detach()[chosen],
            head.ends.logit_scale,
            head.ends.softcap,
        )
        self._known = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        self._known[chosen] = True

    @classmethod
    def for_target(
        cls,
        target_model: Any,
        variant: int,
        *,
        draft_ids: Tensor | None = None,
        loss: EagleLoss | None = None,
        cache: StateCache | None = None,
        **choices: Any,
    ) -> EagleObjective:
        """An objective with a fresh head; choices as in `EagleHead.for_target`."""
        own_ids = draft_ids if variant == 3 else None
        head = EagleHead.for_target(target_model, variant, draft_ids=own_ids, **choices)  # type: ignore[arg-type]
        return cls(head.float(), target_model, loss, draft_ids, cache)

    @property
    def module(self) -> nn.Module:
        """The head."""
        return self.head

    @property
    def steps(self) -> int:
        """K: depths that are trained and measured."""
        return self.loss.steps if self.head.config.variant == 3 else 1

    def __call__(self, batch: Batch) -> LossReport:
        """The loss of a batch; hits and counted [K] say how often each depth's best token was right."""
        states = self._states(batch)
        if batch.token_ids.shape[1] < 3:  # nothing stands behind a pair
            zero = torch.stack([p.sum() for p in self.head.parameters()]).sum() * 0.0
            return LossReport(zero, zero.new_zeros(self.steps), zero.new_zeros(self.steps))
        taught = teacher_logits(states.final, self._taught_rows, self._finish)
        labels = _Labels(batch, taught, self._known)
        if self.head.config.variant == 1:
            return self._regression(batch, states, labels)
        return self._training_time_test(batch, states, labels)

    def save(self, folder: Path) -> None:
        """Write the head, its weights in int8 a row, and its target's rows by reference."""
        save_head(self.head, folder, layout="foredraft")

    # --- EAGLE-3 ----------------------------------------------------------------------------------

    def _training_time_test(
        self, batch: Batch, states: TargetStates, labels: _Labels
    ) -> LossReport:
        unroll = _Unroll(self.head, batch.token_ids, states.features)
        output = unroll.first()
        reports = [self._cross_entropy(output, labels.of_all_rows())]
        if self.steps > 1:
            rows = labels.some_rows(self.loss.later_share)
            output = unroll.choose(rows, output)
        for step in range(1, self.steps):
            output = unroll.next(output)
            reports.append(self._cross_entropy(output, labels.of_rows(rows, step)))
        total = sum(self.loss.decay**i * report.loss for i, report in enumerate(reports))
        assert isinstance(total, Tensor)
        hits, counted = (torch.cat([getattr(r, n) for r in reports]) for n in ("hits", "counted"))
        return LossReport(total, hits, counted)

    def _cross_entropy(self, output: Tensor, labels: _StepLabels) -> LossReport:
        """Mean soft cross-entropy over the rows that count, [B, R, h] with [B, R] labels."""
        head = self.head
        hidden = (head.norm(output) if head.config.variant == 3 else output)[labels.counts]
        own = head.own_lm_head
        weight, finish = (head.lm_head.weight, PLAIN) if own else (self._taught_rows, self._finish)
        count = len(hidden)
        rows = torch.full((count,), 1.0 / max(count, 1), device=hidden.device)
        taught = labels.teacher[labels.counts]
        result = soft_cross_entropy(hidden, weight, taught, rows, finish)
        hits = result.hits.sum()[None].float()
        return LossReport(result.loss, hits, torch.full_like(hits, count))

    # --- EAGLE-1 ----------------------------------------------------------------------------------

    def _regression(self, batch: Batch, states: TargetStates, labels: _Labels) -> LossReport:
        """Smooth L1 on the next feature, and cross-entropy of what the target's head makes of it."""
        features = states.features
        if self.head.training and self.loss.noise:
            width = self.loss.noise * 512 / features.shape[1]
            features = features + (torch.rand_like(features) - 0.5) * width
        output = _Unroll(self.head, batch.token_ids, features).first()
        here = labels.of_all_rows()
        report = self._cross_entropy(output, here)
        difference = F.smooth_l1_loss(
            output[here.counts].float(), states.final[:, 1:][here.counts].float(), reduction="sum"
        )
        feature = difference / max(int(here.counts.sum()) * output.shape[-1], 1)
        loss = self.loss.feature * feature + self.loss.soft_label * report.loss
        return LossReport(loss, report.hits, report.counted)


@dataclass(frozen=True, slots=True)
class _StepLabels:
    """teacher [B, R, Vl]: the target's logits where each row predicts; counts bool [B, R]."""

    teacher: Tensor
    counts: Tensor


class _Labels:
    """What each row of each step should predict.

    Row j of step i predicts token j + 2 + i, of which the target's logits stand at j + 1 + i. It counts
    if the assistant wrote that token and it is among those that are taught. (The published code asks that of
    the target's own choice. In greedy text that is the token; where text was sampled, the token's row is all
    that needs no logits of the whole vocabulary.) A row of a later step counts only if its first step does.

    Args:
        batch: the texts.
        taught: [B, T, Vl] the target's logits for the tokens that are taught.
        known: bool [V], which those are.
    """

    def __init__(self, batch: Batch, taught: Tensor, known: Tensor) -> None:
        self._teacher = taught
        length = batch.token_ids.shape[1]
        inside = torch.arange(length, device=batch.lengths.device) < batch.lengths[:, None]
        self._predicted = batch.labelled & inside
        self._num_rows = length - 1
        self._predicted &= known[batch.token_ids]

    def of_all_rows(self) -> _StepLabels:
        """Labels of step 0: [B, T - 1] rows, the last of which predicts nothing."""
        counts = F.pad(self._predicted[:, 2:], (0, 1))
        return _StepLabels(self._teacher[:, 1:], counts)

    def some_rows(self, share: float) -> Tensor:
        """int64 [B, R]: rows to go on from, drawn among those that count, others where there are too few."""
        counts = self.of_all_rows().counts
        most = int(counts.sum(1).max())
        wanted = max(1, min(math.ceil(share * most), self._num_rows))
        ranking = torch.rand(counts.shape, device=counts.device) + counts
        return ranking.topk(wanted, dim=1).indices.sort(dim=1).values

    def of_rows(self, rows: Tensor, step: int) -> _StepLabels:
        """Labels of a later step for these rows [B, R]; a row whose first step did not count has none."""
        length = self._predicted.shape[1]
        target = rows + 2 + step
        inside = target < length
        target = target.clamp_max(length - 1)
        counts = inside & self._predicted.gather(1, target)
        counts &= self.of_all_rows().counts.gather(1, rows)
        index = (target - 1)[..., None].expand(-1, -1, self._teacher.shape[-1])
        return _StepLabels(self._teacher.gather(1, index), counts)


class _Unroll:
    """The steps of the training-time test over one batch."""

    def __init__(self, head: EagleHead, token_ids: Tensor, features: Tensor) -> None:
        self._head = head
        with torch.no_grad():
            self._embeds = head.embed(token_ids)
        self._features = features
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


def _wide(rows: Tensor, like: Tensor) -> Tensor:
    """Indices [B, R] as [B, R, h], to gather whole vectors."""
    return rows[..., None].expand(-1, -1, like.shape[-1])


def unrolled_logits(
    head: EagleHead, token_ids: Tensor, features: Tensor, steps: int
) -> Sequence[Tensor]:
    """Logits [B, T - 1, Vd] of each step of the training-time test, all rows of it."""
    unroll = _Unroll(head, token_ids, features)
    output = unroll.first()
    logits = [head.logits(output)]
    rows = torch.arange(output.shape[1], device=output.device).expand(output.shape[0], -1)
    output = unroll.choose(rows, output)
    for _ in range(1, steps):
        output = unroll.next(output)
        logits.append(head.logits(output))
    return logits
