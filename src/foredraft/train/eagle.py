"""What trains an EAGLE head: the losses of EAGLE-1 and of EAGLE-3's training-time test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foredraft.drafters.eagle.checkpoint import save_head
from foredraft.drafters.eagle.head import EagleHead
from foredraft.train.eagle_labels import EagleLabels, StepLabels
from foredraft.train.features import TargetFeatures, TargetStates
from foredraft.train.objective import Batch, LossReport
from foredraft.train.soft_loss import PLAIN, Finish, soft_cross_entropy
from foredraft.train.state_cache import StateCache
from foredraft.train.taught import Taught
from foredraft.train.unroll import Unroll


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleLoss:
    """The weights of the losses.

    Attributes:
        steps: K, unrolled steps (EAGLE-3); 1 trains on true features alone.
        decay: step i counts decay^i.
        later_share: share of the rows that later steps go on from, drawn anew in each batch. Rows of a
            later step do not see one another, so leaving some out changes no other row.
        sharpen: exponent of the target's law before it is taught (EAGLE-3). Above 1 the head learns more of
            the likeliest tokens, which are all that greedy decoding asks for; 1 teaches the law itself.
        feature: weight of the smooth L1 loss on features (EAGLE-1).
        soft_label: weight of the cross-entropy beside it (EAGLE-1).
        noise: width of the uniform noise on features (EAGLE-1), times 512 / length.
    """

    steps: int = 4
    decay: float = 0.8
    later_share: float = 0.5
    sharpen: float = 1.0
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
        self.label_ids = label_ids
        if head.own_embeddings:
            head.embed_tokens.requires_grad_(False)  # they are the target's, or another's to keep
        self._states = TargetFeatures(target_model, head.config.taps, cache)
        ids = head.target_ids if head.config.variant == 3 else label_ids
        self._taught = Taught.of(head.ends, ids)

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
        """The loss of a batch; hits and counted [K] say how often each depth's best token was right.

        Tokens outside the draft vocabulary have no loss, and count as missed.
        """
        states = self._states(batch)
        if batch.token_ids.shape[1] < 3:  # nothing stands behind a pair
            zero = torch.stack([p.sum() for p in self.head.parameters()]).sum() * 0.0
            return LossReport(zero, zero.new_zeros(self.steps), zero.new_zeros(self.steps))
        labels = EagleLabels(batch, self._taught.known)
        taught = self._taught.logits(labels.taught(states.final))
        if self.head.config.variant == 1:
            return self._regression(batch, states, taught, labels)
        return self._training_time_test(batch, states, taught, labels)

    def save(self, folder: Path) -> None:
        """Write the head, its weights in int8 a row, and its target's rows by reference."""
        save_head(self.head, folder, layout="foredraft")

    # --- EAGLE-3 ----------------------------------------------------------------------------------

    def _training_time_test(
        self, batch: Batch, states: TargetStates, taught: Tensor, labels: EagleLabels
    ) -> LossReport:
        unroll = Unroll(self.head, batch.token_ids, states.features)
        output = unroll.first()
        reports = [self._cross_entropy(output, taught, labels.of_all_rows())]
        if self.steps > 1:
            rows = labels.some_rows(self.loss.later_share)
            output = unroll.choose(rows, output)
        for step in range(1, self.steps):
            output = unroll.next(output)
            reports.append(self._cross_entropy(output, taught, labels.of_rows(rows, step)))
        total = sum(self.loss.decay**i * report.loss for i, report in enumerate(reports))
        assert isinstance(total, Tensor)
        hits, counted = (torch.cat([getattr(r, n) for r in reports]) for n in ("hits", "counted"))
        return LossReport(total, hits, counted)

    def _cross_entropy(self, output: Tensor, taught: Tensor, labels: StepLabels) -> LossReport:
        """Mean soft cross-entropy over the rows that count.

        Args:
            output: [B, R, h] of the head.
            taught: [P, Vl] the target's logits.
            labels: which of them each row should predict.
        """
        head = self.head
        hidden = (head.norm(output) if head.config.variant == 3 else output)[labels.counts]
        rows = torch.full((len(hidden),), 1.0 / max(len(hidden), 1), device=hidden.device)
        weight, finish = self._student
        sharpen = self.loss.sharpen if head.config.variant == 3 else 1.0
        result = soft_cross_entropy(
            hidden, weight, taught, rows, finish, labels.taught_rows, sharpen
        )
        return LossReport(result.loss, result.hits.sum()[None].float(), labels.asked[None].float())

    @property
    def _student(self) -> tuple[Tensor, Finish]:
        """The rows that the head predicts with, and what is done to the products."""
        head = self.head
        if not head.own_lm_head:
            return self._taught.rows, self._taught.finish
        chosen = self._taught.chosen if head.config.variant == 1 else slice(None)
        return head.lm_head.weight[chosen], PLAIN

    # --- EAGLE-1 ----------------------------------------------------------------------------------

    def _regression(
        self, batch: Batch, states: TargetStates, taught: Tensor, labels: EagleLabels
    ) -> LossReport:
        """Smooth L1 on the next feature, and cross-entropy of what the target's head makes of it."""
        features = states.features
        if self.head.training and self.loss.noise:
            width = self.loss.noise * 512 / features.shape[1]
            features = features + (torch.rand_like(features) - 0.5) * width
        output = Unroll(self.head, batch.token_ids, features).first()
        here = labels.of_all_rows()
        report = self._cross_entropy(output, taught, here)
        difference = F.smooth_l1_loss(
            output[here.counts].float(), states.final[:, 1:][here.counts].float(), reduction="sum"
        )
        feature = difference / max(int(here.counts.sum()) * output.shape[-1], 1)
        loss = self.loss.feature * feature + self.loss.soft_label * report.loss
        return LossReport(loss, report.hits, report.counted)
