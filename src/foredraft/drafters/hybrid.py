"""Copies from the text and a model's tree as one draft: each fills what the other lacks.

What a text repeats, copies continue for many tokens at no pass; where nothing is repeated, the model drafts.
In each round the copies come first, so that a policy that plans the model's tree knows them. A token that
both propose in the same place is one node of the merged tree, whose branches both go on.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

from torch import Tensor

from foredraft.drafters.ngram import NgramDrafter, NgramState
from foredraft.errors import ConfigError
from foredraft.policies.merging import MergingPolicy
from foredraft.protocols import (
    DraftContext,
    Drafter,
    DrafterState,
    DraftLimits,
    FeatureDrafter,
    LawReader,
    MergingState,
    PolicyState,
    TakeFeatures,
)
from foredraft.tree import DraftTree, Proposal
from foredraft.tree_merging import merge


class HybridDrafter:
    """A model's drafts merged with copies from the text.

    Its policies are those whose states are `MergingState`s, such as `MergingPolicy`. It is a `FeatureDrafter`
    when the model's drafter is one.

    Args:
        model: drafts with a model or a head.
        copies: looks up copies.
    """

    def __new__(cls, model: Drafter, copies: NgramDrafter) -> HybridDrafter:
        """A `FeatureHybridDrafter` where the model's drafter reads hidden states."""
        reads = isinstance(model, FeatureDrafter) and cls is HybridDrafter
        return super().__new__(FeatureHybridDrafter if reads else cls)

    def __init__(self, model: Drafter, copies: NgramDrafter) -> None:
        self.model, self.copies = model, copies

    @property
    def proposals(self) -> frozenset[Proposal]:
        """Those of both."""
        return self.model.proposals | self.copies.proposals

    @property
    def default_policy(self) -> MergingPolicy:
        """The default policies of both."""
        return MergingPolicy(self.model.default_policy, self.copies.default_policy)

    def start(self, capacity: int) -> HybridState:
        """Memory of both for one request."""
        return HybridState(self.model.start(capacity), self.copies.start(capacity))


class FeatureHybridDrafter(HybridDrafter):
    """A `HybridDrafter` whose model reads the target's hidden states."""

    model: FeatureDrafter

    @property
    def taps(self) -> tuple[int, ...]:
        """What the model's drafter reads."""
        return self.model.taps

    def start_reading(self, capacity: int, take_features: TakeFeatures) -> HybridState:
        """Memory of both for one request, which pulls features as the model needs them."""
        model = self.model.start_reading(capacity, take_features)
        return HybridState(model, self.copies.start(capacity))


class HybridState:
    """Both drafters' memory of one request, and the model's tree of the round in progress."""

    def __init__(self, model: DrafterState, copies: NgramState) -> None:
        self._model, self._copies = model, copies
        self._drafted: DraftTree | None = None
        self._merged: DraftTree | None = None

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Both read the prompt."""
        self._model.prefill(token_ids)
        self._copies.prefill(token_ids)

    def draft(self, context: DraftContext, policy: PolicyState) -> DraftTree:
        """Copies, then the model's tree, then what the policy keeps of the copies, merged.

        Raises:
            ConfigError: the policy merges no copies, or keeps something else than a tree of them.
        """
        merging = merging_state(policy)
        copies, scores = self._copies.draft_scored(context, merging.copies)
        merging.offer(copies, scores)
        drafted = self._drafted = self._model.draft(context, policy)
        kept = _kept(merging, copies, drafted)
        if context.limits.chains_only and not merge(drafted, copies.part(kept)).tree.is_chain:
            drafted, kept = _better_chain(drafted, copies, kept, scores)
        kept = _affordable(drafted, copies, kept, context.limits)
        self._merged = merge(drafted, copies.part(kept)).tree
        return self._merged

    def read(self, tree: DraftTree, logits: Tensor, token_ids: Sequence[int]) -> None:
        """Passed on to a model that learns from laws; see `LawReader`. The tree is the merged one."""
        if isinstance(self._model, LawReader):
            self._model.read(tree, logits, token_ids)

    def commit(self, path: Sequence[int]) -> None:
        """The model keeps those of its own nodes that became text; what only copies held it reads later."""
        if self._merged is not None and self._drafted is not None and path:
            tokens = [self._merged.token_ids[node] for node in path[1:]]
            path = self._drafted.follow(tokens)
        self._model.commit(path)
        self._copies.commit(path)
        self._drafted = self._merged = None

    def close(self) -> None:
        """Give the memory of both back."""
        self._model.close()
        self._copies.close()


def merging_state(policy: PolicyState) -> MergingState:
    """The state, if it also shapes copies.

    Raises:
        ConfigError: it does not.
    """
    if not isinstance(policy, MergingState):
        raise ConfigError(
            f"{type(policy).__name__} shapes one drafter's tree, and hybrid drafting merges two; wrap the "
            "policy in MergingPolicy(policy, FixedPolicy.chain(8))"
        )
    return policy


def _kept(policy: MergingState, copies: DraftTree, drafted: DraftTree) -> list[int]:
    """The copies that the policy keeps, in order."""
    asked = policy.keep_copies(drafted)
    kept = sorted({operator.index(node) for node in asked})
    reachable = {0, *kept}
    if any(not 0 < n < len(copies) or copies.parents[n] not in reachable for n in kept):
        raise ConfigError(
            f"{type(policy).__name__} kept nodes {list(asked)!r} of {len(copies)} copies; it must name draft "
            "tokens, with each its parent"
        )
    return kept


def _better_chain(
    drafted: DraftTree, copies: DraftTree, kept: list[int], scores: Sequence[float]
) -> tuple[DraftTree, list[int]]:
    """One of two chains that part: that of copies where it is expected to give more than the model's can."""
    if sum(math.exp(scores[node]) for node in kept) > drafted.depth:
        common = len(drafted.follow(copies.path_tokens(kept[-1])))
        return drafted.part(range(1, common)), kept
    return drafted, []


def _affordable(
    drafted: DraftTree, copies: DraftTree, kept: list[int], limits: DraftLimits
) -> list[int]:
    """The copies that there is room for beside the model's tree, in their order."""
    room = limits.max_nodes - drafted.num_drafted
    if len(kept) <= room:
        return kept
    merged = merge(drafted, copies)
    own = set(merged.of_first)
    added = [node for node in kept if merged.of_second[node] not in own]
    return sorted({*kept} - {*added[max(room, 0) :]})
