"""A policy whose decisions are charged to a stopwatch."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.bench.profile.stopwatch import Stopwatch
from foredraft.protocols import (
    Candidates,
    Company,
    CompanyState,
    DraftLimits,
    FeaturePolicy,
    Frontier,
    MergingState,
    Policy,
    PolicyState,
    RoundOutcome,
    SelectingState,
    TakeFeatures,
)
from foredraft.tree import DraftTree

POLICY, OBSERVE = "policy", "policy observes"


class TimedPolicy:
    """A `Policy` whose states are timed."""

    def __init__(self, policy: Policy, watch: Stopwatch) -> None:
        self._policy, self._watch = policy, watch
        self.kind, self.branches, self.max_nodes = policy.kind, policy.branches, policy.max_nodes

    def start(self) -> PolicyState:
        """The policy's own state, timed."""
        return timed_policy_state(self._policy.start(), self._watch)


class TimedFeaturePolicy(TimedPolicy):
    """A `FeaturePolicy` likewise."""

    def __init__(self, policy: FeaturePolicy, watch: Stopwatch) -> None:
        super().__init__(policy, watch)
        self._reading, self.taps = policy, policy.taps

    def start_reading(self, take_features: TakeFeatures) -> PolicyState:
        """The policy's own state, timed."""
        return timed_policy_state(self._reading.start_reading(take_features), self._watch)


def timed_policy(policy: Policy, watch: Stopwatch) -> TimedPolicy:
    """The policy, timed."""
    if isinstance(policy, FeaturePolicy):
        return TimedFeaturePolicy(policy, watch)
    return TimedPolicy(policy, watch)


def timed_policy_state(state: PolicyState, watch: Stopwatch) -> PolicyState:
    """A state of the same kinds, timed."""
    if isinstance(state, MergingState):
        selects = isinstance(state, SelectingState)
        return (TimedSelectingMergingState if selects else TimedMergingState)(state, watch)
    selects = isinstance(state, SelectingState)
    return (TimedSelectingState if selects else TimedPolicyState)(state, watch)


class TimedPolicyState:
    """A `PolicyState` whose decisions are charged. Draft passes that it asks for are charged as passes."""

    def __init__(self, state: PolicyState, watch: Stopwatch) -> None:
        self._state, self._watch = state, watch

    def join(self, company: Company) -> None:
        """Passed on to a policy that heeds it."""
        if isinstance(self._state, CompanyState):
            self._state.join(company)

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        """Passed on."""
        with self._watch.charge(POLICY):
            return self._state.plan(limits, text)

    def grow(self, frontier: Frontier) -> Sequence[int]:
        """Passed on."""
        with self._watch.charge(POLICY):
            return self._state.grow(frontier)

    def observe(self, outcome: RoundOutcome) -> None:
        """Passed on."""
        with self._watch.charge(OBSERVE):
            self._state.observe(outcome)


class TimedSelectingState(TimedPolicyState):
    """A `SelectingState` likewise."""

    _state: SelectingState

    @property
    def max_candidates(self) -> int:
        """The policy's own."""
        return self._state.max_candidates

    def select(self, candidates: Candidates, max_nodes: int) -> Sequence[int]:
        """Passed on."""
        with self._watch.charge(POLICY):
            return self._state.select(candidates, max_nodes)


class TimedMergingState(TimedPolicyState):
    """A `MergingState` likewise."""

    _state: MergingState

    @property
    def copies(self) -> PolicyState:
        """The policy of the copies, timed."""
        return timed_policy_state(self._state.copies, self._watch)

    def offer(self, copies: DraftTree, scores: Sequence[float]) -> None:
        """Passed on."""
        with self._watch.charge(POLICY):
            self._state.offer(copies, scores)

    def keep_copies(self, drafted: DraftTree) -> Sequence[int]:
        """Passed on."""
        with self._watch.charge(POLICY):
            return self._state.keep_copies(drafted)


class TimedSelectingMergingState(TimedMergingState):
    """A `MergingState` that is a `SelectingState` too."""

    @property
    def max_candidates(self) -> int:
        """The policy's own."""
        assert isinstance(self._state, SelectingState)
        return self._state.max_candidates

    def select(self, candidates: Candidates, max_nodes: int) -> Sequence[int]:
        """Passed on."""
        assert isinstance(self._state, SelectingState)
        with self._watch.charge(POLICY):
            return self._state.select(candidates, max_nodes)
