"""Tokens that a text adds to the reduced vocabulary of a head.

A reduced vocabulary has what answers use most; names and rare words of a prompt are not in it, though an
answer is likely to repeat them. Each costs one row of a product, and needs no training; see `OtherRows`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foredraft.drafters.eagle.ends import LmRows
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.eagle.other_rows import OtherRows

ROOM = 1024
"""Tokens that a text can add; then a new one takes the place of the oldest."""


class TextVocabulary:
    """The vocabulary of a head over one text.

    Args:
        head: the head.
        others: rows of tokens that it does not know; None keeps it to those that it does.
        room: how many a text can add.
    """

    def __init__(self, head: EagleHead, others: OtherRows | None, room: int = ROOM) -> None:
        self._head, self._others, self._room = head, others, room
        self._added: dict[int, None] = {}
        self._more: LmRows | None = None
        self._ids = head.target_ids

    @property
    def ids(self) -> Tensor | None:
        """int64 [Vd + E], the token of each column of `logits`; None where column i is token i."""
        return self._ids

    def add(self, token_ids: Sequence[int]) -> None:
        """Take in those tokens of a piece of text that are not known yet."""
        others, own = self._others, self._head.target_ids
        if others is None or own is None:
            return
        seen = others.known, self._added
        new = [t for t in dict.fromkeys(token_ids) if not any(t in tokens for tokens in seen)]
        if not new:
            return
        self._added = dict.fromkeys([*self._added, *new][-self._room :])
        rows = others.rows(torch.tensor(new))
        self._more = (rows if self._more is None else self._more.then(rows)).last(self._room)
        self._ids = torch.cat([own, torch.tensor(list(self._added)).to(own)])

    @property
    def more(self) -> LmRows | None:
        """The rows of the tokens that the text has added; see `EagleHead.project`."""
        return self._more
