"""Grows a draft tree level by level, asking the policy before anything is drawn.

Budgets are spent before drawing: the policy says how many children each node gets, limits cut those
counts in draw order, and every token that is then drawn stays. So growth is exact with every
verifier, whatever the policy looks at (design, section 4.2).

A policy that selects lets candidates grow past the limit of nodes and then keeps some of them, which
only exact verification allows. Kept nodes keep their order.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.protocols import (
    Candidates,
    DraftContext,
    DraftLimits,
    Frontier,
    PolicyState,
    SelectingState,
)
from foredraft.tree import DraftTree, TreeBuilder


class CandidateSource(Protocol):
    """Where the children of nodes come from."""

    @property
    def column_ids(self) -> Tensor | None:
        """Token id of each column of `log_probs`, int64 [C]; None where column i is token i."""
        ...

    def log_probs(self, nodes: Sequence[int]) -> Tensor | None:
        """The drafter's log-law after each node, [F, C], or None if it has none."""
        ...

    def hidden(self, nodes: Sequence[int]) -> Tensor | None:
        """The drafter's last hidden state after each node, [F, H], or None if it has none."""
        ...

    def drawn_from(self, nodes: Sequence[int]) -> Tensor | None:
        """The log-law that each of these nodes was drawn from, [F, C]; None for roots and without laws.

        They are the nodes of the last level that was grown, whose own laws may have been read already.
        """
        ...

    def scores(self, nodes: Sequence[int]) -> list[float] | None:
        """The score of each of these grown nodes, as in `Frontier.scores`; None if there are none."""
        ...

    def extend(self, nodes: Sequence[int], counts: Sequence[int]) -> list[int]:
        """Add up to counts[i] children (1 or more) to nodes[i], in order; returns the new nodes."""
        ...


def grow_tree(
    context: DraftContext, policy: PolicyState, builder: TreeBuilder, source: CandidateSource
) -> DraftTree:
    """The tree that `policy` grows from `source` within the limits of the round.

    After a selection `builder.origins` tells which nodes of the growth were kept.

    Raises:
        ConfigError: the policy gave something else than one count for each node, or selected
            something else than a tree within the limits.
    """
    limits = _tightest(policy.plan(context.limits, context.token_ids), context.limits)
    if not isinstance(policy, SelectingState):
        _grow(context, policy, builder, source, limits)
        return builder.build()
    candidates = replace(limits, max_nodes=policy.max_candidates)
    _grow(context, policy, builder, source, candidates)
    _select(policy, builder, source, limits.max_nodes)
    return builder.build()


def _grow(
    context: DraftContext,
    policy: PolicyState,
    builder: TreeBuilder,
    source: CandidateSource,
    limits: DraftLimits,
) -> None:
    roots = range(builder.num_roots)
    frontier = _without_ends(roots, context, builder) if context.open_roots else tuple(roots)
    for depth in range(limits.max_depth if frontier else 0):
        asked = _asked(policy, _frontier(depth, frontier, builder, source))
        counts = _affordable(asked, limits, builder.num_drafted)
        drawn_from = [node for node, count in zip(frontier, counts, strict=True) if count]
        if not drawn_from:
            break
        new = source.extend(drawn_from, [count for count in counts if count])
        frontier = _without_ends(new, context, builder)
        if not frontier:
            break


def _without_ends(
    nodes: Sequence[int], context: DraftContext, builder: TreeBuilder
) -> tuple[int, ...]:
    """The nodes after which the answer would go on."""
    ends = context.law.eos_token_ids
    return tuple(node for node in nodes if builder.token_ids[node] not in ends)


def _frontier(
    depth: int, nodes: tuple[int, ...], builder: TreeBuilder, source: CandidateSource
) -> Frontier:
    return Frontier(
        depth,
        nodes,
        token_ids=tuple(builder.token_ids[n] for n in nodes),
        parents=tuple(builder.parents[n] for n in nodes),
        ranks=tuple(builder.ranks[n] for n in nodes),
        log_probs=lambda: source.log_probs(nodes),
        scores=lambda: source.scores(nodes),
        column_ids=source.column_ids,
        hidden=lambda: source.hidden(nodes),
        drawn_from=lambda: source.drawn_from(nodes),
    )


def _select(
    policy: SelectingState, builder: TreeBuilder, source: CandidateSource, max_nodes: int
) -> None:
    """Keep what the policy selects among all nodes that were grown."""
    scores = source.scores(range(len(builder)))
    if scores is None:
        raise ConfigError(
            f"{type(policy).__name__} ranks drafts by their scores, and this drafter has none; "
            "use a fixed tree"
        )
    candidates = Candidates(tuple(builder.token_ids), tuple(builder.parents), tuple(scores))
    selected = policy.select(candidates, max_nodes)
    kept = sorted({operator.index(node) for node in selected})
    reachable = {0, *kept}
    if len(kept) > max_nodes or any(
        not 0 < node < len(builder) or builder.parents[node] not in reachable for node in kept
    ):
        raise ConfigError(
            f"{type(policy).__name__} selected nodes {list(selected)!r} of {len(builder)}; it must name "
            f"at most {max_nodes} draft tokens, with each its parent"
        )
    if len(kept) < len(builder) - 1:
        builder.keep(kept)


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
