"""What a policy is: it decides the shape of drafts, level by level."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from foredraft.config import MAX_TREE_NODES
from foredraft.protocols.target import TakeFeatures
from foredraft.tree import DraftTree


class PolicyKind(enum.Enum):
    """What a policy does with tokens that were drawn; see design, section 4.3."""

    GROWS = "grows"
    """Decides whether to draw more. It may look at drawn tokens, and they stay."""
    SELECTS = "selects"
    """Drops or reranks drawn tokens. Only exact verification stays lossless."""


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """Room for this round's draft, whatever the policy asks for."""

    max_depth: int
    """Levels at most: what the answer and the context have room for."""
    max_nodes: int = MAX_TREE_NODES - 1
    """Draft tokens at most."""
    chains_only: bool = False
    """At most one child a node."""


def _nothing() -> None:
    """What is asked for is not there."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """The nodes whose children are decided next: all at one depth, in tree order."""

    depth: int
    nodes: tuple[int, ...]
    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    """Tree node that each node is a child of; -1 for the root."""
    ranks: tuple[int, ...]
    """Place of each node among its siblings, in draw order; 0 first."""
    log_probs: Callable[[], Tensor | None]
    """The drafter's log-law after each node, before temperature and filters, [F, C]; None from drafters
    without one. Calling it costs the draft pass of this level for all of its nodes; a policy that answers
    without calling it saves that of the nodes to which it gives no children."""
    scores: Callable[[], list[float] | None]
    """log of how likely the drafter thinks each node's path is, [F]; None from drafters that cannot tell.
    Costs no pass. It is log q, summed over the laws that the tokens were drawn from, before temperature and
    filters; of coupled proposals above temperature 0, the noise that chooses the target's token is known
    and counts (`DraftLaw.coupled_scores`). Of copies it is how often such copies were right."""
    column_ids: Tensor | None = None
    """Token id of each column of `log_probs`, int64 [C]; None where column i is token i."""
    hidden: Callable[[], Tensor | None] = _nothing
    """The drafter's last hidden state after each node, [F, H]: what its language-model head reads. None from
    drafters without one. It comes of the same draft pass as `log_probs`, and costs it as that does."""
    drawn_from: Callable[[], Tensor | None] = _nothing
    """The drafter's log-law that each node was drawn from, [F, C], before temperature and filters: the row of
    `log_probs` after its parent. Costs no pass. None at the root, which was not drafted, and from drafters
    without laws."""


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What became of a draft, for a policy to learn from."""

    tree: DraftTree
    num_accepted: int
    draft_s: float
    target_s: float
    path: tuple[int, ...] = ()
    """Nodes that were accepted, the root first: at each of them the target chose among its children."""
    token_ids: tuple[int, ...] = ()
    """What the target chose after each of these nodes: the accepted tokens and one more."""


class PolicyState(Protocol):
    """A policy's view of one request."""

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        """Called once before each draft: tighten the limits, or return them as they are.

        Args:
            limits: room for the draft.
            text: prompt and answer so far; the last token is the root, unless there are open ones. Read only.
        """
        ...

    def grow(self, frontier: Frontier) -> Sequence[int]:
        """How many children each frontier node gets, [F], before any is drawn. All 0 ends the draft."""
        ...

    def observe(self, outcome: RoundOutcome) -> None:
        """Called once after each round that no stop cut short."""
        ...


@dataclass(frozen=True, slots=True)
class Company:
    """The other sequences of a batch, with which this one shares the passes of a round."""

    members: int = 0
    """How many they are."""
    rows: int = 0
    """Rows that they are expected to have in the target's pass."""
    tokens: float = 0.0
    """Tokens that the round is expected to give them."""


ALONE = Company()


@runtime_checkable
class CompanyState(PolicyState, Protocol):
    """State of a policy that heeds who shares its passes: rows that cost little alone may cost more there."""

    def join(self, company: Company) -> None:
        """Called before each `plan` of a request in a batch."""
        ...


@dataclass(frozen=True, slots=True)
class Candidates:
    """A grown tree that a draft is selected from; N nodes in tree order, the root first."""

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    """[N] tree node that each node is a child of; -1 for the root."""
    scores: tuple[float, ...]
    """[N] log of how likely the drafter thinks each path is, as in `Frontier.scores`; 0 for the root."""

    def __len__(self) -> int:
        return len(self.token_ids)


@runtime_checkable
class SelectingState(PolicyState, Protocol):
    """What the policies of kind SELECTS that choose among drawn tokens give as their state.

    Their drafts grow up to `max_candidates` nodes; the tree is what `select` keeps of them.
    """

    @property
    def max_candidates(self) -> int:
        """Draft tokens at most in the tree that is selected from."""
        ...

    def select(self, candidates: Candidates, max_nodes: int) -> Sequence[int]:
        """The draft tokens to keep: with each its parent, `max_nodes` of them at most.

        Args:
            candidates: all that was grown. The root, node 0, is not part of the answer.
            max_nodes: room for draft tokens.
        """
        ...


@runtime_checkable
class MergingState(PolicyState, Protocol):
    """State of a policy that also shapes a branch of copies, which is merged with a model's tree.

    In each round the copies are drafted first, by `copies`; they are then shown to the policy (`offer`);
    then the model drafts by the policy itself, and at last `keep_copies` says what of the copies goes into
    the merged tree. Since copies may be dropped for what they are, such policies are of kind SELECTS.
    """

    @property
    def copies(self) -> PolicyState:
        """What shapes the tree of copies."""
        ...

    def offer(self, copies: DraftTree, scores: Sequence[float]) -> None:
        """Called once a round, before the model drafts.

        Args:
            copies: the tree of copies, from the same root.
            scores: [N] log of how likely each of its paths is thought to be; 0 for the root.
        """
        ...

    def keep_copies(self, drafted: DraftTree) -> Sequence[int]:
        """Nodes of the copies to merge, with each its parent; called once the model has drafted.

        Args:
            drafted: the model's tree. Copies of tokens that it holds in the same place take no room.
        """
        ...


@runtime_checkable
class Policy(Protocol):
    """Decides the shape of the draft."""

    @property
    def kind(self) -> PolicyKind:
        """Whether it only grows drafts or also selects among drawn tokens."""
        ...

    @property
    def branches(self) -> bool:
        """Whether it may ask for more than one child a node."""
        ...

    @property
    def max_nodes(self) -> int:
        """Draft tokens at most in one draft."""
        ...

    def start(self) -> PolicyState:
        """State for one request."""
        ...


@runtime_checkable
class FeaturePolicy(Policy, Protocol):
    """A policy that reads the target's hidden states; the engine starts it with `start_reading`."""

    @property
    def taps(self) -> tuple[int, ...]:
        """What it reads, as in `FeatureTarget.start_tapped`."""
        ...

    def start_reading(self, take_features: TakeFeatures) -> PolicyState:
        """State for one request, which pulls features of committed tokens as it needs them."""
        ...
