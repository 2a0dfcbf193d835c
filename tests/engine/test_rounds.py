"""What a round records of itself is what happened: the context, the tree's widths, the drafter's passes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest

from foredraft import Engine
from foredraft.backends.hf import HFTarget
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.policies.fixed import FixedPolicy
from tests.tiny_models import tiny_llama

PROMPT = [5, 6, 7, 8, 9]


class Watched:
    """A model's memory that notes what each pass scored behind how many tokens."""

    def __init__(self, state: Any, seen: list[tuple[int, int]]) -> None:
        self._state, self._seen = state, seen
        self.prefill, self.commit, self.close = state.prefill, state.commit, state.close

    @property
    def length(self) -> int:
        return int(self._state.length)

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Any:
        self._seen.append((self.length, len(token_ids)))
        return self._state.score(token_ids, parents)


def watched(seed: int) -> tuple[HFTarget, list[tuple[int, int]]]:
    """A tiny model, and the (cached tokens, rows) of its passes as they come."""
    target, seen = HFTarget(tiny_llama(seed=seed)), []
    for name in ("start", "start_showing"):
        start = getattr(target, name)
        setattr(target, name, lambda capacity, start=start: Watched(start(capacity), seen))
    return target, seen


@pytest.mark.parametrize("tree", ["1", "1,1,1", "3,2", "2,2,1"])
@pytest.mark.parametrize("draft_seed", [0, 1])
def test_rounds_record_their_passes(tree: str, draft_seed: int) -> None:
    """A draft model that is the target's twin (all accepted), and another one (hardly any)."""
    target, passes = watched(seed=0)
    draft, draft_passes = watched(seed=draft_seed)
    engine = Engine(target, DraftModelDrafter(draft), FixedPolicy(tree))
    result = engine.generate(PROMPT, max_new_tokens=20, ignore_eos=True)
    rounds = result.stats.rounds
    assert [(r.context, sum(r.widths)) for r in rounds] == passes
    before = accumulate((r.num_emitted for r in rounds[:-1]), initial=len(PROMPT) - 1)
    assert [r.context for r in rounds] == list(before)
    assert [rows for r in rounds for rows in r.draft_rows] == [rows for _, rows in draft_passes]
    assert all(len(r.draft_rows) == r.depth for r in rounds)


def test_plain_rounds_have_one_node_and_no_draft_pass() -> None:
    target, passes = watched(seed=0)
    rounds = Engine(target).generate(PROMPT, max_new_tokens=4, ignore_eos=True).stats.rounds
    assert passes == [(4, 1), (5, 1), (6, 1), (7, 1)]
    assert [(r.context, r.widths, r.draft_rows) for r in rounds] == [
        (n, (1,), ()) for n in (4, 5, 6, 7)
    ]
