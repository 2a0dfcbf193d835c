"""Stop rules: what ends a draft before its shape does, node by node, and how rules are joined.

A rule is asked before anything is drawn, and every token that was drawn stays. So a rule may look at the
text, at drawn tokens, at the drafter's laws and at earlier rounds, and drafts keep the kind of their shape:
one that grows stays exact with every verifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.protocols import (
    Candidates,
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
from foredraft.protocols.shared_features import shared, union_of


class StopState(Protocol):
    """A rule's view of one request."""

    def begin(self, text: Sequence[int]) -> None:
        """Called once a round, before the draft.

        Args:
            text: as in `PolicyState.plan`. Read only.
        """
        ...

    def going_on(self, frontier: Frontier) -> Sequence[bool]:
        """Asked before every level: whether each frontier node may have children, [F].

        The frontier holds the nodes to which the shape gives children. `scores` and `drawn_from` cost
        no pass; `log_probs` and `hidden` cost the level's, also of nodes that the rule then stops.
        """
        ...

    def observe(self, outcome: RoundOutcome) -> None:
        """Called once after each round that no stop of the answer cut short."""
        ...


class StopRule(Protocol):
    """Ends drafts."""

    def start(self) -> StopState:
        """State for one request."""
        ...


@runtime_checkable
class FeatureStopRule(StopRule, Protocol):
    """A rule that reads the target's hidden states; it is started with `start_reading`."""

    @property
    def taps(self) -> tuple[int, ...]:
        """What it reads, as in `FeatureTarget.start_tapped`."""
        ...

    def start_reading(self, take_features: TakeFeatures) -> StopState:
        """State for one request, which pulls features of committed tokens as it needs them."""
        ...


# --- a shape with a rule ----------------------------------------------------------------------------


class StoppingPolicy:
    """A shape whose nodes get no children where a rule stops.

    It is of the shape's kind, and selects among drawn tokens if the shape does. Where the shape or the
    rule reads the target's hidden states, what is made is a `FeaturePolicy`.

    Args:
        shape: says how many children each node gets.
        rule: says which nodes get none all the same.
    """

    def __new__(cls, shape: Policy, rule: StopRule) -> StoppingPolicy:
        """One that reads hidden states if a part of it does: the engine starts those otherwise."""
        reads = bool(_readers(shape, rule))
        return super().__new__(ReadingStoppingPolicy if reads else cls)

    def __init__(self, shape: Policy, rule: StopRule) -> None:
        self.shape, self.rule = shape, rule
        self.kind, self.branches, self.max_nodes = shape.kind, shape.branches, shape.max_nodes

    def start(self) -> StoppingState:
        """State for one request."""
        return _state(self.shape.start(), self.rule.start())


class ReadingStoppingPolicy(StoppingPolicy):
    """A `StoppingPolicy` of which the shape, the rule or both read the target's hidden states."""

    def __init__(self, shape: Policy, rule: StopRule) -> None:
        super().__init__(shape, rule)
        self.taps = union_of([reader.taps for reader in _readers(shape, rule)])

    def start(self) -> StoppingState:
        """Refused: a part of it cannot work without the target's features."""
        raise _unread()

    def start_reading(self, take_features: TakeFeatures) -> StoppingState:
        """State for one request; each part that reads gets the features of its own taps."""
        return _state(*_started((self.shape, self.rule), take_features))


class StoppingState:
    """One request's shape and rule."""

    def __init__(self, shape: PolicyState, rule: StopState) -> None:
        self._shape, self._rule = shape, rule

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        """The shape's limits; a new draft begins."""
        self._rule.begin(text)
        return self._shape.plan(limits, text)

    def grow(self, frontier: Frontier) -> Sequence[int]:
        """The shape's counts, 0 where the rule stops."""
        counts = self._shape.grow(frontier)
        rows = [row for row, count in enumerate(counts) if count]
        if not rows or len(counts) != len(frontier.nodes):  # which growth refuses
            return counts
        growing = narrowed(frontier, rows)
        kept = {row for row, on in zip(rows, answers(self._rule, growing), strict=True) if on}
        return [count if row in kept else 0 for row, count in enumerate(counts)]

    def observe(self, outcome: RoundOutcome) -> None:
        """Both learn."""
        self._shape.observe(outcome)
        self._rule.observe(outcome)


class SelectingStoppingState(StoppingState):
    """A `SelectingState`: the shape selects among what was drawn until the rule stopped."""

    def __init__(self, shape: SelectingState, rule: StopState) -> None:
        super().__init__(shape, rule)
        self._selecting = shape

    @property
    def max_candidates(self) -> int:
        """The shape's own."""
        return self._selecting.max_candidates

    def select(self, candidates: Candidates, max_nodes: int) -> Sequence[int]:
        """The shape's choice."""
        return self._selecting.select(candidates, max_nodes)


def _state(shape: PolicyState, rule: StopState) -> StoppingState:
    if isinstance(shape, MergingState):
        raise ConfigError(
            f"{type(shape).__name__} merges copies with a model's tree, and no stop rule goes around both; "
            "put the rule around the shape of the model's tree"
        )
    if isinstance(shape, SelectingState):
        return SelectingStoppingState(shape, rule)
    return StoppingState(shape, rule)


def narrowed(frontier: Frontier, rows: Sequence[int]) -> Frontier:
    """The frontier of some of its nodes. What costs a pass costs that of the whole frontier.

    Args:
        frontier: of F nodes.
        rows: places of the nodes that stay, increasing.
    """
    if len(rows) == len(frontier.nodes):
        return frontier

    def part(read: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        return lambda: None if (whole := read()) is None else whole[list(rows)]

    def scores() -> list[float] | None:
        whole = frontier.scores()
        return None if whole is None else [whole[row] for row in rows]

    return replace(
        frontier,
        nodes=tuple(frontier.nodes[row] for row in rows),
        token_ids=tuple(frontier.token_ids[row] for row in rows),
        parents=tuple(frontier.parents[row] for row in rows),
        ranks=tuple(frontier.ranks[row] for row in rows),
        scores=scores,
        log_probs=part(frontier.log_probs),
        hidden=part(frontier.hidden),
        drawn_from=part(frontier.drawn_from),
    )


def answers(rule: StopState, frontier: Frontier) -> list[bool]:
    """What a rule says of each node.

    Raises:
        ConfigError: it did not give one answer for each.
    """
    given = rule.going_on(frontier)
    if len(given) != len(frontier.nodes):
        raise ConfigError(
            f"{type(rule).__name__} gave {len(given)} answers for {len(frontier.nodes)} nodes; it must say "
            "of each whether it may have children"
        )
    return [bool(answer) for answer in given]


# --- rules of rules ---------------------------------------------------------------------------------


def all_of(*rules: StopRule) -> StopRule:
    """Stops a node when all of the rules stop it: the longest of their drafts."""
    return _composed(rules, any)


def any_of(*rules: StopRule) -> StopRule:
    """Stops a node when any of the rules stops it: the shortest of their drafts."""
    return _composed(rules, all)


Quantifier = Callable[[Iterable[bool]], bool]
"""From what each rule says of a node to whether it goes on."""


class ComposedRule:
    """Several rules that decide together. Each is asked at every level, of the same nodes."""

    def __init__(self, rules: Sequence[StopRule], goes_on: Quantifier) -> None:
        self.rules, self.goes_on = tuple(rules), goes_on

    def start(self) -> ComposedState:
        """A state of each."""
        return ComposedState([rule.start() for rule in self.rules], self.goes_on)


class ReadingComposedRule(ComposedRule):
    """Several rules of which some read the target's hidden states."""

    def __init__(self, rules: Sequence[StopRule], goes_on: Quantifier) -> None:
        super().__init__(rules, goes_on)
        self.taps = union_of([reader.taps for reader in _readers(*rules)])

    def start(self) -> ComposedState:
        """Refused: a rule of it cannot work without the target's features."""
        raise _unread()

    def start_reading(self, take_features: TakeFeatures) -> ComposedState:
        """A state of each; those that read get the features of their own taps."""
        return ComposedState(_started(self.rules, take_features), self.goes_on)


class ComposedState:
    """The rules' states of one request."""

    def __init__(self, states: Sequence[StopState], goes_on: Quantifier) -> None:
        self._states, self._goes_on = tuple(states), goes_on

    def begin(self, text: Sequence[int]) -> None:
        """Passed on to each."""
        for state in self._states:
            state.begin(text)

    def going_on(self, frontier: Frontier) -> Sequence[bool]:
        """What the rules make of each node together."""
        said = [answers(state, frontier) for state in self._states]
        return [self._goes_on(of_node) for of_node in zip(*said, strict=True)]

    def observe(self, outcome: RoundOutcome) -> None:
        """Passed on to each."""
        for state in self._states:
            state.observe(outcome)


def _composed(rules: Sequence[StopRule], goes_on: Quantifier) -> StopRule:
    if not rules:
        raise ConfigError("all_of and any_of join stop rules, and none was given; give one or more")
    if len(rules) == 1:
        return rules[0]
    return (ReadingComposedRule if _readers(*rules) else ComposedRule)(rules, goes_on)


# --- parts that read hidden states ------------------------------------------------------------------


def _readers(*parts: Policy | StopRule) -> list[FeaturePolicy | FeatureStopRule]:
    return [part for part in parts if isinstance(part, FeaturePolicy | FeatureStopRule)]


def _started(parts: Sequence[Any], take_features: TakeFeatures) -> list[Any]:
    """The state of each part, in order; those that read share what `take_features` gives."""
    takes = shared(take_features, [reader.taps for reader in _readers(*parts)])
    return [part.start_reading(takes.pop(0)) if _readers(part) else part.start() for part in parts]


def _unread() -> ConfigError:
    return ConfigError(
        "this stop rule reads the target's hidden states; use it in an Engine, or start_reading"
    )
