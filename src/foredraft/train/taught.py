"""What drafters learn from: the head of their target, for the tokens that are taught."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.drafters.eagle.ends import TargetEnds
from foredraft.train.soft_loss import Finish, teacher_logits


@dataclass(frozen=True, slots=True)
class Taught:
    """The target's language-model head, of the tokens that are taught alone. None of it is trained.

    Attributes:
        rows: [Vl, h] its weight.
        finish: what follows the product.
        known: bool [V], which tokens are taught.
        chosen: which rows of the whole head these are; indexes anything with a row for each token.
    """

    rows: Tensor
    finish: Finish
    known: Tensor
    chosen: Tensor | slice

    @classmethod
    def of(cls, ends: TargetEnds, ids: Tensor | None) -> Taught:
        """The head's rows of these tokens, int64 [Vl]; None takes them all, and copies nothing."""
        weight, bias = ends.lm_rows.detach(), ends.lm_bias
        chosen = slice(None) if ids is None else ids.to(weight.device)
        own_bias = None if bias is None else bias.detach()[chosen]
        known = torch.zeros(len(weight), dtype=torch.bool, device=weight.device)
        known[chosen] = True
        finish = Finish(own_bias, ends.logit_scale, ends.softcap)
        return cls(weight[chosen], finish, known, chosen)

    def logits(self, states: Tensor) -> Tensor:
        """The target's logits [.., Vl], from its final hidden states [.., h]."""
        return teacher_logits(states, self.rows, self.finish)
