"""Seeing every round of a request through the public extension points, without changing it.

The target and the policy of an engine are wrapped. They pass everything on and keep references to what
went through their hands: no pass is added, no noise is drawn, and nothing is computed while the clock
of a round runs, except the drafter's law of a level that has been drawn from.

Where drafts are selected from candidates, or a level has nodes that get no children, reading its laws
would make its pass larger. Then the scores of paths stand in, which the drafter has anyway, when decoding
is greedy: above temperature 0 they may know the noise, and are no law.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from foredraft.engine.engine import Engine
from foredraft.protocols import (
    Candidates,
    Company,
    CompanyState,
    DraftLimits,
    FeaturePolicy,
    FeatureState,
    FeatureTarget,
    Frontier,
    MergingState,
    ModelState,
    Policy,
    PolicyState,
    RestoringState,
    RootVerifier,
    RoundOutcome,
    SelectingState,
    TakeFeatures,
    Target,
)
from foredraft.tree import DraftTree, Proposal


@dataclass(frozen=True, slots=True)
class DraftLevel:
    """The drafter's laws after the nodes of one level."""

    nodes: tuple[int, ...]
    log_probs: Tensor
    """[F, C], as `Frontier.log_probs` gave them."""
    column_ids: Tensor | None = None
    """int64 [C], increasing: the token of each column; None where column i is token i."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """One round as the target and the policy saw it. Holds logits of the whole tree: read it and let go."""

    token_ids: tuple[int, ...]
    """[N] the tree, its root first."""
    parents: tuple[int, ...]
    logits: Tensor
    """[N, V], before any processor."""
    path: tuple[int, ...]
    """Nodes that were committed, root first."""
    levels: tuple[DraftLevel, ...]
    """The levels whose law the drafter told; none from drafters without one."""
    scores: Mapping[int, float] = field(default_factory=dict)
    """How likely the drafter thought the path to a node, see `Frontier.scores`, where it is known."""


class Watch:
    """Collects the round in progress of one request."""

    def __init__(self) -> None:
        self.token_ids: tuple[int, ...] = ()
        self.parents: tuple[int, ...] = ()
        self.logits: Tensor | None = None
        self.path: tuple[int, ...] = ()
        self.levels: list[DraftLevel] = []
        self.scores: dict[int, float] = {}
        self.drafted: DraftTree | None = None  # whose levels and scores, if another tree was scored
        self.copies: tuple[DraftTree, Sequence[float]] | None = None  # what it was merged with

    def take(self) -> Sighting:
        """The round that has just ended; called once after each step of the stream."""
        assert self.logits is not None, "no round has ended"
        if self.drafted is not None:
            self._renumber(self.drafted)
        levels, scores = tuple(self.levels), dict(self.scores)
        seen = Sighting(self.token_ids, self.parents, self.logits, self.path, levels, scores)
        self.logits, self.levels, self.scores = None, [], {}
        self.drafted = self.copies = None
        return seen

    def _renumber(self, drafted: DraftTree) -> None:
        """Levels and scores by the nodes of the tree that was scored, as far as it holds them."""
        proposals = (Proposal.DETERMINISTIC,) * len(self.token_ids)
        scored = DraftTree(self.token_ids, self.parents, proposals)
        place = _places(drafted, scored)
        self.levels = [_kept(level, place) for level in self.levels]
        self.scores = {0: 0.0} | {place[n]: s for n, s in self.scores.items() if n in place}
        if self.copies is not None:
            self._add_copies(*self.copies, scored)

    def _add_copies(self, copies: DraftTree, scores: Sequence[float], scored: DraftTree) -> None:
        """Scores of nodes that the model has none for."""
        for node, at in _places(copies, scored).items():
            above = scored.parents[at]
            if at not in self.scores and above in self.scores:
                given = scores[node] - scores[copies.parents[node]]
                self.scores[at] = self.scores[above] + given


def traceable(engine: Engine) -> bool:
    """Whether drafts follow the text's last token, which a trace shows as the root of their tree."""
    return not isinstance(engine.verifier, RootVerifier)


def watched(engine: Engine, watch: Watch) -> Engine:
    """The same engine for one request, seen by `watch`: same tokens, same verdicts, same passes."""
    policy = None if engine.policy is None else _watched_policy(engine.policy, watch)
    shows_features = isinstance(engine.target, FeatureTarget)
    target = (WatchedFeatureTarget if shows_features else WatchedTarget)(engine.target, watch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `engine` gave the same ones when it was built
        return Engine(target, engine.drafter, policy, engine.verifier, engine.tokenizer)


class WatchedTarget:
    """A `Target` that shows its passes."""

    def __init__(self, target: Target, watch: Watch) -> None:
        self._target, self._watch = target, watch
        self.vocab_size, self.context_length = target.vocab_size, target.context_length
        self.eos_token_ids, self.device = target.eos_token_ids, target.device
        self.scores_trees = target.scores_trees

    def start(self, capacity: int) -> WatchedState:
        """The target's own state, watched."""
        return WatchedState(self._target.start(capacity), self._watch)

    def synchronize(self) -> None:
        """As the target does."""
        self._target.synchronize()


class WatchedFeatureTarget(WatchedTarget):
    """A `FeatureTarget` that shows its passes."""

    def start_tapped(self, capacity: int, taps: Sequence[int]) -> WatchedFeatureState:
        """The target's own state, watched."""
        assert isinstance(self._target, FeatureTarget)
        return WatchedFeatureState(self._target.start_tapped(capacity, taps), self._watch)


class WatchedState:
    """A `ModelState` that shows what it scores and commits."""

    def __init__(self, state: ModelState, watch: Watch) -> None:
        self._state, self._watch = state, watch

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._state.length

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Passed on."""
        self._state.prefill(token_ids)

    @property
    def restored(self) -> int:
        """As of the target's own state."""
        return self._state.restored if isinstance(self._state, RestoringState) else 0

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Passed on; the tree and its logits are kept."""
        logits = self._state.score(token_ids, parents)
        self._watch.token_ids, self._watch.parents = tuple(token_ids), tuple(parents)
        self._watch.logits = logits
        return logits

    def commit(self, path: Sequence[int]) -> None:
        """Passed on; the path is kept."""
        self._state.commit(path)
        self._watch.path = tuple(path)

    def close(self) -> None:
        """Passed on."""
        self._state.close()


class WatchedFeatureState(WatchedState):
    """A `FeatureState` that shows what it scores and commits."""

    def __init__(self, state: FeatureState, watch: Watch) -> None:
        super().__init__(state, watch)
        self.take_features = state.take_features


class WatchedPolicy:
    """A `Policy` that shows the drafter's laws."""

    def __init__(self, policy: Policy, watch: Watch) -> None:
        self._policy, self._watch = policy, watch
        self.kind, self.branches, self.max_nodes = policy.kind, policy.branches, policy.max_nodes

    def start(self) -> WatchedPolicyState:
        """The policy's own state, watched."""
        return self._watched(self._policy.start())

    def _watched(self, state: PolicyState) -> WatchedPolicyState:
        if isinstance(state, SelectingState):
            if isinstance(state, MergingState):
                return WatchedSelectingMergingState(state, self._watch)
            return WatchedSelectingState(state, self._watch)
        if isinstance(state, MergingState):
            return WatchedMergingState(state, self._watch)
        return WatchedPolicyState(state, self._watch)


class WatchedFeaturePolicy(WatchedPolicy):
    """A `FeaturePolicy` that shows the drafter's laws."""

    def __init__(self, policy: FeaturePolicy, watch: Watch) -> None:
        super().__init__(policy, watch)
        self._reading, self.taps = policy, policy.taps

    def start_reading(self, take_features: TakeFeatures) -> WatchedPolicyState:
        """The policy's own state, watched."""
        return self._watched(self._reading.start_reading(take_features))


def _watched_policy(policy: Policy, watch: Watch) -> WatchedPolicy:
    if isinstance(policy, FeaturePolicy):
        return WatchedFeaturePolicy(policy, watch)
    return WatchedPolicy(policy, watch)


class WatchedPolicyState:
    """A `PolicyState` that reads the law of a level when children are sure to be drawn from all of it.

    The draft pass of such a level is made in any case. Of a level that the policy ends, that finds no
    room left in the draft, or of which some nodes get no children, the law is not read, since that pass
    may be saved or be smaller; of its nodes the scores are kept.
    """

    def __init__(self, policy: PolicyState, watch: Watch) -> None:
        self._policy, self._watch = policy, watch
        self._room, self._most_children = 0, 0

    def join(self, company: Company) -> None:
        """Passed on to a policy that heeds it."""
        if isinstance(self._policy, CompanyState):
            self._policy.join(company)

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        """Passed on; a new draft begins."""
        planned = self._policy.plan(limits, text)
        self._watch.levels, self._watch.scores = [], {}
        self._room = min(planned.max_nodes, limits.max_nodes)
        chains_only = planned.chains_only or limits.chains_only
        self._most_children = 1 if chains_only else self._room
        return planned

    def grow(self, frontier: Frontier) -> Sequence[int]:
        """Passed on; keeps the law if the policy read it or the level will be drawn from."""
        laws: list[Tensor | None] = []

        def log_probs() -> Tensor | None:
            laws.append(frontier.log_probs())
            return laws[-1]

        asked = self._policy.grow(replace(frontier, log_probs=log_probs))
        try:
            counts = [operator.index(count) for count in asked]
        except TypeError:  # no counts at all: the drafter refuses them in its own words
            return asked
        self._note_scores(frontier)
        if self._takes_all(counts) and not laws:
            log_probs()
        if laws and laws[0] is not None:
            level = DraftLevel(frontier.nodes, laws[0], frontier.column_ids)
            self._watch.levels.append(level)
        return counts

    def observe(self, outcome: RoundOutcome) -> None:
        """Passed on."""
        self._policy.observe(outcome)

    def _note_scores(self, frontier: Frontier) -> None:
        scores = frontier.scores()
        if scores is not None:
            self._watch.scores |= dict(zip(frontier.nodes, scores, strict=True))

    def _takes_all(self, counts: Sequence[int]) -> bool:
        """Whether every node gets a child, counting drafts as if every earlier level came whole."""
        room = self._room
        asked = sum(min(count, self._most_children) for count in counts)
        self._room -= min(asked, room)
        before_last = asked - min(counts[-1], self._most_children) if counts else 0
        return before_last < room and all(count > 0 for count in counts)


class WatchedSelectingState(WatchedPolicyState):
    """A `SelectingState`; what was kept of the growth gets the numbers of the nodes in the draft."""

    def __init__(self, policy: SelectingState, watch: Watch) -> None:
        super().__init__(policy, watch)
        self._selecting = policy

    @property
    def max_candidates(self) -> int:
        """The policy's own."""
        return self._selecting.max_candidates

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        """Passed on; candidates grow past the limit of nodes."""
        planned = super().plan(limits, text)
        self._room = self.max_candidates
        return planned

    def select(self, candidates: Candidates, max_nodes: int) -> Sequence[int]:
        """Passed on; the scores of what is kept are kept."""
        selected = self._selecting.select(candidates, max_nodes)
        kept = [0, *sorted({operator.index(node) for node in selected})]
        if 0 <= kept[0] <= kept[-1] < len(candidates):
            self._watch.scores = {new: candidates.scores[old] for new, old in enumerate(kept)}
        place = {old: new for new, old in enumerate(kept)}
        self._watch.levels = [_kept(level, place) for level in self._watch.levels]
        return selected


class WatchedMergingState(WatchedPolicyState):
    """A `MergingState`; what is seen of the model's tree gets the numbers of its nodes in the merged one."""

    _policy: MergingState

    @property
    def copies(self) -> PolicyState:
        """The policy's own: copies come of no laws."""
        return self._policy.copies

    def offer(self, copies: DraftTree, scores: Sequence[float]) -> None:
        """Passed on; the copies are kept."""
        self._watch.copies = copies, scores
        self._policy.offer(copies, scores)

    def keep_copies(self, drafted: DraftTree) -> Sequence[int]:
        """Passed on; the model's tree is kept."""
        self._watch.drafted = drafted
        return self._policy.keep_copies(drafted)


class WatchedSelectingMergingState(WatchedMergingState, WatchedSelectingState):
    """A `MergingState` that is a `SelectingState` too."""


def _places(tree: DraftTree, scored: DraftTree) -> dict[int, int]:
    """The nodes of a tree, and where they are in the one that was scored, if it holds them."""
    paths = {node: scored.follow(tree.path_tokens(node)) for node in range(len(tree))}
    return {node: path[-1] for node, path in paths.items() if len(path) > tree.depths[node]}


def _kept(level: DraftLevel, place: Mapping[int, int]) -> DraftLevel:
    """The part of a level whose nodes were kept, by their new numbers."""
    rows = [row for row, node in enumerate(level.nodes) if node in place]
    nodes = tuple(place[level.nodes[row]] for row in rows)
    return DraftLevel(nodes, level.log_probs[rows], level.column_ids)
