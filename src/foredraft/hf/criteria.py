"""The stopping criteria that `generate` prepared, as one row of the batch meets them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation import stopping_criteria as hf

from foredraft.errors import ConfigError
from foredraft.hf.processors import Kept
from foredraft.hf.rows import Row

ROW_WISE = (hf.MaxTimeCriteria, hf.StopStringCriteria)
BY_ENGINE = (hf.MaxLengthCriteria, hf.EosTokenCriteria)
"""Those that options of ours stand for."""


def room_of(criteria: Sequence[Any], length: int, most: int) -> int:
    """New tokens that the criteria leave room for, one at least.

    Args:
        criteria: all of the call.
        length: T, tokens of the padded prompts.
        most: where no criterion limits them.
    """
    limits = [c.max_length for c in criteria if type(c) is hf.MaxLengthCriteria]
    return max(1, min(limits) - length) if limits else most


def end_tokens_of(criteria: Sequence[Any], vocab_size: int) -> tuple[int, ...]:
    """End tokens that the model can emit."""
    ids = [t for c in criteria if type(c) is hf.EosTokenCriteria for t in c.eos_token_id.tolist()]
    return tuple(dict.fromkeys(t for t in ids if 0 <= t < vocab_size))


def pads(criteria: Sequence[Any]) -> bool:
    """Whether a row that has ended is padded; else `generate` decodes it on until all have."""
    return any(hasattr(criterion, "eos_token_id") for criterion in criteria)


class RowCriteria:
    """All criteria that are asked token by token, for one row.

    They are shown what `generate` shows them: the row with its padding. Those of which it is not known that
    each row counts alone are shown the row in every place of the batch, and its own place is read.

    Args:
        criteria: of the call.
        row: whose text it is.
        device: of the ids that they are shown.
        kept: the scores that they are shown; None shows them None.
    """

    def __init__(
        self, criteria: Sequence[Any], row: Row, device: torch.device, kept: Kept | None = None
    ) -> None:
        self._criteria = [c for c in criteria if type(c) not in BY_ENGINE]
        self._row, self._kept = row, kept
        prompt = torch.tensor([row.prompt_ids], dtype=torch.int64, device=device)
        self._ids = torch.cat((row.padding, prompt), 1)

    def __len__(self) -> int:
        return len(self._criteria)

    def __call__(self, token_id: int) -> bool:
        """Whether the answer ends with this token; every criterion is asked."""
        self._ids = torch.cat((self._ids, self._ids.new_tensor([[token_id]])), 1)
        answers = [self._ask(criterion) for criterion in self._criteria]
        return any(answers)

    def _ask(self, criterion: Any) -> bool:
        index, count = self._row.index, self._row.count
        if count == 1 or type(criterion) in ROW_WISE:
            return self._read(criterion, 1, 0)
        return self._read(criterion, count, index)

    def _read(self, criterion: Any, count: int, index: int) -> bool:
        """Its answer for one of `count` equal rows."""
        ids = self._ids.repeat(count, 1)
        given = criterion(ids, self._scores(count))
        answers = torch.as_tensor(given).reshape(-1).tolist()
        if len(answers) not in (1, count):
            raise ConfigError(
                f"the stopping criterion {type(criterion).__name__} gave {len(answers)} answers for {count} "
                "rows; it must return a bool tensor with one a row"
            )
        return bool(answers[0] if len(answers) == 1 else answers[index])

    def _scores(self, count: int) -> tuple[Tensor, ...] | None:
        if self._kept is None:
            return None
        return tuple(s.expand(count, -1) for s in self._kept.until(self._ids.shape[1]))
