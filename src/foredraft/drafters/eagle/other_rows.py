"""Language-model rows of tokens that a head has not learnt."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.drafters.eagle.ends import LmRows
from foredraft.drafters.eagle.head import EagleHead

MOST_ERROR = 0.3
"""Relative error of rows that the map was not fitted to, above which it is not used."""
LEAST_ROWS = 4
"""Rows for each column of the map at least: with fewer, any rows would fit."""


@dataclass(frozen=True, slots=True)
class OtherRows:
    """Rows of any token for a head with a reduced vocabulary.

    A head that drafts with the target's rows takes the target's. One that has learnt rows L of its own takes
    the target's after the linear map that best leads from the target's rows T of the tokens it knows to
    them: A of the least squares solution of T A = L.

    Attributes:
        head: the head.
        known: its tokens.
        map: float32 [h, h] A; None where the target's rows are taken as they are.
    """

    head: EagleHead
    known: frozenset[int]
    map: Tensor | None

    @classmethod
    @torch.no_grad()
    def of(cls, head: EagleHead) -> OtherRows | None:
        """None for a head that knows all tokens, and where no map leads to its rows."""
        if head.target_ids is None:
            return None
        known = frozenset(head.target_ids.tolist())
        if not head.own_lm_head:
            return cls(head, known, None)
        target = head.ends.rows_of(head.target_ids).weight.to(head.device).float()
        own = head.lm_head.weight.detach().float()
        fits = len(own) >= LEAST_ROWS * own.shape[1] and _error(target, own) <= MOST_ERROR
        return cls(head, known, _least_squares(target, own)) if fits else None

    def rows(self, token_ids: Tensor) -> LmRows:
        """Of these tokens, int64 [N], where the head is and in its dtype."""
        head = self.head
        rows = head.ends.rows_of(token_ids).to(head.device, head.dtype)
        if self.map is None:
            return rows
        mapped = rows.weight.float() @ self.map.to(head.device)
        return LmRows(mapped.to(head.dtype), None)


def _error(target: Tensor, own: Tensor) -> float:
    """|T A - L| / |L| over every other row, with A fitted to the rest; NaN where there is no A."""
    fitted = _least_squares(target[::2], own[::2])
    return float((target[1::2] @ fitted - own[1::2]).norm() / own[1::2].norm())


def _least_squares(target: Tensor, own: Tensor) -> Tensor:
    """A [h, h], from the normal equations: rows may be many, and h is what is solved for."""
    gram = (target.T @ target).double()
    ridge = (
        1e-9 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    )
    try:
        solved: Tensor = torch.linalg.solve(gram + ridge, (target.T @ own).double())
    except RuntimeError:  # rows of zeros
        return torch.full_like(own[: own.shape[1]], float("nan"))
    return solved.float()
