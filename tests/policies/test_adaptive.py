"""The adaptive policy keeps the draft with the most expected tokens for its time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.costs import PassCosts
from foredraft.errors import ConfigError
from foredraft.policies.adaptive import (
    FIRST_SPEEDUP,
    AdaptiveCopiesState,
    AdaptivePolicy,
    AdaptiveState,
)
from foredraft.policies.prices import Prices
from foredraft.policies.survival import Calibration
from foredraft.protocols import Candidates, DraftLimits, Frontier, PolicyKind, RoundOutcome
from foredraft.tree import NO_PARENT, DraftTree, Proposal

AS_IT_IS = Calibration(bias=0.0, slope=1.0, first=0.0, any_child=0.8)
LIMITS = DraftLimits(max_depth=20, max_nodes=40)
TEXT = list(range(9))


def passes(*seconds: float) -> PassCosts:
    """Of 1, 2, 4, 8, .. rows, whatever the context."""
    return PassCosts(tuple(2**i for i in range(len(seconds))), (0,), (seconds,))


def policy(target: PassCosts, level_s: float | None = 0.1, **options: int) -> AdaptivePolicy:
    level = None if level_s is None else passes(level_s)
    return AdaptivePolicy(Prices(target, level), AS_IT_IS, refine=False, **options)


def model_state(*args: object, **options: object) -> AdaptiveState:
    state = policy(*args, **options).start()  # type: ignore[arg-type]
    assert isinstance(state, AdaptiveState)
    return state


def tree_of(
    token_ids: Sequence[int], parents: Sequence[int], rows: Sequence[int] = ()
) -> DraftTree:
    proposals = (Proposal.DETERMINISTIC,) * len(parents)
    return DraftTree(tuple(token_ids), tuple(parents), proposals, draft_rows=tuple(rows))


def chain(*token_ids: int) -> DraftTree:
    return tree_of(token_ids, range(NO_PARENT, len(token_ids) - 1))


def root() -> Frontier:
    return Frontier(0, (0,), (TEXT[-1],), (NO_PARENT,), (0,), lambda: None, lambda: [0.0])


def level(
    depth: int, nodes: Sequence[int], parents: Sequence[int], scores: Sequence[float]
) -> Frontier:
    return Frontier(
        depth,
        tuple(nodes),
        tuple(100 + node for node in nodes),
        tuple(parents),
        (0,) * len(nodes),
        lambda: None,
        lambda: list(scores),
    )


@st.composite
def grown(draw: st.DrawFn) -> Candidates:
    """A tree of up to seven nodes in level order, with a law at every node."""
    parents, scores = [NO_PARENT], [0.0]
    left = [1.0]
    for node in range(1, draw(st.integers(1, 7)) + 1):
        parent = draw(st.integers(max(parents[-1], 0), node - 1))
        q = left[parent] * draw(st.floats(0.05, 0.9))
        left[parent] -= q
        parents.append(parent)
        scores.append(scores[parent] + math.log(q))
        left.append(1.0)
    return Candidates(tuple(range(100, 100 + len(parents))), tuple(parents), tuple(scores))


def closed_subsets(parents: Sequence[int]) -> list[set[int]]:
    """All sets of nodes that hold each node's parent."""
    nodes = range(1, len(parents))
    sets = (set(kept) for n in range(len(parents)) for kept in itertools.combinations(nodes, n))
    return [kept for kept in sets if all(parents[node] in kept | {0} for node in kept)]


@settings(max_examples=60, deadline=None)
@given(grown(), st.lists(st.floats(0, 0.5), min_size=3, max_size=3))
def test_no_part_of_the_tree_is_worth_more_than_what_is_kept(
    candidates: Candidates, steps: list[float]
) -> None:
    target = passes(*itertools.accumulate([1.0, *steps]))
    state = model_state(target)
    state.plan(LIMITS, TEXT)
    kept = set(state.select(candidates, 40))

    def value(nodes: set[int]) -> float:
        tokens = 1 + sum(math.exp(candidates.scores[node]) for node in nodes)
        return tokens - FIRST_SPEEDUP * target(len(nodes) + 1, 0) / target(1, 0)

    assert kept in closed_subsets(candidates.parents)
    best = max(value(nodes) for nodes in closed_subsets(candidates.parents))
    assert value(kept) == pytest.approx(best, abs=1e-6)


@given(grown(), st.integers(0, 5))
def test_a_selection_fits_the_room(candidates: Candidates, room: int) -> None:
    state = model_state(passes(1.0))
    state.plan(DraftLimits(20, room), TEXT)
    assert len(state.select(candidates, room)) <= room


def test_where_rows_are_free_all_is_kept_and_where_they_are_dear_nothing() -> None:
    candidates = Candidates((8, 100, 101), (NO_PARENT, 0, 1), (0.0, math.log(0.3), math.log(0.05)))
    for target, kept in (
        (passes(1.0), [1, 2]),
        (passes(1.0, 1.5), []),
        (passes(1.0, 1.1, 1.3), [1]),
    ):
        state = model_state(target)
        state.plan(LIMITS, TEXT)
        assert list(state.select(candidates, 40)) == kept


def test_a_level_is_drafted_if_it_is_expected_to_pay() -> None:
    for level_s, grows in ((0.1, True), (0.5, True), (0.6, False)):  # 0.8 tokens at 1.5 a second
        state = model_state(passes(1.0), level_s)
        state.plan(LIMITS, TEXT)
        assert bool(any(state.grow(root()))) == grows


def test_nodes_that_are_unlikely_get_no_pass() -> None:
    state = model_state(passes(1.0, 1.0, 1.0, 1.0, 1.2), 0.2)
    state.plan(LIMITS, TEXT)
    state.grow(root())
    counts = state.grow(level(1, [1, 2, 3], [0, 0, 0], [math.log(p) for p in (0.6, 0.3, 1e-6)]))
    assert counts[0] > 0
    assert counts[2] == 0


def test_copies_that_are_sure_save_the_models_pass() -> None:
    state = model_state(passes(1.0, 1.0, 1.1), 0.1)
    copies = chain(TEXT[-1], 100, 101)
    state.copies.plan(LIMITS, TEXT)
    state.offer(copies, [0.0, math.log(0.98), math.log(0.97)])
    state.plan(LIMITS, TEXT)
    assert not any(state.grow(root()))
    assert list(state.select(Candidates((TEXT[-1],), (NO_PARENT,), (0.0,)), 40)) == []
    assert list(state.keep_copies(DraftTree.root_only(TEXT[-1]))) == [1, 2]


def test_copies_are_kept_where_the_model_had_no_room_to_draft() -> None:
    state = model_state(passes(1.0))
    state.copies.plan(LIMITS, TEXT)
    state.offer(chain(TEXT[-1], 100, 101), [0.0, math.log(0.9), math.log(0.8)])
    assert list(state.keep_copies(DraftTree.root_only(TEXT[-1]))) == [1, 2]


def test_a_kept_copy_brings_those_that_it_follows() -> None:
    """The model drafts the branch's beginning too; what goes on from there is kept with its path."""
    state = model_state(passes(1.0), 0.1)
    state.copies.plan(LIMITS, TEXT)
    state.offer(chain(TEXT[-1], 100, 101, 102), [0.0, math.log(0.9), math.log(0.8), math.log(0.7)])
    state.plan(LIMITS, TEXT)
    candidates = Candidates((TEXT[-1], 100), (NO_PARENT, 0), (0.0, math.log(0.5)))
    assert list(state.select(candidates, 40)) == [1]
    assert list(state.keep_copies(chain(TEXT[-1], 100))) == [1, 2, 3]


def useless_round(state: AdaptiveState) -> bool:
    """One round of a drafter whose every token is refused; whether it drafted."""
    state.plan(LIMITS, TEXT)
    drafted = any(state.grow(root()))
    tokens, parents, scores = (TEXT[-1], 100), (NO_PARENT, 0), (0.0, math.log(0.8))
    if not drafted:
        tokens, parents, scores = tokens[:1], parents[:1], scores[:1]
    kept = state.select(Candidates(tokens, parents, scores), 40)
    tree = tree_of(tokens[: len(kept) + 1], parents[: len(kept) + 1], (3,) if drafted else ())
    state.observe(RoundOutcome(tree, 0, 0.1, 1.0, (0,), (5,)))
    return drafted


def test_a_useless_drafter_is_given_up_and_seldom_tried_again() -> None:
    state = model_state(passes(1.0, 1.0, 1.0, 1.05), 0.1)
    drafted = [useless_round(state) for _ in range(500)]
    assert drafted[0]
    assert sum(drafted) * 0.1 < 0.05 * 500
    assert sum(drafted[50:]) > 0


def test_drafts_grow_dearer_as_the_answer_goes_faster() -> None:
    """What a second is worth is what it brings elsewhere in the answer."""
    candidates = Candidates((8, 100), (NO_PARENT, 0), (0.0, math.log(0.4)))
    state = model_state(passes(1.0, 1.2, 1.2))
    state.plan(LIMITS, TEXT)
    assert list(state.select(candidates, 40)) == [1]
    for _ in range(50):
        state.observe(RoundOutcome(chain(8, 1, 2, 3), 3, 0.1, 1.0, (0, 1, 2, 3), (1, 2, 3, 4)))
    state.plan(LIMITS, TEXT)
    assert list(state.select(candidates, 40)) == []


def test_without_a_model_copies_alone_are_shaped() -> None:
    adaptive = policy(passes(1.0, 1.1, 1.2, 1.3), None)
    state = adaptive.start()
    assert isinstance(state, AdaptiveCopiesState)
    state.plan(LIMITS, TEXT)
    scores = [0.0, math.log(0.9), math.log(0.8), math.log(0.01)]
    candidates = Candidates((8, 1, 2, 3), (NO_PARENT, 0, 1, 2), tuple(scores))
    assert list(state.select(candidates, 40)) == [1, 2]


def test_it_selects_and_says_so() -> None:
    assert policy(passes(1.0)).kind is PolicyKind.SELECTS


@pytest.mark.parametrize("option", ["nodes", "depth", "top_k", "copies"])
@pytest.mark.parametrize("value", [0, -1])
def test_shapes_without_room_are_refused(option: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{option}={value} is not allowed"):
        policy(passes(1.0), **{option: value})
