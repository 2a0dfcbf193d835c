"""Drafting from the target's own earlier laws leaves the output law as it is, whatever was remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from foredraft.backends.table import TableModel, TableState
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.recall import Recall, RecallWeights
from foredraft.policies.fixed import FixedPolicy
from foredraft.tree import Proposal, TreeBuilder
from tests.laws.engine_laws import BREAK, LAW_ATOL, Reference, error_of, random_table, table_model
from tests.laws.test_engine_law import REQUESTS, engine_of

TARGET = random_table(vocab_size=3, order=2, seed=1)
DRAFT = random_table(vocab_size=3, order=1, seed=2)

PAIRS = [
    ("rejection", Proposal.SAMPLED),
    ("rejection", Proposal.RESAMPLED),
    ("traversal", Proposal.SAMPLED),
    ("exact", Proposal.DETERMINISTIC),
]


SHARES = RecallWeights(0.7, 0.5, 0.4)


def recalling(kind: Proposal, shares: RecallWeights = SHARES) -> DraftModelDrafter:
    return DraftModelDrafter(table_model(DRAFT), kind, recall=shares)


@pytest.mark.parametrize("request_name", ["filtered", "penalised"])
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_recalled_drafts_keep_the_targets_law(name: str, kind: Proposal, request_name: str) -> None:
    """Three tokens take up to three rounds; the later ones draft from what the earlier ones scored. Rounds
    that led to the same text are not merged, for they remember different things."""
    engine = engine_of(name, recalling(kind), FixedPolicy("2"), TARGET)
    options = replace(REQUESTS[request_name], max_new_tokens=3)
    assert error_of(engine, Reference(TARGET, options), merge=False) < LAW_ATOL


@pytest.mark.parametrize("kind", [Proposal.SAMPLED, Proposal.RESAMPLED])
def test_deeper_recalled_drafts_keep_the_targets_law(kind: Proposal) -> None:
    """Two levels, so that a memory is read at nodes that the same draft has drawn."""
    engine = engine_of("rejection", recalling(kind), FixedPolicy("2,1"), TARGET)
    options = replace(REQUESTS["plain"], max_new_tokens=3)
    assert error_of(engine, Reference(TARGET, options), merge=False) < LAW_ATOL


def test_a_reduced_vocabulary_recalls_and_keeps_the_law() -> None:
    """The drafter has two of the three tokens, in another order."""
    ids = torch.tensor([2, 0])
    drafter = DraftModelDrafter(
        _Reduced(table_model(DRAFT), ids), Proposal.SAMPLED, ids, recall=SHARES
    )
    engine = engine_of("rejection", drafter, FixedPolicy("2"), TARGET)
    options = replace(REQUESTS["filtered"], max_new_tokens=3)
    assert error_of(engine, Reference(TARGET, options), merge=False) < LAW_ATOL


def test_a_law_that_leaves_the_recalled_share_out_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The negative control: drafts drawn from the mixture whose drafter reports its own law instead."""
    blend, own = Recall.blend, {}

    def remembering(self: Recall, logits: Tensor, *rest: Any) -> Tensor:
        own["logits"] = logits
        return blend(self, logits, *rest)

    def set_own_law(self: TreeBuilder, node: int, law: Tensor) -> None:
        self._laws[node] = own["logits"][0].double().softmax(-1)

    monkeypatch.setattr(Recall, "blend", remembering)
    monkeypatch.setattr(TreeBuilder, "set_law", set_own_law)
    drafter = recalling(Proposal.SAMPLED, RecallWeights(0.9, 0.9, 0.9))
    engine = engine_of("rejection", drafter, FixedPolicy("1"), TARGET)
    options = replace(REQUESTS["plain"], max_new_tokens=4)
    assert error_of(engine, Reference(TARGET, options), merge=False) > BREAK


class _Reduced:
    """A model whose logits have the columns of some tokens alone."""

    def __init__(self, model: TableModel, ids: Tensor) -> None:
        self._model, self._ids = model, ids
        self.vocab_size, self.device = model.vocab_size, model.device
        self.context_length, self.eos_token_ids = None, ()
        self.scores_trees = True

    def start(self, capacity: int) -> _ReducedState:
        return _ReducedState(self._model.start(capacity), self._ids)

    def synchronize(self) -> None:
        """Nothing to wait for."""


class _ReducedState:
    def __init__(self, state: TableState, ids: Tensor) -> None:
        self._state, self._ids = state, ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        return self._state.score(token_ids, parents)[:, self._ids]
