"""The sequences of the batch that `generate` hands over, without their padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.errors import PromptError


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of the batch.

    Attributes:
        index: its place in the batch.
        count: B, the rows of the batch.
        padding: int64 [1, P], the ids to the left of its prompt.
        prompt_ids: [T - P] tokens.
    """

    index: int
    count: int
    padding: Tensor
    prompt_ids: tuple[int, ...]


def read_rows(
    input_ids: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None = None
) -> list[Row]:
    """The rows of a batch.

    Args:
        input_ids: int64 [B, T].
        attention_mask: [B, T], 0 where a row is padded; None where none is.
        position_ids: [B, T] or [.., B, T], as `generate` counts them; None leaves them to the model.

    Raises:
        PromptError: a row is empty or padded elsewhere than on its left, or has positions of its own.
    """
    if not len(input_ids):
        raise PromptError("the batch has no rows; give one prompt at least")
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    if mask.shape != input_ids.shape:
        raise PromptError(
            f"attention_mask is of shape {list(mask.shape)} and input_ids of {list(input_ids.shape)}; "
            "give both for the same tokens"
        )
    mask = mask != 0
    _check_mask(mask)
    if position_ids is not None:
        _check_positions(position_ids, mask)
    count = len(input_ids)
    return [
        Row(index, count, row[: len(row) - kept][None], tuple(row[len(row) - kept :].tolist()))
        for index, (row, kept) in enumerate(zip(input_ids, mask.sum(1).tolist(), strict=True))
    ]


def _check_mask(mask: Tensor) -> None:
    for index, kept in enumerate(mask.tolist()):
        if not any(kept):
            raise PromptError(
                f"row {index} of the batch has no token; give a prompt with one at least"
            )
        if not all(kept[kept.index(True) :]):
            side = "a hole in it" if kept[-1] else "padding on its right"
            raise PromptError(
                f"row {index} of the batch has {side}; pad on the left alone (tokenizer.padding_side='left')"
            )


def _check_positions(position_ids: Tensor, mask: Tensor) -> None:
    counted = mask.long().cumsum(-1) - 1
    given = position_ids.to(mask.device)
    fits = given.shape[-2:] == mask.shape or given.shape[-1:] == mask.shape[-1:]
    if not fits or bool(((given != counted) & mask).any()):
        raise PromptError(
            "position_ids do not count the tokens of each row from 0; leave them out, as the positions of "
            "drafts are counted from the prompt's"
        )
