"""Columns of a reduced vocabulary, and when they are worked out."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.columns import Columns, LatestColumns

CPU = torch.device("cpu")


@given(
    ids=st.lists(st.integers(0, 30), min_size=1, max_size=20, unique=True),
    vocab_size=st.integers(1, 31),
)
def test_known_columns_are_those_of_tokens_that_the_target_has(
    ids: list[int], vocab_size: int
) -> None:
    columns = Columns.of(torch.tensor(ids), vocab_size)
    kept = [token for token in ids if token < vocab_size]
    assert columns.ids.tolist() == columns.tokens(range(len(kept))) == kept
    assert (columns.known is None) == (kept == ids)
    if columns.known is not None:
        assert columns.all_ids[columns.known].tolist() == kept


def test_they_are_worked_out_anew_for_another_vocabulary_alone() -> None:
    latest, ids = LatestColumns(), torch.tensor([3, 5, 9])
    first = latest.of(ids, 8, CPU)
    assert latest.of(ids, 8, CPU) is first
    wider = latest.of(torch.tensor([3, 5, 9, 1]), 8, CPU)
    assert wider is not None
    assert wider.tokens([2]) == [1]
    again = latest.of(ids, 10, CPU)
    assert again is not None
    assert again.tokens([2]) == [9]
    assert latest.of(None, 8, CPU) is None
