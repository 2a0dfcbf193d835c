"""Tokens that a text adds to the reduced vocabulary of a head.

A reduced vocabulary has what answers use most; names and rare words of a prompt are not in it, though an
answer is likely to repeat them. Each costs one row of a product and needs no training: the head predicts in
the space of the target's rows, or in one that a linear map leads to (`EagleHead.row_map`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foredraft.drafters.eagle.head import EagleHead

ROOM = 1024
"""Tokens that a text can add; then a new one takes the place of the oldest."""
MOST_ERROR = 0.3
"""A head whose own rows are further than this from any linear map of the target's keeps to its tokens."""


class TextVocabulary:
    """The vocabulary of a head over one text.

    Args:
        head: the head.
        known: its tokens; None where no text can add any.
        room: how many a text can add.
    """

    def __init__(self, head: EagleHead, known: frozenset[int] | None, room: int = ROOM) -> None:
        self._head, self._known, self._room = head, known, room
        self._added: dict[int, None] = {}
        self._more = head.rows_of(torch.zeros(0, dtype=torch.int64))
        self._ids = head.target_ids

    @property
    def ids(self) -> Tensor | None:
        """int64 [Vd + E], the token of each column of `logits`; None where column i is token i."""
        return self._ids

    def add(self, token_ids: Sequence[int]) -> None:
        """Take in those tokens of a piece of text that are not known yet."""
        own = self._head.target_ids
        if self._known is None or own is None:
            return
        seen = self._known, self._added
        new = [t for t in dict.fromkeys(token_ids) if not any(t in tokens for tokens in seen)]
        if not new:
            return
        self._added = dict.fromkeys([*self._added, *new][-self._room :])
        self._more = self._more.then(self._head.rows_of(torch.tensor(new))).last(self._room)
        self._ids = torch.cat([own, torch.tensor(list(self._added)).to(own)])

    def logits(self, output: Tensor) -> Tensor:
        """The law after rows of the head, [.., h] -> [.., Vd + E], before any softmax."""
        return self._head.logits(output, self._more if self._added else None)


def tokens_to_add_to(head: EagleHead) -> frozenset[int] | None:
    """The tokens of a head whose vocabulary texts can add to; None for any other head."""
    if head.target_ids is None or head.row_error > MOST_ERROR:
        return None
    return frozenset(head.target_ids.tolist())
