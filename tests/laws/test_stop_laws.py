"""Drafts that stop rules end keep the target's law, with every verifier and proposal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from foredraft import ConfigError, Engine, GenerationOptions
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.policies.dynamic import BudgetPolicy, DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.schedules import ConstantRule, GammaTuneRule, HeuristicRule
from foredraft.policies.static_tree import StaticTreePolicy
from foredraft.policies.stopping import StoppingPolicy, StopRule, all_of, any_of
from foredraft.policies.thresholds import (
    AdaEdlRule,
    BeamRule,
    ConfidenceRule,
    CumulativeRule,
    SvipRule,
)
from foredraft.protocols import Frontier, Policy, PolicyKind, RoundOutcome
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
FREE = GenerationOptions(temperature=1.0, max_new_tokens=3)
PAIRS = [
    *[("exact", kind) for kind in Proposal],
    *[("rejection", k) for k in Proposal if k is not Proposal.COUPLED],
    *[("traversal", k) for k in (Proposal.SAMPLED, Proposal.RESAMPLED)],
]
CHAIN_PAIRS = [*PAIRS, ("block", Proposal.SAMPLED), ("block", Proposal.RESAMPLED)]

BELIEFS: dict[str, StopRule] = {
    "confidence": ConfidenceRule(0.4),
    "cumulative": CumulativeRule(-1.0),
    "ddd": BeamRule(-0.8, (1, 2)),
    "svip": SvipRule(0.39),
    "adaedl": AdaEdlRule(0.55, step=0.0),
    "all": all_of(ConfidenceRule(0.5), SvipRule(0.39)),
    "any": any_of(ConfidenceRule(0.3), all_of(ConstantRule(1), CumulativeRule(-0.7))),
}
"""Rules that remember nothing of earlier rounds; each stops some nodes of these drafts and not others."""
LEARNERS: dict[str, StopRule] = {
    "adaedl": AdaEdlRule(0.5, inertia=0.0, step=0.2, longest=2),
    "heuristic": HeuristicRule(1, longest=2),
    "gammatune": GammaTuneRule(1, longest=2),
    "joined": any_of(HeuristicRule(1), ConfidenceRule(0.3)),
}


class Noted:
    """A rule whose answers behind the root are kept."""

    def __init__(self, rule: StopRule) -> None:
        self._rule = rule
        self.said: set[bool] = set()

    def start(self) -> NotedState:
        return NotedState(self._rule, self.said)


class NotedState:
    def __init__(self, rule: StopRule, said: set[bool]) -> None:
        self._state, self._said = rule.start(), said

    def begin(self, text: Sequence[int]) -> None:
        self._state.begin(text)

    def going_on(self, frontier: Frontier) -> Sequence[bool]:
        answers = list(self._state.going_on(frontier))
        self._said |= set(answers) if frontier.depth else set()
        return answers

    def observe(self, outcome: RoundOutcome) -> None:
        self._state.observe(outcome)


def engine(name: str, kind: Proposal, shape: Policy, rule: StopRule) -> Engine:
    drafter = DraftModelDrafter(table_model(DRAFT), kind)
    return Engine(table_model(TARGET), drafter, StoppingPolicy(shape, rule), verifier(name))


@pytest.mark.parametrize("rule", BELIEFS)
@pytest.mark.parametrize(("name", "kind"), CHAIN_PAIRS)
def test_chains(name: str, kind: Proposal, rule: str) -> None:
    made = engine(name, kind, FixedPolicy("1,1"), BELIEFS[rule])
    assert error_of(made, Reference(TARGET, FREE)) < LAW_ATOL


@pytest.mark.parametrize("rule", ["confidence", "ddd", "adaedl", "any"])
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_trees(name: str, kind: Proposal, rule: str) -> None:
    made = engine(name, kind, FixedPolicy("2,1"), BELIEFS[rule])
    assert error_of(made, Reference(TARGET, FILTERED)) < LAW_ATOL


@pytest.mark.parametrize("rule", LEARNERS)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("exact", Proposal.COUPLED),
        ("rejection", Proposal.SAMPLED),
        ("block", Proposal.SAMPLED),
        ("traversal", Proposal.RESAMPLED),
    ],
)
def test_rules_that_learn_from_earlier_rounds(name: str, kind: Proposal, rule: str) -> None:
    """The law of each round may hang on all that was accepted before."""
    made = engine(name, kind, FixedPolicy("1,1"), LEARNERS[rule])
    assert error_of(made, Reference(TARGET, FREE), merge=False) < LAW_ATOL


@pytest.mark.parametrize("rule", BELIEFS)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("exact", Proposal.COUPLED),
        ("rejection", Proposal.SAMPLED),
        ("block", Proposal.RESAMPLED),
        ("traversal", Proposal.SAMPLED),
    ],
)
def test_stops_that_hang_on_the_tokens_drawn(name: str, kind: Proposal, rule: str) -> None:
    """Three levels: behind some tokens the draft goes on and behind others it does not."""
    noted = Noted(BELIEFS[rule])
    options = GenerationOptions(temperature=1.0, max_new_tokens=4)
    made = engine(name, kind, FixedPolicy("1,1,1"), noted)
    assert error_of(made, Reference(TARGET, options)) < LAW_ATOL
    assert noted.said == {True, False}


@pytest.mark.parametrize(
    ("name", "kind", "shape"),
    [
        ("exact", Proposal.COUPLED, DynamicTreePolicy(depth=2, nodes=3, top_k=2)),
        ("exact", Proposal.SAMPLED, DynamicTreePolicy(depth=2, nodes=3, top_k=2)),
        ("rejection", Proposal.SAMPLED, BudgetPolicy(nodes=4, depth=2, max_children=2)),
        ("traversal", Proposal.SAMPLED, BudgetPolicy(nodes=4, depth=2, max_children=2)),
        ("rejection", Proposal.SAMPLED, StaticTreePolicy([[0], [1], [1, 0]])),
    ],
    ids=lambda value: getattr(value, "value", value) if isinstance(value, Proposal | str) else None,
)
def test_other_shapes(name: str, kind: Proposal, shape: Policy) -> None:
    made = engine(name, kind, shape, BELIEFS["confidence"])
    assert error_of(made, Reference(TARGET, FILTERED)) < LAW_ATOL


def test_a_shape_that_selects_is_still_refused_by_other_verifiers() -> None:
    with pytest.raises(ConfigError, match="selects among drawn tokens"):
        engine("rejection", Proposal.SAMPLED, DynamicTreePolicy(), BELIEFS["confidence"])


# --- the control ------------------------------------------------------------------------------------


class Discarding(StoppingPolicy):
    """Drops the token after which its rule stops: "stop before the unlikely token" as a sampled draft."""

    def start(self) -> DiscardingState:  # type: ignore[override]
        return DiscardingState(self.shape.start(), ConfidenceRule(0.4))


class DiscardingState:
    """Grows a whole chain of one, then selects as if it had not been drawn."""

    max_candidates = 1

    def __init__(self, shape: object, rule: ConfidenceRule) -> None:
        self.plan, self.grow, self.observe = shape.plan, shape.grow, shape.observe  # type: ignore[attr-defined]
        self._least = np.log(rule.threshold)

    def select(self, candidates: object, max_nodes: int) -> Sequence[int]:
        scores: Sequence[float] = candidates.scores  # type: ignore[attr-defined]
        return [1] if len(scores) > 1 and scores[1] >= self._least else []


@pytest.mark.parametrize("name", ["rejection", "block", "traversal"])
def test_dropping_the_token_that_a_rule_stops_at_is_caught(name: str) -> None:
    policy = Discarding(FixedPolicy("1"), BELIEFS["confidence"])
    drafter = DraftModelDrafter(table_model(DRAFT), Proposal.SAMPLED)
    broken = Engine(table_model(TARGET), drafter, policy, verifier(name))
    policy.kind = PolicyKind.SELECTS  # which the engine asked for when it was built
    assert error_of(broken, Reference(TARGET, FREE)) > BREAK
