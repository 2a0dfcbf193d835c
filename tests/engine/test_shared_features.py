"""A policy and a drafter that both read the target's hidden states, each by its own taps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from foredraft import Engine, GenerationOptions
from foredraft.backends.hf import HFTarget
from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.eagle.drafter import EagleDrafter
from foredraft.errors import ConfigError
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import Drafter, DraftLimits, TakeFeatures
from tests.drafters.eagle_rounds import make_head, true_features
from tests.tiny_models import tiny_llama

PROMPT = [5, 9, 3, 7, 2]


class Reading(FixedPolicy):
    """A chain of two that keeps every feature it is given."""

    def __init__(self, *taps: int) -> None:
        super().__init__((1, 1))
        self.taps = taps
        self.seen: list[Tensor] = []

    def start_reading(self, take_features: TakeFeatures) -> Reading:
        self._take = take_features
        return self

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        self.seen.append(self._take())
        assert sum(map(len, self.seen)) == len(text) - 1
        return limits


@pytest.mark.parametrize("taps", [(0, 2), (2,), (1, 0)])
@pytest.mark.parametrize("kind", ["head", "draft model"])
def test_a_policy_reads_the_states_of_all_text_but_the_root(
    kind: str, taps: tuple[int, ...]
) -> None:
    model = tiny_llama()
    target, policy = HFTarget(model), Reading(*taps)
    drafter: Drafter = (
        EagleDrafter(make_head(model, "eagle3"))
        if kind == "head"
        else DraftModelDrafter(HFTarget(tiny_llama(seed=1)))
    )
    options = GenerationOptions(max_new_tokens=12, ignore_eos=True)
    answer = Engine(target, drafter, policy).generate(PROMPT, options)
    alone = Engine(target, drafter, FixedPolicy("1,1")).generate(PROMPT, options)
    assert answer.token_ids == alone.token_ids
    assert [r.num_accepted for r in answer.stats.rounds] == [
        r.num_accepted for r in alone.stats.rounds
    ]
    seen = torch.cat(policy.seen)
    text = [*PROMPT, *answer.token_ids][: len(seen)]
    torch.testing.assert_close(seen, true_features(model, text, taps), atol=2e-4, rtol=2e-4)


def test_a_target_that_shows_nothing_is_refused() -> None:
    target = TableModel(torch.full((4, 4), 0.25))
    with pytest.raises(ConfigError, match="Reading reads the target's hidden states"):
        Engine(target, DraftModelDrafter(target), Reading(0))
