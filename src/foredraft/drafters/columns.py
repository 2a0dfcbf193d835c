"""Which token each column of a drafter's logits is, where its vocabulary is not the target's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The columns of a reduced vocabulary.

    Attributes:
        all_ids: int64 [Vd] the token of each column of the logits.
        known: int64 [C] the columns of tokens that the target has; None where it has all.
        ids: int64 [C] the tokens of these.
        host_ids: the same on the host, so that drawn columns become tokens without asking the device.
    """

    all_ids: Tensor
    known: Tensor | None
    ids: Tensor
    host_ids: np.ndarray[tuple[int], np.dtype[np.int64]]

    @classmethod
    def of(cls, ids: Tensor, vocab_size: int) -> Columns:
        """Of these tokens, for a target of V tokens."""
        has = ids < vocab_size
        known = None if bool(has.all()) else has.nonzero()[:, 0]
        kept = ids if known is None else ids[known]
        return cls(ids, known, kept, kept.cpu().numpy())

    def tokens(self, columns: Sequence[int]) -> list[int]:
        """The tokens of some columns, which count among the known ones."""
        tokens: list[int] = self.host_ids[list(columns)].tolist()
        return tokens


class LatestColumns:
    """The columns of a vocabulary that seldom changes, worked out when it does."""

    def __init__(self) -> None:
        self._made: tuple[Tensor, int, Columns] | None = None

    def of(self, ids: Tensor | None, vocab_size: int, device: torch.device) -> Columns | None:
        """As `Columns.of`, on a device; None for a vocabulary that is not reduced."""
        if ids is None:
            return None
        made = self._made
        if made is None or made[0] is not ids or made[1] != vocab_size:
            made = self._made = ids, vocab_size, Columns.of(ids.to(device), vocab_size)
        return made[2]
