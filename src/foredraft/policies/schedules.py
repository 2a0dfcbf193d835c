"""Stop rules of the draft's length alone: a constant one, and lengths that follow what was accepted.

A length belongs to its request: the next one begins anew, so that a seed gives the same text whatever was
asked before. Rounds that had no room for a draft say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from foredraft.errors import ConfigError
from foredraft.policies.thresholds import check_between
from foredraft.protocols import Frontier, RoundOutcome

LENGTH = 20
"""The library's default for assisted generation."""


class ConstantRule:
    """Stops at one depth: drafts of a set length, in which other rules may have a part.

    Args:
        length: levels at most, 1 or more.

    Raises:
        ConfigError: a length below 1.
    """

    def __init__(self, length: int = LENGTH) -> None:
        _check_length(length)
        self.length = length

    def start(self) -> LengthState:
        """State for one request."""
        return LengthState(self.length, None)


class LengthState:
    """The length of one request's drafts, a number that need not be whole."""

    def __init__(self, length: float, longest: int | None) -> None:
        self._longest = math.inf if longest is None else longest
        self.length = min(length, self._longest)

    def begin(self, text: Sequence[int]) -> None:
        """A new draft; the text is not read."""

    def going_on(self, frontier: Frontier) -> Sequence[bool]:
        """Whether the draft is still shorter, for all nodes of a level."""
        return [frontier.depth < math.ceil(self.length)] * len(frontier.nodes)

    def observe(self, outcome: RoundOutcome) -> None:
        """The next length, between 1 and the longest."""
        if outcome.tree.depth:
            whole = outcome.num_accepted == outcome.tree.depth
            self.length = min(max(self._next(outcome.num_accepted, whole), 1), self._longest)

    def _next(self, accepted: int, whole: bool) -> float:
        """The length after a draft of which so many tokens were accepted, perhaps the whole."""
        return self.length


class HeuristicRule:
    """The library's heuristic schedule: 2 more after a draft accepted whole, else 1 less, never below 1.

    Args:
        length: levels of the first draft at most, 1 or more.
        longest: levels that the shape has; what the length never exceeds. None for no such limit.

    Raises:
        ConfigError: a length below 1.
    """

    def __init__(self, length: int = LENGTH, *, longest: int | None = None) -> None:
        _check_length(length)
        self.length, self.longest = length, longest

    def start(self) -> LengthState:
        """State for one request."""
        return _Heuristic(self.length, self.longest)


class _Heuristic(LengthState):
    def _next(self, accepted: int, whole: bool) -> float:
        return self.length + 2 if whole else self.length - 1


class GammaTuneRule:
    """GammaTune (arXiv 2504.00030): a smoothed number of accepted tokens, rounded up.

    After a draft accepted whole the length is what was accepted and 2 more, else
    `(1 - pace) * length + pace * accepted`.

    Args:
        length: levels of the first draft at most, 1 or more; the default is ours.
        pace: eta, 0 to 1.
        longest: as in `HeuristicRule`.

    Raises:
        ConfigError: a number out of its range.
    """

    def __init__(self, length: int = 4, pace: float = 0.3, *, longest: int | None = None) -> None:
        _check_length(length)
        check_between("pace", pace, 0, 1)
        self.length, self.pace, self.longest = length, pace, longest

    def start(self) -> LengthState:
        """State for one request."""
        return _GammaTune(self)


class _GammaTune(LengthState):
    def __init__(self, rule: GammaTuneRule) -> None:
        super().__init__(rule.length, rule.longest)
        self._pace = rule.pace

    def _next(self, accepted: int, whole: bool) -> float:
        smoothed = (1 - self._pace) * self.length + self._pace * accepted
        return accepted + 2 if whole else smoothed


def _check_length(length: int) -> None:
    if length < 1:
        raise ConfigError(f"length {length} is not allowed; give a whole number of 1 or more")
