"""A model's tree and a branch of copies side by side: the fixed pair of hybrid drafting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from foredraft.errors import ConfigError
from foredraft.protocols import (
    Candidates,
    DraftLimits,
    FeaturePolicy,
    Frontier,
    Policy,
    PolicyKind,
    PolicyState,
    RoundOutcome,
    SelectingState,
    TakeFeatures,
)
from foredraft.tree import DraftTree
from foredraft.tree_merging import merge


class MergingPolicy:
    """One policy for the model's tree and one for copies, merged as far as there is room.

    The model has its draft in full. Of the copies the likeliest are kept; those that the model drafts too
    take no room. Each policy learns what became of its own draft. It is a `FeaturePolicy` when the model's
    policy is one.

    Args:
        model_policy: shapes the model's tree.
        copies_policy: shapes the copies.
        least: copies whose path is less likely than this are left out, unless the model drafts them too.

    Raises:
        ConfigError: the policy of the copies reads hidden states, or `least` is no probability below 1.
    """

    kind = PolicyKind.SELECTS
    branches = True

    def __new__(
        cls, model_policy: Policy, copies_policy: Policy, least: float = 0.0
    ) -> MergingPolicy:
        """A `FeatureMergingPolicy` where the model's policy reads hidden states."""
        reads = isinstance(model_policy, FeaturePolicy) and cls is MergingPolicy
        return super().__new__(FeatureMergingPolicy if reads else cls)

    def __init__(self, model_policy: Policy, copies_policy: Policy, least: float = 0.0) -> None:
        if not 0 <= least < 1:
            raise ConfigError(
                f"least={least} is not allowed; give a probability of 0 or more, below 1"
            )
        if isinstance(copies_policy, FeaturePolicy):
            raise ConfigError(
                f"{type(copies_policy).__name__} reads the target's hidden states, which copies are not "
                "shaped by; use another policy for the copies"
            )
        self.model_policy, self.copies_policy, self.least = model_policy, copies_policy, least

    @property
    def max_nodes(self) -> int:
        """Draft tokens of both."""
        return self.model_policy.max_nodes + self.copies_policy.max_nodes

    def start(self) -> MergingPolicyState:
        """State of both for one request."""
        return self._merging(self.model_policy.start())

    def _merging(self, model: PolicyState) -> MergingPolicyState:
        copies = self.copies_policy.start()
        kind = SelectingMergingState if isinstance(model, SelectingState) else MergingPolicyState
        return kind(self, model, copies)


class FeatureMergingPolicy(MergingPolicy):
    """A `MergingPolicy` whose model's policy reads the target's hidden states."""

    model_policy: FeaturePolicy

    @property
    def taps(self) -> tuple[int, ...]:
        """What the model's policy reads."""
        return self.model_policy.taps

    def start_reading(self, take_features: TakeFeatures) -> MergingPolicyState:
        """State of both for one request."""
        return self._merging(self.model_policy.start_reading(take_features))


class MergingPolicyState:
    """Both policies' states, and the drafts of the round in progress: see `MergingState`."""

    def __init__(self, policy: MergingPolicy, model: PolicyState, copies: PolicyState) -> None:
        self.copies = copies
        self._model, self._own_nodes = model, policy.model_policy.max_nodes
        self._room = policy.max_nodes
        self._least = math.log(policy.least) if policy.least else -math.inf
        self._offered: tuple[DraftTree, Sequence[float]] | None = None
        self._drafts: tuple[DraftTree, DraftTree] | None = None  # the model's, and the copies kept

    def offer(self, copies: DraftTree, scores: Sequence[float]) -> None:
        """The round's copies."""
        self._offered = copies, scores

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        """The model's policy plans as it does alone."""
        self._room = limits.max_nodes
        own = replace(limits, max_nodes=min(limits.max_nodes, self._own_nodes))
        return self._model.plan(own, text)

    def grow(self, frontier: Frontier) -> Sequence[int]:
        """As the model's policy does."""
        return self._model.grow(frontier)

    def keep_copies(self, drafted: DraftTree) -> Sequence[int]:
        """The likeliest copies, as far as they are likely enough and there is room."""
        assert self._offered is not None, "copies are offered before the model drafts"
        copies, scores = self._offered
        merged = merge(drafted, copies)
        own = set(merged.of_first)
        room = self._room + 1 - len(own)
        kept = []
        for node in sorted(range(1, len(copies)), key=lambda n: -scores[n]):  # parents come first
            is_new = merged.of_second[node] not in own
            if is_new and (room < 1 or scores[node] < self._least):
                break
            room -= is_new
            kept.append(node)
        self._drafts = drafted, copies.part(kept)
        return kept

    def observe(self, outcome: RoundOutcome) -> None:
        """Each policy sees its own draft, as far as it was accepted."""
        tokens = [outcome.tree.token_ids[node] for node in outcome.path[1:]]
        model, copies = self._drafts or (outcome.tree, outcome.tree)
        self._model.observe(_as_drafted(model, tokens, outcome))
        self.copies.observe(_as_drafted(copies, tokens, outcome))
        self._offered = self._drafts = None


class SelectingMergingState(MergingPolicyState):
    """A `MergingState` whose model's policy selects among what the model drew."""

    _model: SelectingState

    @property
    def max_candidates(self) -> int:
        """The model's policy's own."""
        return self._model.max_candidates

    def select(self, candidates: Candidates, max_nodes: int) -> Sequence[int]:
        """As the model's policy does."""
        return self._model.select(candidates, max_nodes)


def _as_drafted(tree: DraftTree, tokens: Sequence[int], outcome: RoundOutcome) -> RoundOutcome:
    """The outcome for one of the two drafts, whose tree this is."""
    path = tree.follow(tokens)
    return replace(outcome, tree=tree, num_accepted=len(path) - 1, path=path)
