"""Restored rows are computed rows, whatever the texts, the windows, the taps and the memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from foredraft.backends.hf import HFState, HFTarget
from foredraft.backends.kv_cache import BLOCK_ROWS
from tests.tiny_models import TREE_MODELS, VOCAB_SIZE, tiny_bloom, tiny_gpt_neo, tiny_llama

PLENTY = 64.0
TREE, TREE_PARENTS = (11, 12, 13, 14, 15, 16), (-1, 0, 0, 1, 2, 2)
ATOL = 1e-5
MODEL = tiny_llama()


def words(length: int, seed: int = 0) -> list[int]:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=random).tolist()


def logits_after(state: HFState, text: Sequence[int]) -> Tensor:
    """Read a text but its last token, then score a tree behind it."""
    state.prefill(text[:-1])
    parents = (-1, 0, 0, 1) if state._target.scores_trees else (-1, 0, 1, 2)
    return state.score([text[-1], 7, 8, 9], parents)


def known(target: HFTarget, text: Sequence[int], taps: Sequence[int] = ()) -> int:
    assert target.prefix_cache is not None
    return len(target.prefix_cache.find(text, taps)) * BLOCK_ROWS


@pytest.mark.parametrize("name", [*TREE_MODELS, "bloom", "gpt-neo"])
def test_every_shared_length_scores_as_a_cold_start(name: str) -> None:
    """Windows of 8, smaller than a block, among them: what slid out is restored where it is needed."""
    makes = TREE_MODELS | {"bloom": tiny_bloom, "gpt-neo": lambda: tiny_gpt_neo(64)}
    model = makes[name]()
    cold, first = HFTarget(model), words(50)
    for shared in range(0, 51, 5):
        warm = HFTarget(model, prefix_cache_mb=PLENTY)
        before = warm.start(64)
        before.prefill(first)
        before.close()
        text = first[:shared] + words(30, seed=1)
        state = warm.start(64)
        found = logits_after(state, text)
        torch.testing.assert_close(found, logits_after(cold.start(64), text), atol=1e-4, rtol=1e-4)
        assert state.restored == shared // BLOCK_ROWS * BLOCK_ROWS
        assert state.length == len(text) - 1
