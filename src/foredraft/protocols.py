"""The four extension points, and the values that pass between them.

A *target* scores draft trees, a *drafter* proposes them, a *policy* decides their shape, a *verifier*
keeps what the target agrees with. Models are shared and hold no request; what belongs to one request
lives in the state object that `start` returns, and the session owns it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from foredraft.config import MAX_TREE_NODES
from foredraft.sampling.law import DraftLaw, TargetLaws
from foredraft.sampling.randomness import Randomness
from foredraft.tree import DraftTree, Proposal, TreeBuilder

# --- target -----------------------------------------------------------------------------------------


class ModelState(Protocol):
    """A model's memory of one sequence: a transactional KV cache, or nothing at all.

    *Committed* tokens are part of the text; *pending* ones were scored since the last `commit` and are
    kept or dropped by the next one.
    """

    @property
    def length(self) -> int:
        """Committed tokens."""
        ...

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Commit tokens without reading logits. Nothing may be pending."""
        ...

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Score N more pending nodes in one pass.

        Args:
            token_ids: [N] tokens.
            parents: [N] for each, the index of its parent among *all* pending nodes (those of earlier
                `score` calls since the last `commit` come first), or -1 for the committed text.

        Returns:
            Logits [N, V], before any processor; row i is the law of what follows node i.

        Raises:
            CacheError: the model did not write its cache as asked.
        """
        ...

    def commit(self, path: Sequence[int]) -> None:
        """Keep these pending nodes (increasing indices, one root-to-node path); drop all others.

        Afterwards `length` has grown by `len(path)` exactly and nothing is pending. An empty path
        is a rollback.
        """
        ...

    def close(self) -> None:
        """Give the memory back. The state must not be used afterwards."""
        ...


@runtime_checkable
class Target(Protocol):
    """The big model."""

    @property
    def vocab_size(self) -> int:
        """V: token ids that can be emitted, padding rows left out."""
        ...

    @property
    def context_length(self) -> int | None:
        """Most tokens in a sequence; None when there is no limit."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The model's own end tokens."""
        ...

    @property
    def device(self) -> torch.device:
        """Where its logits are."""
        ...

    @property
    def scores_trees(self) -> bool:
        """Whether a node sees its ancestors alone. If not, drafts are kept to chains."""
        ...

    def start(self, capacity: int) -> ModelState:
        """Memory for one sequence, prepared for `capacity` tokens (it may grow past that)."""
        ...

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read next measures finished work."""
        ...


@runtime_checkable
class FeatureState(ModelState, Protocol):
    """A `ModelState` that also keeps hidden states of what it commits, until they are taken."""

    def take_features(self) -> Tensor:
        """Features [n, F] of the tokens committed since the last call, oldest first; n may be 0.

        On the target's device, in the dtype of its hidden states.
        """
        ...


@runtime_checkable
class FeatureTarget(Target, Protocol):
    """A target whose hidden states drafters may read."""

    def start_tapped(self, capacity: int, taps: Sequence[int]) -> FeatureState:
        """As `start`, with features of every committed token.

        Args:
            capacity: tokens.
            taps: indices into Hugging Face's `hidden_states`: k in 0 .. n - 1 is the input of layer k, and
                n = num_hidden_layers the last hidden state after the final norm. The features of
                several taps stand behind one another in their order: F = len(taps) * hidden size.

        Raises:
            ModelError: a tap is out of range, or cannot be read from this model.
        """
        ...


@runtime_checkable
class ShowingState(ModelState, Protocol):
    """A `ModelState` that shows the last hidden states of its passes."""

    def last_hidden(self) -> Tensor | None:
        """What the language-model head read in the last `score`, [N, H]: after the final norm.

        None where the model does not run its head as a module. Made in inference mode.
        """
        ...


@runtime_checkable
class ShowingTarget(Target, Protocol):
    """A model whose last hidden states can be read while it drafts."""

    def start_showing(self, capacity: int) -> ShowingState:
        """As `start`, with the last hidden states of every pass."""
        ...


TakeFeatures = Callable[[], Tensor]
"""Features [n, F] of the tokens committed since the last call, oldest first; n may be 0."""


# --- policy -----------------------------------------------------------------------------------------


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
    """log of how likely the drafter thinks each node's path is, [F]; None from drafters without laws. Costs
    no pass. It is log q, summed over the laws that the tokens were drawn from, before temperature and
    filters; of coupled proposals above temperature 0, the noise that chooses the target's token is known
    and counts (`DraftLaw.coupled_scores`)."""
    column_ids: Tensor | None = None
    """Token id of each column of `log_probs`, int64 [C]; None where column i is token i."""
    hidden: Callable[[], Tensor | None] = _nothing
    """The drafter's last hidden state after each node, [F, H]: what its language-model head reads. None from
    drafters without one. It comes of the same draft pass as `log_probs`, and costs it as that does."""


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What became of a draft, for a policy to learn from."""

    tree: DraftTree
    num_accepted: int
    draft_s: float
    target_s: float


class PolicyState(Protocol):
    """A policy's view of one request."""

    def plan(self, limits: DraftLimits) -> DraftLimits:
        """Called once before each draft: tighten the limits, or return them as they are."""
        ...

    def grow(self, frontier: Frontier) -> Sequence[int]:
        """How many children each frontier node gets, [F], before any is drawn. All 0 ends the draft."""
        ...

    def observe(self, outcome: RoundOutcome) -> None:
        """Called once after each round that no stop cut short."""
        ...


@runtime_checkable
class SelectingState(PolicyState, Protocol):
    """What the policies of kind SELECTS that choose among drawn tokens give as their state.

    Their drafts grow up to `max_candidates` nodes; the tree is what `select` keeps of them.
    """

    @property
    def max_candidates(self) -> int:
        """Draft tokens at most in the tree that is selected from."""
        ...

    def select(self, scores: Sequence[float], max_nodes: int) -> Sequence[int]:
        """The draft tokens to keep: with each its parent, `max_nodes` of them at most.

        Args:
            scores: [N] log q of the path to every node, in tree order; 0 for the root, whose index 0
                is not part of the answer.
            max_nodes: room for draft tokens.
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


# --- drafter ----------------------------------------------------------------------------------------


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


# --- verifier ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of verification.

    Attributes:
        path: [A + 1] accepted nodes, root first.
        token_ids: [A + 1] the A accepted draft tokens, then one recovered or bonus token. Of a tree
            with open roots, the root and the A accepted draft tokens.
        left: of a tree with open roots, what rejections have left of the law after the path, float64
            [V]; None where nothing was rejected there, and of other trees.
    """

    path: tuple[int, ...]
    token_ids: tuple[int, ...]
    left: Tensor | None = None

    def __post_init__(self) -> None:
        assert len(self.path) == len(self.token_ids) >= 1

    @property
    def num_accepted(self) -> int:
        """A: draft tokens that were accepted."""
        return len(self.token_ids) - 1


@runtime_checkable
class Verifier(Protocol):
    """An acceptance algorithm."""

    @property
    def proposals(self) -> frozenset[Proposal]:
        """The kinds of proposals for which it keeps the target's law."""
        ...

    @property
    def policies(self) -> frozenset[PolicyKind]:
        """The kinds of policies for which it keeps the target's law."""
        ...

    @property
    def chains_only(self) -> bool:
        """Whether it verifies chains alone."""
        ...

    @property
    def reads_rejected(self) -> bool:
        """Whether it reads laws behind tokens that may be rejected; user processors are refused then."""
        ...

    def verify(self, tree: DraftTree, laws: TargetLaws, random: Randomness) -> Verdict:
        """Choose a path of the tree and one token more."""
        ...


@runtime_checkable
class RootVerifier(Verifier, Protocol):
    """A verifier of trees with open roots, which also chooses these."""

    @property
    def num_roots(self) -> int:
        """Roots at most."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether it keeps the target's law."""
        ...

    def choose_roots(self, law: Tensor, greedy: bool, random: Randomness) -> tuple[int, ...]:
        """The next tree's roots, all different.

        Args:
            law: of the next token, float64 [V]; of a greedy request, what ranks the tokens.
            greedy: whether the temperature is 0.
            random: the request's draws.
        """
        ...
