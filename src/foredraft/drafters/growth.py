"""Grows a draft tree level by level, asking the policy before anything is drawn.

Budgets are spent before drawing: the policy says how many children each node gets, limits cut those
counts in draw order, and every token that is then drawn stays. So growth is exact with every
verifier, whatever the policy looks at (design, section 4.2).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.protocols import DraftContext, DraftLimits, Frontier, PolicyState
from foredraft.tree import DraftTree, TreeBuilder


class CandidateSource(Protocol):
    """Where the children of nodes come from."""

    def log_probs(self, nodes: Sequence[int]) -> Tensor | None:
        """The drafter's log-law after each node, [F, V], or None if it has none."""
        ...

    def extend(self, nodes: Sequence[int], counts: Sequence[int]) -> list[int]:
        """Add up to counts[i] children to nodes[i], in order; returns the new nodes."""
        ...


def grow_tree(
    context: DraftContext, policy: PolicyState, builder: TreeBuilder, source: CandidateSource
) -> DraftTree:
    """The tree that `policy` grows from `source` within the limits of the round.

    Raises:
        ConfigError: the policy gave something else than one count for each node.
    """
    limits = _tightest(policy.plan(context.limits), context.limits)
    frontier: tuple[int, ...] = (0,)
    for depth in range(limits.max_depth):
        asked = _asked(policy, _frontier(depth, frontier, builder, source))
        counts = _affordable(asked, limits, len(builder) - 1)
        if not any(counts):
            break
        new = source.extend(frontier, counts)
        frontier = tuple(n for n in new if builder.token_ids[n] not in context.law.eos_token_ids)
        if not frontier:
            break
    return builder.build()


def _frontier(
    depth: int, nodes: tuple[int, ...], builder: TreeBuilder, source: CandidateSource
) -> Frontier:
    tokens = tuple(builder.token_ids[n] for n in nodes)
    return Frontier(depth, nodes, tokens, lambda: source.log_probs(nodes))


def _tightest(planned: DraftLimits, limits: DraftLimits) -> DraftLimits:
    """The policy's limits, as far as those of the round allow them."""
    return DraftLimits(
        min(planned.max_depth, limits.max_depth),
        min(planned.max_nodes, limits.max_nodes),
        planned.chains_only or limits.chains_only,
    )


def _asked(policy: PolicyState, frontier: Frontier) -> list[int]:
    asked = policy.grow(frontier)
    try:
        counts = [int(operator.index(count)) for count in asked]
    except TypeError:
        counts = []
    if len(counts) != len(frontier.nodes) or min(counts) < 0:
        raise ConfigError(
            f"{type(policy).__name__} asked for {asked!r} children of {len(frontier.nodes)} nodes; "
            "it must give one whole number of 0 or more for each node"
        )
    return counts


def _affordable(asked: Sequence[int], limits: DraftLimits, num_drafted: int) -> list[int]:
    """The counts asked for, cut to chains and to the node budget in draw order."""
    room = limits.max_nodes - num_drafted
    counts = []
    for count in asked:
        count = min(count, room, 1 if limits.chains_only else count)
        counts.append(count)
        room -= count
    return counts
