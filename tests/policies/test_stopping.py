"""A shape with a stop rule: the shape's counts, 0 where the rule stops, and rules joined to one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from foredraft import ConfigError
from foredraft.backends.table import TableModel
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.engine.contracts import check_selection
from foredraft.policies.dynamic import DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.stopping import (
    FeatureStopRule,
    StoppingPolicy,
    StopRule,
    all_of,
    any_of,
    narrowed,
)
from foredraft.protocols import (
    DraftLimits,
    FeaturePolicy,
    Frontier,
    Policy,
    RoundOutcome,
    SelectingState,
    TakeFeatures,
)
from foredraft.tree import DraftTree, Proposal
from tests.drafters.contexts import context

VOCAB_SIZE = 6


class When:
    """Stops the nodes of which a condition holds; notes what it is told."""

    def __init__(self, stops: Callable[[Frontier, int], bool]) -> None:
        self._stops = stops
        self.asked: list[Frontier] = []
        self.texts: list[list[int]] = []
        self.outcomes: list[RoundOutcome] = []

    def start(self) -> When:
        return self

    def begin(self, text: Sequence[int]) -> None:
        self.texts.append(list(text))

    def going_on(self, frontier: Frontier) -> Sequence[bool]:
        self.asked.append(frontier)
        return [not self._stops(frontier, row) for row in range(len(frontier.nodes))]

    def observe(self, outcome: RoundOutcome) -> None:
        self.outcomes.append(outcome)


class Reading(When):
    """Reads hidden states, which it never looks at."""

    def __init__(self, *taps: int) -> None:
        super().__init__(lambda frontier, row: False)
        self.taps = taps
        self.take: TakeFeatures = lambda: torch.empty(0)

    def start(self) -> When:
        raise AssertionError("the engine starts it with start_reading")

    def start_reading(self, take_features: TakeFeatures) -> Reading:
        self.take = take_features
        return self


def past(depth: int) -> When:
    return When(lambda frontier, row: frontier.depth >= depth)


def after_rank(rank: int) -> When:
    return When(lambda frontier, row: frontier.depth > 0 and frontier.ranks[row] == rank)


def drafted(policy: Policy, depth: int = 9) -> DraftTree:
    drafter = DraftModelDrafter(TableModel.random(VOCAB_SIZE, seed=1), Proposal.DETERMINISTIC)
    seen = context([1, 2], vocab_size=VOCAB_SIZE, limits=DraftLimits(depth))
    return drafter.start(100).draft(seen, policy.start())


# --- a shape with a rule ----------------------------------------------------------------------------


@pytest.mark.parametrize("depth", range(5))
def test_a_rule_of_depths_cuts_a_chain(depth: int) -> None:
    assert drafted(StoppingPolicy(FixedPolicy.chain(3), past(depth))).depth == min(depth, 3)


def test_a_stopped_node_has_no_children_and_its_siblings_have_theirs() -> None:
    tree = drafted(StoppingPolicy(FixedPolicy("3,2,1"), after_rank(1)))
    assert tree.children[:7] == ((1, 2, 3), (4, 5), (), (6, 7), (8,), (), (9,))


def test_the_policy_is_of_the_kind_of_its_shape() -> None:
    for shape in (FixedPolicy("2,1"), FixedPolicy.chain(3), DynamicTreePolicy(3, 6, 2)):
        policy = StoppingPolicy(shape, past(1))
        for name in ("kind", "branches", "max_nodes"):
            assert getattr(policy, name) == getattr(shape, name)
        assert isinstance(policy, Policy)
        assert not isinstance(policy, FeaturePolicy)


def test_the_rule_is_told_the_text_and_the_outcome() -> None:
    rule = past(1)
    state = StoppingPolicy(FixedPolicy.chain(3), rule).start()
    state.plan(DraftLimits(3), [4, 5])
    outcome = RoundOutcome(DraftTree.root_only(5), 0, 0.0, 0.0)
    state.observe(outcome)
    assert rule.texts == [[4, 5]]
    assert rule.outcomes == [outcome]


def test_the_rule_is_asked_of_nodes_that_the_shape_gives_children_alone() -> None:
    """A level past the shape's last one is never asked about; of EAGLE-2's trees the beam is."""
    rule = When(lambda frontier, row: False)
    drafted(StoppingPolicy(FixedPolicy.chain(2), rule))
    assert [frontier.depth for frontier in rule.asked] == [0, 1]
    rule = When(lambda frontier, row: False)
    drafted(StoppingPolicy(DynamicTreePolicy(3, 12, 2), rule))
    assert [len(frontier.nodes) for frontier in rule.asked] == [1, 2, 2]


def test_a_selecting_shape_still_selects() -> None:
    shape = DynamicTreePolicy(depth=4, nodes=5, top_k=3)
    policy = StoppingPolicy(shape, past(2))
    assert isinstance(policy.start(), SelectingState)
    check_selection(policy, policy.start())
    assert drafted(policy) == drafted(DynamicTreePolicy(depth=2, nodes=5, top_k=3))


def test_a_rule_that_stops_nothing_changes_nothing() -> None:
    for shape in (FixedPolicy("3,2,1"), DynamicTreePolicy(3, 6, 3)):
        assert drafted(StoppingPolicy(shape, past(99))) == drafted(shape)


def test_a_rule_must_answer_for_each_node() -> None:
    rule = past(0)
    rule.going_on = lambda frontier: [True]  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="When gave 1 answers for 2 nodes"):
        drafted(StoppingPolicy(FixedPolicy("2,2"), rule))


def test_counts_that_are_no_counts_are_refused_by_growth() -> None:
    class Short(FixedPolicy):
        def grow(self, frontier: Frontier) -> Sequence[int]:
            return (1, 1)

    with pytest.raises(ConfigError, match="one whole number of 0 or more for each node"):
        drafted(StoppingPolicy(Short("1"), past(9)))


class Merging:
    """The state of a policy that merges copies with a model's tree."""

    copies = None

    def __getattr__(self, name: str) -> Any:
        if name in ("plan", "grow", "observe", "offer", "keep_copies"):
            return lambda *args: None
        raise AttributeError(name)


def test_no_rule_goes_around_a_merged_tree() -> None:
    shape = FixedPolicy("2")
    shape.start = Merging  # type: ignore[assignment, method-assign]
    with pytest.raises(ConfigError, match="put the rule around the shape"):
        StoppingPolicy(shape, past(1)).start()


# --- narrowed frontiers -----------------------------------------------------------------------------


def test_a_narrowed_frontier_holds_the_rows_of_its_nodes() -> None:
    laws = torch.arange(6.0).reshape(3, 2)
    whole = Frontier(
        2,
        nodes=(4, 5, 6),
        token_ids=(7, 8, 9),
        parents=(1, 1, 2),
        ranks=(0, 1, 0),
        log_probs=lambda: laws,
        scores=lambda: [-1.0, -2.0, -3.0],
        drawn_from=lambda: -laws,
    )
    part = narrowed(whole, [0, 2])
    fields = (part.depth, part.nodes, part.token_ids, part.parents, part.ranks)
    assert fields == (2, (4, 6), (7, 9), (1, 2), (0, 0))
    assert part.scores() == [-1.0, -3.0]
    assert torch.equal(_read(part.log_probs), laws[[0, 2]])
    assert torch.equal(_read(part.drawn_from), -laws[[0, 2]])
    assert part.hidden() is None
    assert narrowed(replace(whole, scores=lambda: None), [1]).scores() is None
    assert narrowed(whole, [0, 1, 2]) is whole


def _read(read: Callable[[], Tensor | None]) -> Tensor:
    found = read()
    assert found is not None
    return found


# --- rules of rules ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("join", "depth"), [(all_of, 3), (any_of, 1)])
def test_the_longest_or_the_shortest_of_the_drafts(
    join: Callable[..., StopRule], depth: int
) -> None:
    rule = join(past(2), past(1), past(3))
    assert drafted(StoppingPolicy(FixedPolicy.chain(6), rule)).depth == depth


def test_rules_are_joined_node_by_node() -> None:
    widths = FixedPolicy("2,1,1")
    neither = drafted(StoppingPolicy(widths, any_of(after_rank(1), past(2))))
    assert neither.children[:4] == ((1, 2), (3,), (), ())
    both = drafted(StoppingPolicy(widths, all_of(after_rank(1), past(1))))
    assert both.children == ((1, 2), (3,), (), (4,), ())


def test_compositions_compose() -> None:
    rule = any_of(all_of(past(1), past(4)), past(3))
    assert drafted(StoppingPolicy(FixedPolicy.chain(6), rule)).depth == 3


def test_every_rule_is_told_everything() -> None:
    rules = [past(0), past(3)]
    state = StoppingPolicy(FixedPolicy.chain(2), any_of(*rules)).start()
    state.plan(DraftLimits(3), [4, 5])
    state.observe(RoundOutcome(DraftTree.root_only(5), 0, 0.0, 0.0))
    assert all(len(rule.texts) == len(rule.outcomes) == 1 for rule in rules)


def test_one_rule_is_itself_and_none_is_refused() -> None:
    rule = past(1)
    assert all_of(rule) is rule
    with pytest.raises(ConfigError, match="give one or more"):
        any_of()


# --- rules that read hidden states ------------------------------------------------------------------


def features(num_taps: int) -> TakeFeatures:
    """Those of one new token, then of none: two numbers for each tap, which name its place."""
    row = torch.arange(num_taps).repeat_interleave(2)[None].float()
    waiting = [row]
    return lambda: waiting.pop() if waiting else row[:0]


def test_a_rule_that_reads_makes_a_policy_that_reads() -> None:
    rule = Reading(3, 7)
    policy = StoppingPolicy(FixedPolicy.chain(2), rule)
    assert isinstance(policy, FeaturePolicy)
    assert policy.taps == (3, 7)
    policy.start_reading(features(2))
    assert rule.take().tolist() == [[0, 0, 1, 1]]
    with pytest.raises(ConfigError, match="start_reading"):
        policy.start()


def test_joined_rules_share_the_features_of_their_taps() -> None:
    rules = Reading(3), past(1), Reading(7, 3)
    joined = all_of(*rules)
    assert isinstance(joined, FeatureStopRule)
    policy = StoppingPolicy(FixedPolicy.chain(2), joined)
    assert isinstance(policy, FeaturePolicy)
    assert policy.taps == (3, 7)
    policy.start_reading(features(2))
    assert rules[0].take().tolist() == [[0, 0]]
    assert rules[2].take().tolist() == [[1, 1, 0, 0]]
    with pytest.raises(ConfigError, match="start_reading"):
        joined.start()


def test_a_shape_and_a_rule_may_both_read() -> None:
    class ReadingShape(FixedPolicy):
        taps = (5,)

        def start_reading(self, take_features: TakeFeatures) -> FixedPolicy:
            assert take_features().tolist() == [[0, 0]]
            return self

    rule = Reading(8)
    policy = StoppingPolicy(ReadingShape("1,1"), rule)
    assert isinstance(policy, FeaturePolicy)
    assert policy.taps == (5, 8)
    policy.start_reading(features(2))
    assert rule.take().tolist() == [[1, 1]]
