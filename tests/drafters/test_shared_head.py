"""A pass of a head over rows of several texts is what each text's own pass would be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foredraft import Engine
from foredraft.backends.hf import HFTarget
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.drafters.eagle.head import EagleHead
from foredraft.engine.batch import Batch
from foredraft.methods import parse_method
from tests.drafters.eagle_rounds import make_head
from tests.tiny_models import tiny_llama

MODEL = tiny_llama()
TARGET = HFTarget(MODEL)
PROMPTS = ([5, 6], [7, 8, 9] * 6, [3, 14, 15, 92, 6, 5, 35], [50, 51, 90, 91])


def engine(kind: str, method: str) -> Engine:
    parts = parse_method(method).build(make_head(MODEL, kind))
    return Engine(TARGET, parts.drafter, parts.policy, parts.verifier)


@pytest.mark.parametrize("method", ["eagle-chain-3", "eagle", "eagle2:depth=3:nodes=6"])
@pytest.mark.parametrize("kind", ["eagle3", "eagle1", "reduced"])
def test_drafts_are_those_of_each_text_alone(kind: str, method: str) -> None:
    """Reduced heads, too, to whose vocabulary each text adds its own words."""
    made = engine(kind, method)
    alone = [made.generate(p, max_new_tokens=20) for p in PROMPTS]
    together = made.generate_batch(PROMPTS, max_new_tokens=20)
    for mine, its in zip(together, alone, strict=True):
        assert mine.token_ids == its.token_ids
        assert [(r.widths, r.num_accepted, r.draft_rows) for r in mine.stats.rounds] == [
            (r.widths, r.num_accepted, r.draft_rows) for r in its.stats.rounds
        ]


def test_a_level_of_all_drafts_is_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine("eagle3", "eagle-chain-3")
    batch = Batch(TARGET)
    for prompt in PROMPTS:
        batch.join(made.stream(prompt, max_new_tokens=40, ignore_eos=True))
    batch.round()
    rows: list[int] = []
    real = EagleHead.step

    def watched(self: EagleHead, embeds: torch.Tensor, *rest: Any) -> torch.Tensor:
        rows.append(embeds.shape[1])
        return real(self, embeds, *rest)

    monkeypatch.setattr(EagleHead, "step", watched)
    batch.round()
    assert rows[1:] == [4, 4]
    assert rows[0] >= 4  # the first pass of a round catches up
    batch.close()


def test_heads_of_two_drafters_are_served_apart() -> None:
    """Streams of several engines share the target's passes, and each head's own."""
    first, second = engine("eagle3", "eagle-chain-3"), engine("eagle1", "eagle-chain-2")
    assert isinstance(first.drafter, EagleDrafter)
    made = [first, second, first, second]
    alone = [e.generate(p, max_new_tokens=12).token_ids for e, p in zip(made, PROMPTS, strict=True)]
    batch = Batch(TARGET)
    streams = [e.stream(p, max_new_tokens=12) for e, p in zip(made, PROMPTS, strict=True)]
    for stream in streams:
        batch.join(stream)
    while len(batch):
        assert all(progress.error is None for progress in batch.round())
    assert [stream.result().token_ids for stream in streams] == alone
