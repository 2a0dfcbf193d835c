"""What is taught is what the target says, whatever it does to its logits."""

from __future__ import annotations

import pytest
import torch

from foredraft.drafters.eagle.ends import TargetEnds
from foredraft.train.taught import Taught
from tests.tiny_models import FINISHED_MODELS, VOCAB_SIZE, tiny_llama

TARGETS = {"plain": tiny_llama, **FINISHED_MODELS}
IDS = torch.arange(2, VOCAB_SIZE, 5)


@torch.no_grad()
@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "some"])
@pytest.mark.parametrize("name", TARGETS)
def test_logits_are_the_targets_own(name: str, ids: torch.Tensor | None) -> None:
    model = TARGETS[name]()
    output = model(torch.tensor([[3, 5, 8, 13]]), output_hidden_states=True)
    taught = Taught.of(TargetEnds.of(model), ids)
    expected = output.logits if ids is None else output.logits[..., ids]
    torch.testing.assert_close(taught.logits(output.hidden_states[-1]), expected)
    assert taught.known.nonzero()[:, 0].tolist() == list(range(VOCAB_SIZE) if ids is None else ids)


def test_rows_of_all_tokens_are_the_targets_own_memory() -> None:
    model = tiny_llama()
    taught = Taught.of(TargetEnds.of(model), None)
    assert taught.rows.data_ptr() == model.lm_head.weight.data_ptr()
    assert not taught.rows.requires_grad
