"""What a drafter is: it proposes trees, and remembers one text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from foredraft.protocols.policy import DraftLimits, Policy, PolicyState
from foredraft.protocols.target import TakeFeatures
from foredraft.sampling.law import DraftLaw
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree, Proposal, TreeBuilder


@dataclass(frozen=True, slots=True)
class DraftContext:
    """What a drafter sees of a session at the start of a round."""

    token_ids: Sequence[int]
    """Prompt and answer so far; the last one is the root, unless there are open ones. Read only."""
    limits: DraftLimits
    law: DraftLaw
    """The request's sampling options as they apply to drafts."""
    random: Randomness
    open_roots: tuple[int, ...] = ()
    """Candidates of the target's own for the next token, which the tree starts from; see `DraftTree`."""

    @property
    def roots(self) -> tuple[int, ...]:
        """The roots of the tree."""
        return self.open_roots or (self.token_ids[-1],)

    @property
    def known_ids(self) -> Sequence[int]:
        """The text without its root."""
        return self.token_ids if self.open_roots else self.token_ids[:-1]

    def builder(self) -> TreeBuilder:
        """A tree of the roots alone, to grow."""
        return TreeBuilder(*self.roots, open_roots=bool(self.open_roots))


class DrafterState(Protocol):
    """A drafter's memory of one request."""

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Called once, before the first draft; counts as prefill.

        Args:
            token_ids: the prompt but its last token; where roots are open, the whole prompt.
        """
        ...

    def draft(self, context: DraftContext, policy: PolicyState) -> DraftTree:
        """Propose a tree that starts from `context.roots`, within `context.limits`."""
        ...

    def commit(self, path: Sequence[int]) -> None:
        """The nodes of the last tree that became text, root first. Everything else is forgotten."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


@runtime_checkable
class LawReader(DrafterState, Protocol):
    """A `DrafterState` that learns from what the target said of its drafts."""

    def read(self, tree: DraftTree, logits: Tensor, token_ids: Sequence[int]) -> None:
        """Called once each round after the target's pass, before the text grows.

        Args:
            tree: what was scored.
            logits: [N, V] the target's after each node, before any processor. They are not written again.
            token_ids: the text that the tree follows, as in `DraftContext`.
        """
        ...


@runtime_checkable
class Drafter(Protocol):
    """Whatever proposes."""

    @property
    def proposals(self) -> frozenset[Proposal]:
        """Every kind of proposal its trees may hold."""
        ...

    @property
    def default_policy(self) -> Policy:
        """The policy to use when the user names none."""
        ...

    def start(self, capacity: int) -> DrafterState:
        """Memory for one request of at most `capacity` tokens."""
        ...


@runtime_checkable
class FeatureDrafter(Drafter, Protocol):
    """A drafter that reads the target's hidden states; the engine starts it with `start_reading`."""

    @property
    def taps(self) -> tuple[int, ...]:
        """What it reads, as in `FeatureTarget.start_tapped`."""
        ...

    def start_reading(self, capacity: int, take_features: TakeFeatures) -> DrafterState:
        """Memory for one request of at most `capacity` tokens, which pulls features as it needs them."""
        ...
