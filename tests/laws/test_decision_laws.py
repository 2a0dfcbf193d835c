"""Drafts that a decision model cuts short keep the target's law, with every verifier and proposal."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from foredraft import Engine, GenerationOptions
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.policies.decision_model import DecisionPolicy
from foredraft.policies.decision_rules import KINDS, RULES, Kind, Rule
from foredraft.protocols import DraftLimits, Frontier
from foredraft.tree import Proposal
from foredraft.verifiers import verifier
from tests.laws.engine_laws import LAW_ATOL, PROMPT, Reference, error_of, random_table, table_model
from tests.policies.decision_models import ScriptedNet, net, showing

TARGET = random_table(vocab_size=3, order=1, seed=5)
DRAFT = random_table(vocab_size=3, order=1, seed=2)
FILTERED = GenerationOptions(temperature=0.7, top_p=0.8, max_new_tokens=3)
FREE = GenerationOptions(temperature=1.0, max_new_tokens=3)
PAIRS = [
    *[("exact", kind) for kind in Proposal],
    *[("rejection", k) for k in Proposal if k is not Proposal.COUPLED],
    *[("traversal", k) for k in (Proposal.SAMPLED, Proposal.RESAMPLED)],
]
CHAIN_PAIRS = [*PAIRS, ("block", Proposal.SAMPLED), ("block", Proposal.RESAMPLED)]


class Counting:
    """A policy that notes how deep its drafts were."""

    def __init__(self, policy: DecisionPolicy) -> None:
        self._policy = policy
        self.kind, self.branches, self.max_nodes = policy.kind, policy.branches, policy.max_nodes
        self.depths: set[int] = set()

    def start(self) -> Counting:
        self._state = self._policy.start()
        return self

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        return self._state.plan(limits, text)

    def grow(self, frontier: Frontier) -> list[int]:
        counts = list(self._state.grow(frontier))
        if any(counts):
            self.depths.add(frontier.depth + 1)
        else:
            self.depths.add(-frontier.depth)
        return counts

    def observe(self, outcome: object) -> None:
        pass


def checked(
    name: str, kind: Proposal, policy: DecisionPolicy, options: GenerationOptions
) -> set[int]:
    """The depths of the drafts of engines that keep the law; negative ones are stops."""
    counting = Counting(policy)
    drafter = DraftModelDrafter(showing(DRAFT), kind)
    engine = Engine(table_model(TARGET), drafter, counting, verifier(name))
    assert error_of(engine, Reference(TARGET, options)) < LAW_ATOL
    return counting.depths


@pytest.mark.parametrize("options", [FREE, FILTERED], ids=["free", "filtered"])
@pytest.mark.parametrize(("name", "kind"), CHAIN_PAIRS)
@pytest.mark.parametrize("reads", KINDS)
def test_chains(name: str, kind: Proposal, reads: Kind, options: GenerationOptions) -> None:
    depths = checked(name, kind, DecisionPolicy("1,1", net(reads, seed=4), threshold=0.5), options)
    assert 1 in depths


@pytest.mark.parametrize("shape", ["2,1", "2,2"])
@pytest.mark.parametrize(("name", "kind"), PAIRS)
@pytest.mark.parametrize("rule", RULES)
def test_forks_and_product_trees(name: str, kind: Proposal, shape: str, rule: Rule) -> None:
    policy = DecisionPolicy(
        shape, ScriptedNet(lambda row: 0.9 * (row[0] != 1)), threshold=0.5, rule=rule
    )
    checked(name, kind, policy, FILTERED)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("rejection", "1,1,1"), ("block", "1,1,1"), ("traversal", "1,1,1"), ("rejection", "2,1,1")],
)
def test_stops_that_hang_on_the_tokens_drawn(name: str, shape: str) -> None:
    """A third level is drafted behind some tokens of the first one and not behind others."""
    options = GenerationOptions(temperature=1.0, max_new_tokens=4)
    likely = ScriptedNet(lambda row: 0.9 * (row[0] == 2 or row[1] == len(PROMPT)))
    policy = DecisionPolicy(shape, likely, threshold=0.5)
    found = checked(name, Proposal.SAMPLED, policy, options)
    assert {1, 2, 3, -2} <= found
