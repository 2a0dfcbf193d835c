"""Drafts of a predicted length keep the target's law, with every verifier and proposal."""

from __future__ import annotations

import pytest

from foredraft import Engine, GenerationOptions
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.policies.dynamic import BudgetPolicy, DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.predicted_length import LengthRule, LengthShapedPolicy
from foredraft.policies.stopping import StoppingPolicy, all_of
from foredraft.policies.thresholds import CumulativeRule
from foredraft.protocols import Policy
from foredraft.tree import Proposal
from foredraft.verifiers import verifier
from tests.laws.engine_laws import LAW_ATOL, Reference, error_of, random_table, table_model
from tests.policies.length_nets import ScriptedLength, length_net, tapped

TARGET = random_table(vocab_size=3, order=1, seed=5)
DRAFT = random_table(vocab_size=3, order=1, seed=2)
FREE = GenerationOptions(temperature=1.0, max_new_tokens=3)
FILTERED = GenerationOptions(temperature=0.7, top_p=0.8, max_new_tokens=3)
PAIRS = [
    *[("exact", kind) for kind in Proposal],
    *[("rejection", k) for k in Proposal if k is not Proposal.COUPLED],
    *[("traversal", k) for k in (Proposal.SAMPLED, Proposal.RESAMPLED)],
]
CHAIN_PAIRS = [*PAIRS, ("block", Proposal.SAMPLED), ("block", Proposal.RESAMPLED)]


def rule() -> LengthRule:
    """0 to 2 tokens, by the last token but one and the length of the text."""
    return LengthRule(ScriptedLength(lambda token, place: (token + place) % 3, k_max=2))


def checked(
    name: str, kind: Proposal, policy: Policy, options: GenerationOptions, merge: bool = True
) -> None:
    drafter = DraftModelDrafter(table_model(DRAFT), kind)
    engine = Engine(tapped(TARGET), drafter, policy, verifier(name))
    assert error_of(engine, Reference(TARGET, options), merge=merge) < LAW_ATOL


@pytest.mark.parametrize(("name", "kind"), CHAIN_PAIRS)
def test_chains(name: str, kind: Proposal) -> None:
    checked(name, kind, StoppingPolicy(FixedPolicy("1,1"), rule()), FREE)


@pytest.mark.parametrize(("name", "kind"), CHAIN_PAIRS)
def test_the_form_with_a_threshold(name: str, kind: Proposal) -> None:
    both = all_of(rule(), CumulativeRule(-0.9))
    checked(name, kind, StoppingPolicy(FixedPolicy("1,1"), both), FREE)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_trees_of_a_k_config(name: str, kind: Proposal) -> None:
    checked(name, kind, StoppingPolicy(FixedPolicy("2,1"), rule()), FILTERED)


@pytest.mark.parametrize(
    ("name", "kind", "shape"),
    [
        ("exact", Proposal.COUPLED, DynamicTreePolicy(depth=2, nodes=3, top_k=2)),
        ("exact", Proposal.SAMPLED, DynamicTreePolicy(depth=2, nodes=3, top_k=2)),
        ("rejection", Proposal.SAMPLED, BudgetPolicy(nodes=4, depth=2, max_children=2)),
        ("traversal", Proposal.SAMPLED, BudgetPolicy(nodes=4, depth=2, max_children=2)),
    ],
    ids=lambda value: getattr(value, "value", value) if isinstance(value, Proposal | str) else None,
)
@pytest.mark.parametrize("spare", [0, 1])
def test_dynamic_trees(name: str, kind: Proposal, shape: Policy, spare: int) -> None:
    checked(name, kind, LengthShapedPolicy(shape, 2, rule(), spare), FILTERED)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("exact", Proposal.COUPLED), ("rejection", Proposal.SAMPLED), ("block", Proposal.SAMPLED)],
)
def test_a_net_that_remembers_earlier_rounds(name: str, kind: Proposal) -> None:
    net = length_net(arch="gru", hidden_size=2, taps=(0, 3), k_max=2, seed=3)
    policy = StoppingPolicy(FixedPolicy("1,1"), LengthRule(net))
    checked(name, kind, policy, FREE, merge=False)
