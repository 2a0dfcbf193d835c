"""Copies merged with a model's tree keep the target's law, whatever is drafted, dropped or counted twice."""

from __future__ import annotations

import pytest

from foredraft import ConfigError, Engine, GenerationOptions
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.hybrid import HybridDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.policies.dynamic import BudgetPolicy, DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.merging import MergingPolicy
from foredraft.protocols import Policy, PolicyKind
from foredraft.tree import Proposal
from foredraft.verifiers import verifier
from tests.laws.engine_laws import (
    BREAK,
    LAW_ATOL,
    Reference,
    error_of,
    random_table,
    table_model,
)

TARGET = random_table(vocab_size=3, order=1, seed=5)
DRAFT = random_table(vocab_size=3, order=1, seed=2)
FILTERED = GenerationOptions(temperature=0.7, top_p=0.8, max_new_tokens=3)
PENALISED = GenerationOptions(
    temperature=0.7, repetition_penalty=1.5, frequency_penalty=0.8, max_new_tokens=3
)
ENDING = GenerationOptions(temperature=0.7, eos_token_ids=[1], max_new_tokens=3)
SHAPES: dict[str, tuple[Policy, Policy]] = {
    "chains": (FixedPolicy.chain(2), FixedPolicy.chain(2)),
    "trees": (FixedPolicy("2,1"), FixedPolicy("2,1")),
    "selected": (DynamicTreePolicy(2, 2, 2), DynamicTreePolicy(2, 2, 2)),
    "budget": (BudgetPolicy(3, 2), BudgetPolicy(3, 2, reads_laws=False)),
}


def engine(kind: Proposal, policy: MergingPolicy, name: str = "exact") -> Engine:
    drafter = HybridDrafter(DraftModelDrafter(table_model(DRAFT), kind), NgramDrafter(1, 2))
    return Engine(table_model(TARGET), drafter, policy, verifier(name))


@pytest.mark.parametrize("kind", list(Proposal), ids=lambda kind: kind.value)
@pytest.mark.parametrize("shape", SHAPES)
def test_hybrid_drafts(shape: str, kind: Proposal) -> None:
    policy = MergingPolicy(*SHAPES[shape])
    assert error_of(engine(kind, policy), Reference(TARGET, FILTERED)) < LAW_ATOL


@pytest.mark.parametrize("options", [PENALISED, ENDING], ids=["penalised", "ending"])
@pytest.mark.parametrize("shape", ["trees", "selected"])
def test_hybrid_drafts_of_other_requests(shape: str, options: GenerationOptions) -> None:
    policy = MergingPolicy(*SHAPES[shape])
    assert error_of(engine(Proposal.COUPLED, policy), Reference(TARGET, options)) < LAW_ATOL


class Disguised(MergingPolicy):
    """Says that it only grows."""

    kind = PolicyKind.GROWS


def test_rejection_refuses_hybrid_drafts() -> None:
    with pytest.raises(ConfigError, match="selects among drawn tokens"):
        engine(Proposal.SAMPLED, MergingPolicy(*SHAPES["trees"]), "rejection")


def test_a_hybrid_draft_forced_through_breaks_the_law() -> None:
    """The control: of two equal draws that become one node, one loses its trial for what it is."""
    policy = Disguised(FixedPolicy("3"), FixedPolicy("1"))
    forced = engine(Proposal.RESAMPLED, policy, "rejection")
    policy.kind = MergingPolicy.kind  # type: ignore[misc] # which the engine asked for when it was built
    options = GenerationOptions(temperature=0.5, max_new_tokens=2)
    assert error_of(forced, Reference(TARGET, options)) > BREAK / 2
