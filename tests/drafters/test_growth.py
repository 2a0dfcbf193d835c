"""Growth asks the policy, keeps to the limits, and pays for laws only when they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from foredraft.backends.table import TableModel, TableState
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.growth import grow_tree
from foredraft.errors import ConfigError
from foredraft.policies.dynamic import BudgetPolicy, DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import DraftLimits, Frontier, Policy, PolicyState, RoundOutcome
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

    def drawn_from(self, nodes: Sequence[int]) -> Tensor | None:
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

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
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


# --- what policies are told -------------------------------------------------------------------------


def test_the_frontier_names_parents_and_ranks() -> None:
    policy = Rule(lambda frontier: [[3], [0, 2, 1], [1, 0, 1]][frontier.depth])
    grow(policy, DraftLimits(3))
    seen = [(f.parents, f.ranks) for f in policy.asked]
    assert seen == [((-1,), (0,)), ((0, 0, 0), (0, 1, 2)), ((2, 2, 3), (0, 1, 0))]


@pytest.mark.parametrize(
    "kind", [kind for kind in Proposal if kind is not Proposal.COUPLED], ids=lambda kind: kind.value
)
def test_scores_are_sums_of_log_q_along_the_path(kind: Proposal) -> None:
    """Raw laws of the drafter: neither temperature, nor filters, nor bans change them."""
    model = TableModel.random(6, 2, seed=1)
    asked: list[tuple[Frontier, list[float] | None]] = []

    def look(frontier: Frontier) -> Sequence[int]:
        asked.append((frontier, frontier.scores()))
        return [2] * len(frontier.nodes)

    seen = context(
        [1, 2], vocab_size=6, limits=DraftLimits(4), temperature=0.5, top_p=0.9, suppress_tokens=[3]
    )
    tree = DraftModelDrafter(model, kind).start(100).draft(seen, Rule(look))
    assert [len(frontier.nodes) for frontier, _ in asked] == list(tree.widths[:4])
    for frontier, scores in asked:
        expected = [log_q(model, [1, 2], tree.path_tokens(node)) for node in frontier.nodes]
        assert scores == pytest.approx(expected, abs=1e-5)


def test_coupled_scores_know_the_noise() -> None:
    """The softmax of the logits and T times the noise of each position; banned tokens have no part in it."""
    model, temperature = TableModel.random(6, 2, seed=1), 0.5
    asked: list[tuple[Frontier, list[float] | None]] = []

    def look(frontier: Frontier) -> Sequence[int]:
        asked.append((frontier, frontier.scores()))
        return [2] * len(frontier.nodes)

    seen = context(
        [1, 2], vocab_size=6, limits=DraftLimits(4), temperature=temperature, suppress_tokens=[3]
    )
    tree = DraftModelDrafter(model, Proposal.COUPLED).start(100).draft(seen, Rule(look))

    def believed(path: Sequence[int]) -> float:
        total, so_far = 0.0, [1, 2]
        for token in path:
            noise = seen.random.gumbel(len(so_far), 6)
            ranking = model.logits_after(so_far).double() + temperature * noise
            ranking[3] = -torch.inf
            total += float(ranking.log_softmax(-1)[token])
            so_far.append(token)
        return total

    assert len(asked) == 4
    for frontier, scores in asked:
        expected = [believed(tree.path_tokens(node)) for node in frontier.nodes]
        assert scores == pytest.approx(expected, abs=1e-5)


def test_coupled_scores_become_greedy_ones_as_the_temperature_falls() -> None:
    model = TableModel.random(6, 2, seed=1)

    def scores_at(temperature: float) -> list[float]:
        found: list[list[float] | None] = []

        def look(frontier: Frontier) -> Sequence[int]:
            found.append(frontier.scores())
            return [3] * len(frontier.nodes)

        seen = context([1, 2], vocab_size=6, limits=DraftLimits(3), temperature=temperature)
        DraftModelDrafter(model, Proposal.COUPLED).start(100).draft(seen, Rule(look))
        return [score for scores in found for score in scores or ()]

    assert scores_at(1e-5) == pytest.approx(scores_at(0.0), abs=1e-4)


def log_q(model: TableModel, text: Sequence[int], path: Sequence[int]) -> float:
    """log q of the path's tokens after the text."""
    total, so_far = 0.0, list(text)
    for token in path:
        total += float(model.logits_after(so_far).log_softmax(-1)[token])
        so_far.append(token)
    return total


@pytest.mark.parametrize("policy", [DynamicTreePolicy(), BudgetPolicy()], ids=["dynamic", "budget"])
def test_a_source_without_scores_is_refused(policy: Policy) -> None:
    with pytest.raises(ConfigError, match=f"{type(policy).__name__} .* scores of drafts"):
        grow(policy.start())


def test_a_drafter_without_laws_gives_no_scores() -> None:
    policy = Rule(each(1))
    grow(policy, DraftLimits(2))
    assert [frontier.scores() for frontier in policy.asked] == [None, None]


@pytest.mark.parametrize(("reads", "rows"), [(False, (2, 1, 2)), (True, (2, 3, 2))])
def test_only_nodes_with_children_are_scored_unless_laws_are_read(
    reads: bool, rows: tuple[int, ...]
) -> None:
    def some(frontier: Frontier) -> Sequence[int]:
        if reads:
            frontier.log_probs()
        return [[3], [0, 2, 0], [1, 1]][frontier.depth]

    model = TableModel.random(6, 2, seed=1)
    state = DraftModelDrafter(model, Proposal.DETERMINISTIC).start(100)
    tree = state.draft(context([1, 2], vocab_size=6, limits=DraftLimits(3)), Rule(some))
    assert tree.draft_rows == rows
    for node in range(1, len(tree)):
        best = model.logits_after([1, 2, *tree.path_tokens(tree.parents[node])]).argsort()
        assert tree.token_ids[node] in best[-3:]


# --- selection --------------------------------------------------------------------------------------


class Selecting(Rule):
    """Grows two levels of three, and selects by a function of the scores."""

    max_candidates = 12

    def __init__(self, select: Callable[[Sequence[float], int], Sequence[int]]) -> None:
        super().__init__(each(3))
        self.select = select


def selected(select: Callable[[Sequence[float], int], Sequence[int]]) -> DraftTree:
    model = TableModel.random(6, 2, seed=1)
    state = DraftModelDrafter(model, Proposal.DETERMINISTIC).start(100)
    limits = DraftLimits(2, max_nodes=4)
    return state.draft(context([1, 2], vocab_size=6, limits=limits), Selecting(select))


def test_candidates_may_outnumber_the_draft() -> None:
    seen: list[tuple[int, int]] = []

    def first(scores: Sequence[float], max_nodes: int) -> Sequence[int]:
        seen.append((len(scores), max_nodes))
        return range(1, 3)

    assert selected(first).num_drafted == 2
    assert seen == [(1 + 3 + 9, 4)]


def test_kept_nodes_keep_their_order_and_their_parents() -> None:
    whole = selected(lambda scores, max_nodes: [1, 2, 3])
    tree = selected(lambda scores, max_nodes: [11, 3, 1, 5])  # in any order
    assert tree.parents == (-1, 0, 0, 1, 2)
    assert tree.token_ids[1:3] == (whole.token_ids[1], whole.token_ids[3])


def test_nothing_may_be_selected() -> None:
    assert selected(lambda scores, max_nodes: []).num_drafted == 0


@pytest.mark.parametrize(
    "nodes", [[0], [4], [1, 13], [-1], [1, 2, 3, 4, 5]], ids=["root", "orphan", "beyond", "-1", "5"]
)
def test_what_is_no_tree_is_refused(nodes: list[int]) -> None:
    with pytest.raises(ConfigError, match="at most 4 draft tokens, with each its parent"):
        selected(lambda scores, max_nodes: nodes)


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("stopped", [False, True])
def test_laws_that_tokens_were_drawn_from_cost_no_pass(stopped: bool, reads: bool) -> None:
    """Whether the laws to come have been read already or not, and whether some nodes got no children."""
    model = TableModel.random(6, seed=1)
    seen: list[tuple[Frontier, Tensor | None]] = []

    def look(frontier: Frontier) -> Sequence[int]:
        if reads:
            frontier.log_probs()
        seen.append((frontier, frontier.drawn_from()))
        return [0 if stopped and rank == 1 else 2 for rank in frontier.ranks]

    state = DraftModelDrafter(model, Proposal.DETERMINISTIC).start(100)
    tree = state.draft(context([1, 2], vocab_size=6, limits=DraftLimits(3)), Rule(look))
    assert seen[0][1] is None
    for frontier, laws in seen[1:]:
        above = [model.logits_after([tree.token_ids[node]]) for node in frontier.parents]
        torch.testing.assert_close(laws, torch.stack(above).float())
    scored = ((2, 2, 4), (2, 2, 2), (2, 1, 1))[stopped + (stopped and not reads)]
    assert tree.draft_rows == scored
