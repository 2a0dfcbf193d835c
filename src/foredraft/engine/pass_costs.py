"""Seconds of a model's passes, by rows and cached tokens, through the public protocols alone.

A pass is timed as decoding runs it, and rolled back outside the clock. The points of the grid take
turns, so that a machine that slows down for a while slows them all, and each keeps its lower quartile.
(On a shared machine, 8 repeats gave tables 2 % apart by that, relative to one node, and 5 % apart by
the minimum, which is one lucky pass; the mean of 20 was 30 % apart, for a neighbour's bursts.)
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from foredraft.costs import BUDGET_S, CONTEXTS, NODES, PassCosts, check_budget, check_grid
from foredraft.protocols import ModelState, Target
from foredraft.tree import NO_PARENT

Clock = Callable[[], float]
Report = Callable[[str], None]

QUANTILE = 0.25
"""Of the repeats of a point; see the module's docstring."""
MIN_REPEATS = 3
"""Repeats of every point, however small the budget."""
MAX_REPEATS = 30
"""More repeats change nothing that matters; small models end before their budget."""
SEED = 0


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Every timed pass.

    Attributes:
        nodes: [N] rows.
        contexts: [C] cached tokens.
        seconds: [R][C][N], R being the repeats.
    """

    nodes: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[tuple[float, ...], ...], ...]

    def costs(self) -> PassCosts:
        """The lower quartile of each point."""
        quartiles = np.quantile(np.array(self.seconds), QUANTILE, axis=0)
        return PassCosts(self.nodes, self.contexts, tuple(map(tuple, quartiles.tolist())))

    def spread(self) -> float:
        """How much repeats differ: interquartile range / lower quartile, the median over all points."""
        low, high = np.quantile(np.array(self.seconds), (QUANTILE, 1 - QUANTILE), axis=0)
        return float(np.median((high - low) / low))


def measure_passes(
    target: Target,
    nodes: Sequence[int] = NODES,
    contexts: Sequence[int] = CONTEXTS,
    budget_s: float = BUDGET_S,
    *,
    clock: Clock = time.perf_counter,
    report: Report = lambda message: None,
) -> PassCosts:
    """Seconds of the target's passes over trees (chains, where it scores no trees) of random tokens.

    Args:
        target: a target or a draft model.
        nodes: rows of a pass; sorted, and 1 is always measured.
        contexts: cached tokens before it; those that leave no room in the model's context are left out.
        budget_s: seconds it may take, prefill included; never fewer than `MIN_REPEATS` repeats.
        clock: seconds that only go up.
        report: called with what is timed next.

    Raises:
        ConfigError: numbers of nodes, contexts or seconds that cannot be measured.
    """
    return time_passes(target, nodes, contexts, budget_s, clock=clock, report=report).costs()


def time_passes(
    target: Target,
    nodes: Sequence[int],
    contexts: Sequence[int],
    budget_s: float,
    *,
    repeats: tuple[int, int] = (MIN_REPEATS, MAX_REPEATS),
    clock: Clock = time.perf_counter,
    report: Report = lambda message: None,
) -> PassTimes:
    """The single times behind `measure_passes`; arguments and errors are the same.

    Args:
        repeats: of every point at least, however small the budget, and at most.
    """
    began = clock()
    check_budget(budget_s)
    nodes, contexts = _within(target.context_length, *check_grid(nodes, contexts))
    with ExitStack() as stack:
        timer = _PassTimer(target, nodes, contexts, clock, report, stack)
        timer.round("warming up")
        rounds: list[tuple[tuple[float, ...], ...]] = []
        round_s = 0.0
        while len(rounds) < repeats[0] or (
            len(rounds) < repeats[1] and clock() - began + round_s <= budget_s
        ):
            started = clock()
            rounds.append(timer.round(f"repeat {len(rounds) + 1}"))
            round_s = clock() - started
    return PassTimes(nodes, contexts, tuple(rounds))


def random_tokens(target: Target, count: int) -> list[int]:
    """The same random token ids at every call."""
    return random.Random(SEED).choices(range(target.vocab_size), k=count)


def typical(seconds: Sequence[float]) -> float:
    """The lower quartile."""
    return float(np.quantile(seconds, QUANTILE))


def pass_s(
    target: Target,
    state: ModelState,
    token_ids: Sequence[int],
    parents: Sequence[int],
    clock: Clock = time.perf_counter,
) -> float:
    """Seconds of one pass over pending nodes, as in `ModelState.score`, which is then rolled back."""
    target.synchronize()
    began = clock()
    state.score(token_ids, parents)
    target.synchronize()
    seconds = clock() - began
    state.commit(())
    return seconds


def pass_parents(count: int, scores_trees: bool) -> list[int]:
    """Parents of a binary tree in level order, or of a chain. Any prefix is one of the same kind."""
    if not scores_trees:
        return list(range(NO_PARENT, count - 1))
    return [NO_PARENT, *((node - 1) // 2 for node in range(1, count))]


class _PassTimer:
    """Times passes of every width behind every context, each in a state of its own."""

    def __init__(
        self,
        target: Target,
        nodes: tuple[int, ...],
        contexts: tuple[int, ...],
        clock: Clock,
        report: Report,
        stack: ExitStack,
    ) -> None:
        self._target, self._nodes, self._clock, self._report = target, nodes, clock, report
        self._parents = pass_parents(nodes[-1], target.scores_trees)
        self._token_ids = random_tokens(target, contexts[-1] + nodes[-1])
        self._states: dict[int, ModelState] = {}
        for context in contexts:
            report(f"reading {context} tokens")
            state = target.start(context + nodes[-1])
            stack.callback(state.close)
            state.prefill(self._token_ids[:context])
            self._states[context] = state

    def round(self, label: str) -> tuple[tuple[float, ...], ...]:
        """Seconds [C][N] of one pass at every point."""
        return tuple(
            tuple(self._time(context, count, label) for count in self._nodes)
            for context in self._states
        )

    def _time(self, context: int, count: int, label: str) -> float:
        self._report(f"{label}: a pass of {count} behind {context} tokens")
        token_ids = self._token_ids[context : context + count]
        state, parents = self._states[context], self._parents[:count]
        return pass_s(self._target, state, token_ids, parents, self._clock)


def _within(
    limit: int | None, nodes: tuple[int, ...], contexts: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The part of a grid that a model's context holds; at least one point of each axis."""
    if limit is None:
        return nodes, contexts
    nodes = tuple(n for n in nodes if n == 1 or n <= limit // 2)
    room = max(limit - nodes[-1], 0)
    return nodes, tuple(c for c in contexts if c <= room) or (room,)
