"""Trees that follow what the drafter believes: EAGLE-2's selection, and a budget spent before drawing."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from torch import Tensor

from foredraft.config import MAX_TREE_NODES
from foredraft.errors import ConfigError
from foredraft.protocols import Candidates, DraftLimits, Frontier, PolicyKind, RoundOutcome

MAX_CANDIDATES = 8192
"""Draft tokens grown at most for one selection: depth and top_k that need more are a mistake."""


class DynamicTreePolicy:
    """EAGLE-2's dynamic tree (arXiv 2406.16858): expand by cumulative probability, then rerank.

    In every level the `top_k` nodes whose paths are most likely get `top_k` children each. All nodes are
    candidates; the `nodes` most likely paths are the draft, ties in the order of creation. Levels, and
    nodes of a level, that cannot reach the draft any more are not expanded, which changes nothing but
    the cost.

    Args:
        depth: levels at most.
        nodes: draft tokens at most.
        top_k: nodes expanded in a level, and children of each.

    Raises:
        ConfigError: a number below 1, or a tree that is too large.
    """

    kind = PolicyKind.SELECTS

    def __init__(self, depth: int = 5, nodes: int = 24, top_k: int = 8) -> None:
        _check_whole(depth=depth, nodes=nodes, top_k=top_k)
        _check_nodes(nodes)
        self.depth, self.nodes, self.top_k = depth, nodes, top_k
        self.max_candidates = top_k + (depth - 1) * top_k**2
        if self.max_candidates > MAX_CANDIDATES:
            raise ConfigError(
                f"depth={depth} with top_k={top_k} grows {self.max_candidates} candidates; "
                f"the limit is {MAX_CANDIDATES}, use smaller numbers"
            )
        self.branches = top_k > 1 and nodes > 1
        self.max_nodes = min(nodes, self.max_candidates)

    def start(self) -> DynamicTreeState:
        """State for one request."""
        return DynamicTreeState(self)


class DynamicTreeState:
    """One request's growth: the best scores of the draft in progress."""

    def __init__(self, policy: DynamicTreePolicy) -> None:
        self._policy = policy
        self.max_candidates = policy.max_candidates
        self._room = policy.max_nodes
        self._best: list[float] = []  # heap of the best scores so far, the least first

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        """No deeper than the policy's levels; a new draft begins."""
        self._best = []
        self._room = min(limits.max_nodes, self._policy.max_nodes)
        depth = min(limits.max_depth, self._policy.depth)
        return DraftLimits(depth, self._room, limits.chains_only)

    def grow(self, frontier: Frontier) -> Sequence[int]:
        """`top_k` children for each of the `top_k` most likely nodes that can still matter."""
        scores = scores_of(frontier, self._policy)
        if self._room < 1:
            return [0] * len(scores)
        if frontier.depth > 0:
            self._note(scores)
        least = self._best[0] if len(self._best) >= self._room else -math.inf
        likely = _best_first(scores)[: self._policy.top_k]
        expanded = {i for i in likely if scores[i] > least}
        return [self._policy.top_k if i in expanded else 0 for i in range(len(scores))]

    def select(self, candidates: Candidates, max_nodes: int) -> Sequence[int]:
        """The most likely paths, ties in the order of creation: a parent comes before its children."""
        return [node + 1 for node in _best_first(candidates.scores[1:])[:max_nodes]]

    def observe(self, outcome: RoundOutcome) -> None:
        """Nothing to learn."""

    def _note(self, scores: Sequence[float]) -> None:
        for score in scores:
            if len(self._best) < self._room:
                heapq.heappush(self._best, score)
            else:
                heapq.heappushpop(self._best, score)


class BudgetPolicy:
    """Spends a budget of nodes before anything is drawn, after DySpec (arXiv 2410.11744).

    A place for a child is worth the probability that verification comes to it: that of the path to its
    parent, times the share of the parent's law that earlier siblings are expected to leave. Each level
    gets the places worth at least `1 / nodes`, the best first, until the budget is spent. Counts depend
    on tokens that were drawn, which all stay, and on laws, never on a token to come: so it is exact with
    every verifier, sampled siblings included.

    Args:
        nodes: draft tokens at most.
        depth: levels at most.
        max_children: children of a node at most.
        reads_laws: take the share that siblings leave from the law after each node: (1 - sum q^2) each,
            sum q^2 being the expected probability of a draw. Otherwise each leaves one half.

    Raises:
        ConfigError: a number below 1, or a tree that is too large.
    """

    kind = PolicyKind.GROWS

    def __init__(
        self, nodes: int = 24, depth: int = 5, *, max_children: int = 8, reads_laws: bool = True
    ) -> None:
        _check_whole(nodes=nodes, depth=depth, max_children=max_children)
        _check_nodes(nodes)
        self.nodes, self.depth, self.max_children = nodes, depth, max_children
        self.reads_laws = reads_laws
        self.max_nodes = nodes
        self.branches = max_children > 1 and nodes > 1

    def start(self) -> BudgetState:
        """State for one request."""
        return BudgetState(self)


class BudgetState:
    """What is left of the budget of the draft in progress."""

    def __init__(self, policy: BudgetPolicy) -> None:
        self._policy, self._room = policy, policy.nodes
        self._most_children = policy.max_children

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        """No deeper than the policy's levels; a new draft begins."""
        self._room = min(limits.max_nodes, self._policy.nodes)
        self._most_children = 1 if limits.chains_only else self._policy.max_children
        depth = min(limits.max_depth, self._policy.depth)
        return DraftLimits(depth, self._room, limits.chains_only)

    def grow(self, frontier: Frontier) -> Sequence[int]:
        """Children for the places of this level that are worth it."""
        values = [math.exp(score) for score in scores_of(frontier, self._policy)]
        least = 1 / self._policy.nodes
        if self._room < 1 or max(values) < least:
            return [0] * len(values)
        places = [
            (value * left**rank, -i)
            for i, (value, left) in enumerate(zip(values, self._left(frontier), strict=True))
            for rank in range(self._most_children)
            if value * left**rank >= least
        ]
        taken = sorted(places, reverse=True)[: self._room]
        counts = [0] * len(values)
        for _, i in taken:
            counts[-i] += 1
        self._room -= len(taken)
        return counts

    def observe(self, outcome: RoundOutcome) -> None:
        """Nothing to learn."""

    def _left(self, frontier: Frontier) -> list[float]:
        """What one sibling is expected to leave of each node's law."""
        if not self._policy.reads_laws:
            return [0.5] * len(frontier.nodes)
        log_probs = frontier.log_probs()
        if log_probs is None:
            raise ConfigError(
                f"{type(self._policy).__name__} reads the drafter's laws, and this drafter has none; "
                "use reads_laws=False"
            )
        return _expected_rest(log_probs)


def scores_of(frontier: Frontier, policy: object) -> list[float]:
    """The scores of a frontier's nodes, for policies that cannot do without.

    Raises:
        ConfigError: the drafter has none.
    """
    scores = frontier.scores()
    if scores is None:
        raise ConfigError(
            f"{type(policy).__name__} follows the scores of drafts, and this drafter has none; "
            "use FixedPolicy or StaticTreePolicy"
        )
    return scores


def _expected_rest(log_probs: Tensor) -> list[float]:
    """1 - sum q^2 of each law, [F, C] -> [F]."""
    rest: list[float] = (1 - (2 * log_probs).logsumexp(-1).exp()).clamp(0, 1).tolist()
    return [0.0 if math.isnan(value) else value for value in rest]


def _best_first(scores: Sequence[float]) -> list[int]:
    """Indices by falling score; of equal ones the first created comes first."""
    return sorted(range(len(scores)), key=lambda i: -scores[i])


def _check_whole(**numbers: int) -> None:
    for name, value in numbers.items():
        if type(value) is not int or value < 1:
            raise ConfigError(f"{name}={value!r} is not allowed; give a whole number of 1 or more")


def _check_nodes(nodes: int) -> None:
    if nodes >= MAX_TREE_NODES:
        raise ConfigError(f"nodes={nodes} is too many; the limit is {MAX_TREE_NODES - 1}")
