"""Targets, draft models and heads that charge their work to a stopwatch, and do it as ever."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from foredraft.bench.profile.stopwatch import Stopwatch
from foredraft.drafters.eagle.ends import LmRows
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.eagle.layer import Attend
from foredraft.drafters.eagle.rotary import Rotary
from foredraft.protocols import (
    FeatureState,
    FeatureTarget,
    ModelState,
    ShowingState,
    ShowingTarget,
    Target,
)

COMMIT, FEATURES = "target commit", "hidden states"


class TimedTarget:
    """A `Target` whose commits are charged; its passes are a stage of the round's own clock."""

    def __init__(self, target: Target, watch: Stopwatch) -> None:
        self._target, self._watch = target, watch
        self.vocab_size, self.context_length = target.vocab_size, target.context_length
        self.eos_token_ids, self.device = target.eos_token_ids, target.device
        self.scores_trees = target.scores_trees
        self.hidden_size = getattr(target, "hidden_size", None)

    def start(self, capacity: int) -> ModelState:
        """The target's own state, timed."""
        return TimedState(self._target.start(capacity), self._watch)

    def synchronize(self) -> None:
        """As the target does."""
        self._target.synchronize()


class TimedFeatureTarget(TimedTarget):
    """A `FeatureTarget` likewise."""

    def start_tapped(self, capacity: int, taps: Sequence[int]) -> FeatureState:
        """The target's own state, timed."""
        assert isinstance(self._target, FeatureTarget)
        return TimedFeatureState(self._target.start_tapped(capacity, taps), self._watch)


class TimedState:
    """A `ModelState` whose commits are charged."""

    def __init__(self, state: ModelState, watch: Stopwatch) -> None:
        self._state, self._watch = state, watch
        self.prefill, self.score, self.close = state.prefill, state.score, state.close

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._state.length

    def commit(self, path: Sequence[int]) -> None:
        """Passed on."""
        with self._watch.charge(COMMIT):
            self._state.commit(path)


class TimedFeatureState(TimedState):
    """A `FeatureState` whose commits and features are charged."""

    def __init__(self, state: FeatureState, watch: Stopwatch) -> None:
        super().__init__(state, watch)
        self._features = state

    def take_features(self) -> Tensor:
        """Passed on."""
        with self._watch.charge(FEATURES):
            return self._features.take_features()


class TimedDraftModel(TimedTarget):
    """A draft model whose passes are charged."""

    def start(self, capacity: int) -> ModelState:
        """The model's own state, timed."""
        return TimedDraftState(self._target.start(capacity), self._watch)


class TimedShowingModel(TimedDraftModel):
    """A `ShowingTarget` likewise."""

    def start_showing(self, capacity: int) -> ShowingState:
        """The model's own state, timed."""
        assert isinstance(self._target, ShowingTarget)
        return TimedShowingState(self._target.start_showing(capacity), self._watch)


class TimedDraftState:
    """A draft model's `ModelState` whose passes are charged, each as a pass of its round."""

    def __init__(self, state: ModelState, watch: Stopwatch) -> None:
        self._state, self._watch = state, watch
        self.commit, self.close = state.commit, state.close

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._state.length

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Passed on; a long gap is read so, before the pass of the roots."""
        with self._watch.draft_pass(ends=False):
            self._state.prefill(token_ids)

    def score(self, token_ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Passed on."""
        with self._watch.draft_pass(ends=True):
            return self._state.score(token_ids, parents)


class TimedShowingState(TimedDraftState):
    """A `ShowingState` likewise."""

    def __init__(self, state: ShowingState, watch: Stopwatch) -> None:
        super().__init__(state, watch)
        self.last_hidden = state.last_hidden


class TimedHead(EagleHead):
    """A head whose passes are charged: the same weights in another object. Made by `timed_head`."""

    watch: Stopwatch

    def fuse(self, features: Tensor) -> Tensor:
        """As the head does."""
        with self.watch.draft_pass(ends=False):
            return super().fuse(features)

    def step(self, embeds: Tensor, hidden: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        """As the head does."""
        with self.watch.draft_pass(ends=False):
            return super().step(embeds, hidden, rotary, attend)

    def products(self, hidden: Tensor) -> Tensor:
        """As the head does."""
        with self.watch.draft_pass(ends=False):
            return super().products(hidden)

    def beside(self, products: Tensor, hidden: Tensor, more: LmRows | None) -> Tensor:
        """As the head does; the pass ends here."""
        with self.watch.draft_pass(ends=True):
            return super().beside(products, hidden, more)


def timed_head(head: EagleHead, watch: Stopwatch) -> TimedHead:
    """A shallow copy of a head that charges its passes; the head itself is left alone."""
    timed: Any = copy.copy(head)
    timed.__class__ = TimedHead
    assert isinstance(timed, TimedHead)
    timed.watch = watch
    return timed
