"""The fixed pair: the model's draft in full, the likeliest copies beside it, and to each its own outcome."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foredraft import ConfigError
from foredraft.policies.dynamic import DynamicTreePolicy
from foredraft.policies.fixed import FixedPolicy
from foredraft.policies.merging import MergingPolicy
from foredraft.protocols import (
    DraftLimits,
    FeaturePolicy,
    MergingState,
    PolicyKind,
    PolicyState,
    RoundOutcome,
    SelectingState,
    TakeFeatures,
)
from foredraft.tree import DraftTree, Proposal, TreeBuilder

ROOT = 9
TEXT = [1, ROOT]


def tree_of(*paths: Sequence[int]) -> DraftTree:
    """The tree of these paths of draft tokens."""
    prefixes = sorted({tuple(path[:n]) for path in paths for n in range(1, len(path) + 1)}, key=len)
    builder, nodes = TreeBuilder(ROOT), {(): 0}
    while prefixes:
        depth = len(prefixes[0])
        level = [p for p in prefixes if len(p) == depth]
        for prefix in sorted(level, key=lambda p: nodes[p[:-1]]):
            nodes[prefix] = builder.add(nodes[prefix[:-1]], prefix[-1], Proposal.DETERMINISTIC)
        prefixes = prefixes[len(level) :]
    return builder.build()


class Noting(FixedPolicy):
    """Keeps what it is told."""

    def __init__(self, k_config: str) -> None:
        super().__init__(k_config)
        self.planned: list[DraftLimits] = []
        self.seen: list[RoundOutcome] = []

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        self.planned.append(limits)
        return limits

    def observe(self, outcome: RoundOutcome) -> None:
        self.seen.append(outcome)


class Reads(Noting):
    """Reads hidden states."""

    taps = (2,)

    def start_reading(self, take_features: TakeFeatures) -> PolicyState:
        self.taken = take_features()
        return self


def kept(
    drafted: DraftTree,
    copies: DraftTree,
    shares: Sequence[float],
    max_nodes: int,
    least: float = 0.0,
) -> list[tuple[int, ...]]:
    """Paths of the copies that are kept; each share is a copy's, given its parent's."""
    state = MergingPolicy(FixedPolicy("1"), FixedPolicy("1"), least).start()
    scores = [0.0]
    for node, share in enumerate(shares, 1):
        scores.append(scores[copies.parents[node]] + math.log(share))
    state.offer(copies, scores)
    state.plan(DraftLimits(9, max_nodes), TEXT)
    return [copies.path_tokens(node) for node in sorted(state.keep_copies(drafted))]


# --- what is kept -----------------------------------------------------------------------------------


def test_all_copies_are_kept_where_there_is_room() -> None:
    assert kept(tree_of([1]), tree_of([2, 3], [4]), [0.5, 0.1, 0.9], 4) == [(2,), (4,), (2, 3)]


def test_the_likeliest_copies_come_first() -> None:
    assert kept(tree_of([1]), tree_of([2, 3], [4]), [0.5, 0.1, 0.9], 3) == [(2,), (2, 3)]


def test_copies_that_the_model_drafts_too_take_no_room() -> None:
    assert kept(tree_of([1, 2]), tree_of([1, 2, 3]), [0.5] * 3, 3) == [(1,), (1, 2), (1, 2, 3)]
    assert kept(tree_of([1, 2]), tree_of([1, 2, 3]), [0.5] * 3, 2) == [(1,), (1, 2)]


def test_unlikely_copies_are_left_out() -> None:
    """Their path counts: 0.8, 0.64 and 0.51."""
    copies, shares = tree_of([2, 3, 4]), [0.8] * 3
    assert kept(tree_of([1]), copies, shares, 9, least=0.6) == [(2,), (2, 3)]
    assert kept(tree_of([1]), copies, shares, 9, least=0.9) == []
    assert kept(tree_of([2, 3]), copies, shares, 9, least=0.9) == [(2,), (2, 3)]


@pytest.mark.parametrize("least", [-0.1, 1, 2.0, math.nan])
def test_what_is_no_probability_is_refused(least: float) -> None:
    with pytest.raises(ConfigError, match=f"least={least}"):
        MergingPolicy(FixedPolicy("1"), FixedPolicy("1"), least)


def test_no_room_is_no_copy() -> None:
    assert kept(tree_of([1], [2]), tree_of([3]), [0.9], 2) == []
    assert kept(DraftTree.root_only(ROOT), tree_of([3]), [0.9], 0) == []


@given(
    st.lists(st.floats(0.01, 0.99), min_size=5, max_size=5),
    st.integers(0, 9),
    st.sampled_from([0.0, 0.2, 0.6]),
)
def test_what_is_kept_is_a_tree(shares: list[float], max_nodes: int, least: float) -> None:
    copies = tree_of([1, 2, 3], [1, 4], [5])
    paths = kept(tree_of([1, 2], [6]), copies, shares, max_nodes, least)
    assert {path[:-1] for path in paths} <= {(), *paths}
    added = [path for path in paths if path not in {(1,), (1, 2)}]
    room = min(max(max_nodes - 3, 0), 3)
    assert len(added) <= room
    assert least or len(added) == room


# --- the two policies -------------------------------------------------------------------------------


def test_it_selects_so_that_only_exact_verification_takes_it() -> None:
    policy = MergingPolicy(FixedPolicy("1,1"), FixedPolicy.chain(3))
    assert policy.kind is PolicyKind.SELECTS
    assert policy.branches
    assert policy.max_nodes == 5


def test_the_models_policy_plans_within_its_own_nodes() -> None:
    model, copies = Noting("2,1"), Noting("1,1,1")
    MergingPolicy(model, copies).start().plan(DraftLimits(8, 7), TEXT)
    MergingPolicy(model, copies).start().plan(DraftLimits(8, 3), TEXT)
    assert [limits.max_nodes for limits in model.planned] == [4, 3]
    assert not copies.planned


def test_a_state_selects_where_the_models_policy_does() -> None:
    copies = FixedPolicy.chain(2)
    selecting = MergingPolicy(DynamicTreePolicy(2, 3, 2), copies).start()
    fixed = MergingPolicy(FixedPolicy("2"), copies).start()
    assert isinstance(selecting, MergingState)
    assert isinstance(selecting, SelectingState)
    assert isinstance(fixed, MergingState)
    assert not isinstance(fixed, SelectingState)
    assert selecting.max_candidates == DynamicTreePolicy(2, 3, 2).max_candidates


def test_a_policy_that_reads_hidden_states_gets_them() -> None:
    model = Reads("1")
    policy = MergingPolicy(model, FixedPolicy("1"))
    assert isinstance(policy, FeaturePolicy)
    assert policy.taps == (2,)
    features = torch.ones(1, 2)

    def take() -> Tensor:
        return features

    assert isinstance(policy.start_reading(take), MergingState)
    assert model.taken is features
    assert not isinstance(MergingPolicy(FixedPolicy("1"), FixedPolicy("1")), FeaturePolicy)


def test_copies_are_not_shaped_by_hidden_states() -> None:
    with pytest.raises(ConfigError, match="Reads reads the target's hidden states"):
        MergingPolicy(FixedPolicy("1"), Reads("1"))


# --- what became of each draft ----------------------------------------------------------------------


def outcome(tree: DraftTree, *tokens: int) -> RoundOutcome:
    path = tree.follow(tokens)
    return RoundOutcome(tree, len(path) - 1, 0.1, 0.2, path)


def observed(drafted: DraftTree, copies: DraftTree, *tokens: int) -> list[tuple[Any, ...]]:
    """(tree, accepted, path) as the model's policy and that of the copies see a round."""
    model, copying = Noting("1"), Noting("1")
    state = MergingPolicy(model, copying).start()
    state.offer(copies, [0.0] * len(copies))
    state.plan(DraftLimits(9), TEXT)
    state.keep_copies(drafted)
    state.observe(outcome(tree_of([1, 2], [3, 4, 5]), *tokens))
    seen = [policy.seen[0] for policy in (model, copying)]
    assert all((s.draft_s, s.target_s) == (0.1, 0.2) for s in seen)
    return [(s.tree, s.num_accepted, s.path) for s in seen]


def test_each_policy_sees_its_own_draft() -> None:
    drafted, copies = tree_of([1, 2], [3]), tree_of([3, 4, 5])
    assert observed(drafted, copies, 3, 4) == [(drafted, 1, (0, 2)), (copies, 2, (0, 1, 2))]
    assert observed(drafted, copies, 1, 2) == [(drafted, 2, (0, 1, 3)), (copies, 0, (0,))]
    assert observed(drafted, copies) == [(drafted, 0, (0,)), (copies, 0, (0,))]


def test_a_round_without_a_draft_is_seen_as_it_is() -> None:
    """Where the answer had room for one token alone, nobody was asked."""
    model, copying = Noting("1"), Noting("1")
    state = MergingPolicy(model, copying).start()
    state.offer(tree_of([3]), [0.0, 0.0])
    state.keep_copies(tree_of([1]))
    state.observe(outcome(tree_of([1], [3]), 3))
    empty = outcome(DraftTree.root_only(ROOT))
    state.observe(empty)
    assert (model.seen[-1], copying.seen[-1]) == (empty, empty)
