"""Trees that follow the draft law, and drafters of part of the vocabulary, keep the target's law."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from foredraft import ConfigError, Engine, GenerationOptions
from foredraft.backends.table import TableModel, TableState
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.policies.dynamic import BudgetPolicy, DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.static_tree import StaticTreePolicy
from foredraft.protocols import Policy
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
IRREGULAR = StaticTreePolicy([[0], [1], [1, 0]])
TREE_PAIRS = [
    *[("exact", kind) for kind in Proposal],
    *[("rejection", k) for k in Proposal if k is not Proposal.COUPLED],
    *[("traversal", k) for k in (Proposal.SAMPLED, Proposal.RESAMPLED)],
]
any_tree_pair = pytest.mark.parametrize(("name", "kind"), TREE_PAIRS)


class Part(TableModel):
    """A draft model that reads the target's ids and has a head for some of them."""

    def __init__(self, table: np.ndarray, target_ids: Sequence[int]) -> None:
        super().__init__(torch.from_numpy(table))
        self.target_ids = torch.tensor(target_ids)

    def start(self, capacity: int) -> TableState:
        return PartState(self)


class PartState(TableState):
    def __init__(self, model: Part) -> None:
        super().__init__(model)
        self._ids = model.target_ids

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        return super().score(token_ids, parents)[:, self._ids]


def engine(name: str, kind: Proposal, policy: Policy, ids: Sequence[int] | None = None) -> Engine:
    if ids is None:
        drafter = DraftModelDrafter(table_model(DRAFT), kind)
    else:
        drafter = DraftModelDrafter(Part(DRAFT, ids), kind)
    return Engine(table_model(TARGET), drafter, policy, verifier(name))


# --- policies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [FILTERED, PENALISED], ids=["filtered", "penalised"])
@pytest.mark.parametrize("kind", [Proposal.DETERMINISTIC, Proposal.COUPLED])
@pytest.mark.parametrize("nodes", [1, 3])
def test_dynamic_trees(kind: Proposal, nodes: int, options: GenerationOptions) -> None:
    policy = DynamicTreePolicy(depth=2, nodes=nodes, top_k=2)
    assert error_of(engine("exact", kind, policy), Reference(TARGET, options)) < LAW_ATOL


@pytest.mark.parametrize("kind", [Proposal.SAMPLED, Proposal.RESAMPLED])
def test_dynamic_trees_of_sampled_children(kind: Proposal) -> None:
    """Selected among drawn tokens: exact verification does not care."""
    policy = DynamicTreePolicy(depth=2, nodes=2, top_k=2)
    assert error_of(engine("exact", kind, policy), Reference(TARGET, FILTERED)) < LAW_ATOL


@pytest.mark.parametrize("name", ["rejection", "traversal"])
def test_dynamic_trees_are_refused_by_the_others(name: str) -> None:
    with pytest.raises(ConfigError, match="selects among drawn tokens"):
        engine(name, Proposal.SAMPLED, DynamicTreePolicy())


class Disguised(DynamicTreePolicy):
    """Says that it only grows."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kind = FixedPolicy.kind  # type: ignore[misc]


@pytest.mark.parametrize("name", ["rejection", "traversal"])
def test_a_dynamic_tree_forced_through_breaks_the_law(name: str) -> None:
    """The control: dropping drawn tokens for what they are is seen by these tests."""
    policy = Disguised(1, 1, 2)  # the likelier of two drawn tokens
    options = GenerationOptions(temperature=0.7, max_new_tokens=2)
    broken = engine(name, Proposal.SAMPLED, policy)
    policy.kind = DynamicTreePolicy.kind  # which the engine asked for when it was built
    assert error_of(broken, Reference(TARGET, options)) > BREAK


@any_tree_pair
@pytest.mark.parametrize("reads", [True, False])
def test_budgets(name: str, kind: Proposal, reads: bool) -> None:
    policy = BudgetPolicy(nodes=4, depth=2, max_children=2, reads_laws=reads)
    assert error_of(engine(name, kind, policy), Reference(TARGET, FILTERED)) < LAW_ATOL


@any_tree_pair
def test_irregular_trees(name: str, kind: Proposal) -> None:
    assert error_of(engine(name, kind, IRREGULAR), Reference(TARGET, FILTERED)) < LAW_ATOL


# --- reduced vocabularies ---------------------------------------------------------------------------


@any_tree_pair
@pytest.mark.parametrize("ids", [(0, 2), (2, 1)], ids=["sorted", "unsorted"])
def test_drafters_of_part_of_the_vocabulary(name: str, kind: Proposal, ids: Sequence[int]) -> None:
    made = engine(name, kind, FixedPolicy("2,1"), ids)
    options = GenerationOptions(temperature=0.7, top_p=0.8, max_new_tokens=3)
    assert error_of(made, Reference(TARGET, options)) < LAW_ATOL


@pytest.mark.parametrize("kind", [Proposal.SAMPLED, Proposal.RESAMPLED])
def test_block_verification_of_part_of_the_vocabulary(kind: Proposal) -> None:
    made = engine("block", kind, FixedPolicy("1,1"), (0, 2))
    assert error_of(made, Reference(TARGET, PENALISED)) < LAW_ATOL


def test_coupled_proposals_take_the_noise_of_the_tokens_they_stand_for() -> None:
    """The same law on both sides: on the tokens that it knows, a coupled draft is always accepted."""
    model = Part(TARGET, (2, 0))
    drafter = DraftModelDrafter(model, Proposal.COUPLED)
    made = Engine(table_model(TARGET), drafter, FixedPolicy.chain(1))
    result = made.generate([0, 1], max_new_tokens=200, temperature=1.0, seed=1)
    known = [r for r, token in zip(result.stats.rounds, firsts(result), strict=True) if token != 1]
    drafted = [r for r in known if r.num_drafted]
    assert len(drafted) > 50
    assert all(r.num_accepted == 1 for r in drafted)


def firsts(result: Any) -> list[int]:
    """The first token of each round."""
    tokens, place = [], 0
    for record in result.stats.rounds:
        tokens.append(result.token_ids[place])
        place += record.num_emitted
    return tokens
