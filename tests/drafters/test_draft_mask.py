"""The kept mask is the one that would be built anew, whatever was asked for before."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.eagle.draft_mask import DraftMask

LEVEL = st.tuples(st.integers(1, 5), st.integers(0, 7), st.integers(0, 400), st.integers(0, 99))


@given(levels=st.lists(LEVEL, min_size=1, max_size=12), groups=st.integers(1, 3))
def test_every_mask_is_as_if_it_were_the_first(
    levels: list[tuple[int, int, int, int]], groups: int
) -> None:
    kept = DraftMask(groups, torch.device("cpu"), torch.float32)
    for count, more, text, seed in levels:
        random = torch.Generator().manual_seed(seed)
        rows = torch.rand(count, count + more, generator=random) < 0.5
        seen = torch.cat([torch.ones(count, text, dtype=torch.bool), rows], -1).repeat(groups, 1)
        expected = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
        assert torch.equal(kept.of(rows, text), expected)
