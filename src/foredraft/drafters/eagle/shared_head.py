"""A head whose passes several texts share: rows of all behind one another, each attending to its own cache.

What a text needs of the head it asks for in a meeting (`foredraft.meeting`), so that a batch makes one pass
for the level of all its drafts; alone, a request is a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.drafters.eagle.ends import LmRows
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.eagle.layer import Attend
from foredraft.drafters.eagle.rotary import Rotary
from foredraft.meeting import ask


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one text for the head's layer.

    Attributes:
        embeds, hidden: [1, T, h], as in `EagleHead.step`.
        rotary: of [T, D] positions, or of one that all rows have.
        attend: over the text's own cache.
    """

    embeds: Tensor
    hidden: Tensor
    rotary: Rotary
    attend: Attend

    @property
    def count(self) -> int:
        """T"""
        return self.embeds.shape[1]


class SharedHead:
    """The passes of one head."""

    def __init__(self, head: EagleHead) -> None:
        self._head = head

    def fuse(self, features: Tensor) -> Tensor:
        """As `EagleHead.fuse`, [T, F] -> [T, h]."""
        return ask(self._fuse, features)

    def step(self, rows: Rows) -> Tensor:
        """As `EagleHead.step`: [1, T, h]."""
        return ask(self._step, rows)

    def project(self, hidden: Tensor, more: LmRows | None) -> Tensor:
        """As `EagleHead.project`, [T, h] -> [T, Vd + E]."""
        return ask(self._project, (hidden, more))

    def _fuse(self, features: Sequence[Tensor]) -> Sequence[Tensor]:
        sizes = [len(part) for part in features]
        return torch.split(self._head.fuse(_joined(features)), sizes)

    def _step(self, requests: Sequence[Rows]) -> Sequence[Tensor]:
        sizes = [rows.count for rows in requests]
        embeds = _joined([rows.embeds for rows in requests], 1)
        hidden = _joined([rows.hidden for rows in requests], 1)
        if len(requests) == 1:
            return [self._head.step(embeds, hidden, requests[0].rotary, requests[0].attend)]
        cos, sin = (
            torch.cat([rows.rotary[i].expand(rows.count, -1) for rows in requests])
            for i in range(2)
        )

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            parts = zip(*(torch.split(t, sizes, 2) for t in (q, k, v)), strict=True)
            attended = [r.attend(*own) for r, own in zip(requests, parts, strict=True)]
            return torch.cat(attended, 2)

        return torch.split(self._head.step(embeds, hidden, (cos, sin), attend), sizes, 1)

    def _project(self, requests: Sequence[tuple[Tensor, LmRows | None]]) -> Sequence[Tensor]:
        hidden = [rows for rows, _ in requests]
        products = torch.split(self._head.products(_joined(hidden)), [len(h) for h in hidden])
        return [
            self._head.beside(own, rows, more)
            for own, (rows, more) in zip(products, requests, strict=True)
        ]


def _joined(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), axis)
