"""Drafting from the target's own earlier laws leaves the output law as it is, whatever was remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.recall import RecallWeights
from foredraft.policies.fixed import FixedPolicy
from foredraft.tree import Proposal
from tests.laws.engine_laws import LAW_ATOL, Reference, error_of, random_table, table_model
from tests.laws.test_engine_law import REQUESTS, engine_of

TARGET = random_table(vocab_size=3, order=2, seed=1)
DRAFT = random_table(vocab_size=3, order=1, seed=2)

PAIRS = [
    ("rejection", Proposal.SAMPLED),
    ("rejection", Proposal.RESAMPLED),
    ("traversal", Proposal.SAMPLED),
    ("exact", Proposal.DETERMINISTIC),
]


def recalling(kind: Proposal) -> DraftModelDrafter:
    return DraftModelDrafter(table_model(DRAFT), kind, recall=RecallWeights(0.7, 0.5, 0.4))


@pytest.mark.parametrize("request_name", ["filtered", "penalised"])
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_recalled_drafts_keep_the_targets_law(name: str, kind: Proposal, request_name: str) -> None:
    """Three tokens take up to three rounds; the later ones draft from what the earlier ones scored. Rounds
    that led to the same text are not merged, for they remember different things."""
    engine = engine_of(name, recalling(kind), FixedPolicy("2"), TARGET)
    options = replace(REQUESTS[request_name], max_new_tokens=3)
    assert error_of(engine, Reference(TARGET, options), merge=False) < LAW_ATOL
