"""What is taught is what the target says, whatever it does to its logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import CohereConfig, Gemma2Config, LlamaConfig, PhiConfig

from foredraft.drafters.eagle.ends import TargetEnds
from foredraft.train.taught import Taught
from tests.tiny_models import SMALL, VOCAB_SIZE, build

IDS = torch.arange(2, VOCAB_SIZE, 5)
TARGETS: dict[str, Callable[[], Any]] = {
    "plain": lambda: build(LlamaConfig(**SMALL)),
    "multiplied": lambda: build(CohereConfig(**SMALL, logit_scale=0.3)),
    "capped": lambda: build(Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=2.0)),
    "shifted": lambda: build(PhiConfig(**SMALL | {"num_key_value_heads": 4})),
}


@torch.no_grad()
@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "some"])
@pytest.mark.parametrize("name", TARGETS)
def test_logits_are_the_targets_own(name: str, ids: torch.Tensor | None) -> None:
    model = TARGETS[name]()
    if name == "shifted":
        torch.nn.init.normal_(model.lm_head.bias)
    output = model(torch.tensor([[3, 5, 8, 13]]), output_hidden_states=True)
    taught = Taught.of(TargetEnds.of(model), ids)
    expected = output.logits if ids is None else output.logits[..., ids]
    torch.testing.assert_close(taught.logits(output.hidden_states[-1]), expected)
    assert taught.known.nonzero()[:, 0].tolist() == list(range(VOCAB_SIZE) if ids is None else ids)


def test_rows_of_all_tokens_are_the_targets_own_memory() -> None:
    model = TARGETS["plain"]()
    taught = Taught.of(TargetEnds.of(model), None)
    assert taught.rows.data_ptr() == model.lm_head.weight.data_ptr()
    assert not taught.rows.requires_grad
