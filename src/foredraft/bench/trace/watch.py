"""Seeing every round of a request through the public extension points, without changing it.

The target and the policy of an engine are wrapped. They pass everything on and keep references to what
went through their hands: no pass is added, no noise is drawn, and nothing is computed while the clock
of a round runs, except the drafter's law of a level that has been drawn from.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from foredraft.engine.engine import Engine
from foredraft.protocols import (
    DraftLimits,
    Frontier,
    ModelState,
    Policy,
    PolicyState,
    RoundOutcome,
    Target,
)


@dataclass(frozen=True, slots=True)
class DraftLevel:
    """The drafter's laws after the nodes of one level."""

    nodes: tuple[int, ...]
    log_probs: Tensor
    """[F, V'], as `Frontier.log_probs` gave them."""


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


class Watch:
    """Collects the round in progress of one request."""

    def __init__(self) -> None:
        self.token_ids: tuple[int, ...] = ()
        self.parents: tuple[int, ...] = ()
        self.logits: Tensor | None = None
        self.path: tuple[int, ...] = ()
        self.levels: list[DraftLevel] = []

    def take(self) -> Sighting:
        """The round that has just ended; called once after each step of the stream."""
        assert self.logits is not None, "no round has ended"
        seen = Sighting(self.token_ids, self.parents, self.logits, self.path, tuple(self.levels))
        self.logits, self.levels = None, []
        return seen


def watched(engine: Engine, watch: Watch) -> Engine:
    """The same engine for one request, seen by `watch`: same tokens, same verdicts, same passes."""
    policy = None if engine.policy is None else WatchedPolicy(engine.policy, watch)
    target = WatchedTarget(engine.target, watch)
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


class WatchedPolicy:
    """A `Policy` that shows the drafter's laws."""

    def __init__(self, policy: Policy, watch: Watch) -> None:
        self._policy, self._watch = policy, watch
        self.kind, self.branches, self.max_nodes = policy.kind, policy.branches, policy.max_nodes

    def start(self) -> WatchedPolicyState:
        """The policy's own state, watched."""
        return WatchedPolicyState(self._policy.start(), self._watch)


class WatchedPolicyState:
    """A `PolicyState` that reads the law of a level when children are sure to be drawn from it.

    The draft pass of such a level is made in any case. Of a level that the policy ends, or that finds
    no room left in the draft, the law is not read, since that pass may be saved.
    """

    def __init__(self, policy: PolicyState, watch: Watch) -> None:
        self._policy, self._watch = policy, watch
        self._room, self._most_children = 0, 0

    def plan(self, limits: DraftLimits) -> DraftLimits:
        """Passed on; a new draft begins."""
        planned = self._policy.plan(limits)
        self._watch.levels = []
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
        if self._takes_room(counts) and not laws:
            log_probs()
        if laws and laws[0] is not None:
            self._watch.levels.append(DraftLevel(frontier.nodes, laws[0]))
        return counts

    def observe(self, outcome: RoundOutcome) -> None:
        """Passed on."""
        self._policy.observe(outcome)

    def _takes_room(self, counts: Sequence[int]) -> bool:
        """Whether there is room for a child, counting drafts as if every earlier level came whole."""
        room = self._room
        self._room -= min(sum(min(count, self._most_children) for count in counts), room)
        return room > 0 and any(count > 0 for count in counts)
