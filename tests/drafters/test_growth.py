"""Growth asks the policy, keeps to the limits, and pays for laws only when they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from foredraft.backends.table import TableModel, TableState
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.growth import grow_tree
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import DraftLimits, Frontier, PolicyState, RoundOutcome
from foredraft.tree import DraftTree, Proposal, TreeBuilder
from tests.drafters.contexts import DEEP, context

VOCAB_SIZE = 50


class Counting:
    """A source whose children are 1, 2, 3, .. in the order in which they are drawn."""

    def __init__(self, builder: TreeBuilder) -> None:
        self._builder = builder

    column_ids = None

    def log_probs(self, nodes: Sequence[int]) -> Tensor | None:
        return None

    def scores(self, nodes: Sequence[int]) -> list[float] | None:
        return None

    def extend(self, nodes: Sequence[int], counts: Sequence[int]) -> list[int]:
        add = self._builder.add
        return [
            add(node, len(self._builder), Proposal.DETERMINISTIC)
            for node, count in zip(nodes, counts, strict=True)
            for _ in range(count)
        ]


class Rule(FixedPolicy):
    """Grows by a function of the frontier; may tighten the limits first."""

    def __init__(
        self,
        grow: Callable[[Frontier], Sequence[int]],
        plan: Callable[[DraftLimits], DraftLimits] = lambda limits: limits,
    ) -> None:
        super().__init__((1,))
        self._grow, self._plan = grow, plan
        self.asked: list[Frontier] = []

    def plan(self, limits: DraftLimits) -> DraftLimits:
        return self._plan(limits)

    def grow(self, frontier: Frontier) -> Sequence[int]:
        self.asked.append(frontier)
        return self._grow(frontier)

    def observe(self, outcome: RoundOutcome) -> None:
        raise AssertionError("growth is not a round")


def each(count: int) -> Callable[[Frontier], Sequence[int]]:
    return lambda frontier: [count] * len(frontier.nodes)


def grow(policy: PolicyState, limits: DraftLimits = DEEP, ends: Sequence[int] = ()) -> DraftTree:
    builder = TreeBuilder(0)
    seen = context([0], vocab_size=VOCAB_SIZE, limits=limits, eos_token_ids=ends)
    return grow_tree(seen, policy, builder, Counting(builder))


# --- limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_depth", range(5))
def test_no_level_is_deeper_than_the_limit(max_depth: int) -> None:
    assert grow(Rule(each(1)), DraftLimits(max_depth)).depth == max_depth


def test_a_policy_may_tighten_the_depth_and_not_widen_it() -> None:
    for planned, depth in [(2, 2), (9, 4)]:
        policy = Rule(each(1), plan=lambda limits, d=planned: DraftLimits(d, limits.max_nodes))
        assert grow(policy, DraftLimits(max_depth=4)).depth == depth


def test_a_policy_may_tighten_the_number_of_nodes() -> None:
    policy = Rule(each(3), plan=lambda limits: DraftLimits(limits.max_depth, max_nodes=5))
    assert grow(policy).num_drafted == 5


@pytest.mark.parametrize(
    ("max_nodes", "children"),
    [
        (0, ((),)),
        (2, ((1, 2), (), ())),
        (3, ((1, 2, 3), (), (), ())),
        (5, ((1, 2, 3), (4, 5), (), (), (), ())),
        (7, ((1, 2, 3), (4, 5, 6), (7,), (), (), (), (), ())),
    ],
)
def test_the_budget_is_spent_in_draw_order(
    max_nodes: int, children: tuple[tuple[int, ...], ...]
) -> None:
    """Cut by count before drawing: the first nodes of a level get their children first."""
    assert grow(FixedPolicy("3,3"), DraftLimits(9, max_nodes)).children == children


def test_chains_only_gives_every_node_one_child() -> None:
    tree = grow(FixedPolicy("3,2,2"), DraftLimits(9, chains_only=True))
    assert tree.is_chain
    assert tree.depth == 3


# --- what the policy is asked -----------------------------------------------------------------------


def test_each_level_is_asked_about_once() -> None:
    policy = Rule(lambda frontier: [2 if frontier.depth < 2 else 0] * len(frontier.nodes))
    grow(policy)
    assert [(f.depth, f.nodes) for f in policy.asked] == [(0, (0,)), (1, (1, 2)), (2, (3, 4, 5, 6))]
    assert policy.asked[1].token_ids == (1, 2)


def test_a_node_that_gets_no_children_leaves_the_frontier() -> None:
    policy = Rule(lambda frontier: [2] if frontier.depth == 0 else [0, 1][-len(frontier.nodes) :])
    tree = grow(policy, DraftLimits(3))
    assert tree.children[1:3] == ((), (3,))


def test_a_level_without_children_ends_the_draft() -> None:
    assert grow(Rule(each(0))).num_drafted == 0


def test_an_end_token_gets_no_children() -> None:
    """Case 20: token 5 is an end; its cousins go on."""
    tree = grow(FixedPolicy("2,2,2"), ends=[5])
    assert tree.children[5] == ()
    assert all(len(tree.children[node]) == 2 for node in (3, 4, 6))


def test_end_tokens_alone_end_the_draft() -> None:
    assert grow(Rule(each(2)), ends=[1, 2]).depth == 1


# --- what laws cost ---------------------------------------------------------------------------------


class CountedModel(TableModel):
    """Counts its passes."""

    passes = 0

    def start(self, capacity: int) -> TableState:
        return CountedState(self)


class CountedState(TableState):
    def __init__(self, model: CountedModel) -> None:
        super().__init__(model)
        self.model = model

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        self.model.passes += 1
        return super().score(token_ids, parents)


def passes_of(policy: PolicyState, max_depth: int) -> int:
    """Draft passes of one round."""
    torch.manual_seed(0)
    model = CountedModel(torch.rand(6, 6).double().softmax(-1))
    state = DraftModelDrafter(model, Proposal.DETERMINISTIC).start(100)
    state.draft(context([1, 2], vocab_size=6, limits=DraftLimits(max_depth)), policy)
    return model.passes


def reading(frontier: Frontier) -> Sequence[int]:
    """Reads the laws, twice, before it asks for one child a node."""
    frontier.log_probs()
    frontier.log_probs()
    return each(1)(frontier)


def ending_at(depth: int, read: bool) -> Callable[[Frontier], Sequence[int]]:
    def grow(frontier: Frontier) -> Sequence[int]:
        if frontier.depth < depth:
            return each(1)(frontier)
        if read:
            frontier.log_probs()
        return each(0)(frontier)

    return grow


@pytest.mark.parametrize("rule", [each(1), reading], ids=["unread", "read"])
def test_a_level_costs_one_draft_pass_whoever_reads_its_laws(
    rule: Callable[[Frontier], Sequence[int]],
) -> None:
    assert passes_of(Rule(rule), max_depth=3) == 3


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_ending_a_draft_unread_costs_no_pass(depth: int) -> None:
    assert passes_of(Rule(ending_at(depth, read=False)), max_depth=5) == depth


def test_ending_a_draft_after_a_look_costs_the_look() -> None:
    assert passes_of(Rule(ending_at(2, read=True)), max_depth=5) == 3


def test_laws_are_those_of_the_frontiers_nodes() -> None:
    seen: list[Tensor | None] = []

    def look(frontier: Frontier) -> Sequence[int]:
        seen.append(frontier.log_probs())
        return [2] * len(frontier.nodes)

    model = TableModel.random(6, seed=1)
    state = DraftModelDrafter(model, Proposal.DETERMINISTIC).start(100)
    tree = state.draft(context([1, 2], vocab_size=6, limits=DraftLimits(2)), Rule(look))
    children = [model.logits_after([tree.token_ids[node]]) for node in (1, 2)]
    torch.testing.assert_close(seen[0], model.logits_after([2])[None].float())
    torch.testing.assert_close(seen[1], torch.stack(children).float())
