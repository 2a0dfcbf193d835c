"""Padding is taken off each row; what is not padding on the left is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft.errors import PromptError
from foredraft.hf.rows import read_rows


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(0, 9),
)
def test_rows_are_their_prompts(prompts: list[list[int]], more: int, pad: int) -> None:
    """Whatever the pad token is, and where prompts hold it too."""
    length = max(map(len, prompts)) + more
    ids = torch.tensor([[pad] * (length - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (length - len(p)) + [1] * len(p) for p in prompts])
    rows = read_rows(ids, mask, mask.cumsum(-1) - 1)
    assert [list(row.prompt_ids) for row in rows] == prompts
    assert [row.padding.shape for row in rows] == [(1, length - len(p)) for p in prompts]
    assert [(row.index, row.count) for row in rows] == [(i, len(prompts)) for i in range(len(rows))]


def test_without_a_mask_all_is_prompt() -> None:
    (row,) = read_rows(torch.tensor([[0, 0, 5]]), None)
    assert row.prompt_ids == (0, 0, 5)
    assert row.padding.shape == (1, 0)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ([[1, 1, 1], [1, 1, 0]], "row 1 of the batch has padding on its right"),
        ([[1, 0, 1], [1, 1, 1]], "row 0 of the batch has a hole"),
        ([[0, 1, 1], [0, 0, 0]], "row 1 of the batch has no token"),
        ([[1, 1, 1]], r"shape \[1, 3\]"),
    ],
)
def test_other_masks(mask: list[list[int]], words: str) -> None:
    with pytest.raises(PromptError, match=words):
        read_rows(torch.tensor([[5, 6, 7], [8, 9, 10]]), torch.tensor(mask))


@pytest.mark.parametrize(
    "positions", [[[3, 4, 5]], [[0, 1, 1]], [[0, 1]], [[[0, 1, 2]], [[0, 0, 0]]]]
)
def test_positions_of_their_own(positions: list[list[int]]) -> None:
    with pytest.raises(PromptError, match="leave them out"):
        read_rows(torch.tensor([[5, 6, 7]]), None, torch.tensor(positions))


def test_a_batch_without_rows_is_refused() -> None:
    with pytest.raises(PromptError, match="no rows"):
        read_rows(torch.zeros(0, 3, dtype=torch.long), None)
