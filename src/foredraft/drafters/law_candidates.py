"""Children of a node, taken from a model's laws in any of the four ways."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from foredraft.protocols import DraftContext
from foredraft.tree import Proposal, TreeBuilder

Score = Callable[[Sequence[int]], Tensor]
"""Logits [F, V'] after the nodes of one level, in one draft pass. Called once a level."""


class LawCandidates:
    """A `CandidateSource` for drafters that have laws.

    Args:
        context: the round's context.
        builder: the tree being grown.
        proposal: how children are chosen.
        score: the draft pass.
    """

    def __init__(
        self, context: DraftContext, builder: TreeBuilder, proposal: Proposal, score: Score
    ) -> None:
        self._context, self._builder = context, builder
        self._proposal, self._score = proposal, score
        self._nodes: tuple[int, ...] = ()
        self._logits: Tensor | None = None

    def log_probs(self, nodes: Sequence[int]) -> Tensor:
        """log q after each node, before temperature and filters, [F, V']."""
        return self._logits_after(nodes).float().log_softmax(-1)

    def extend(self, nodes: Sequence[int], counts: Sequence[int]) -> list[int]:
        """Choose and add children. A node whose law is not finite (NaN) gets none."""
        logits = self._allowed(self._context.law.align(self._logits_after(nodes)), nodes)
        drawn = self._choose(nodes, logits, counts)
        return [
            self._builder.add(node, token, self._proposal)
            for node, tokens in zip(nodes, drawn, strict=True)
            for token in tokens
        ]

    def _logits_after(self, nodes: Sequence[int]) -> Tensor:
        """The draft pass of a level, made once however often its laws are read."""
        if self._logits is None or self._nodes != tuple(nodes):
            self._nodes, self._logits = tuple(nodes), self._score(nodes)
        return self._logits

    def _allowed(self, logits: Tensor, nodes: Sequence[int]) -> Tensor:
        """The logits with banned tokens at -inf; the same tensor when nothing is banned."""
        text, law = self._context.token_ids, self._context.law
        banned = [law.banned_after(text, self._builder.path_tokens(node)) for node in nodes]
        if not any(banned):
            return logits
        logits = logits.clone()
        for row, ids in zip(logits, banned, strict=True):
            row[list(ids)] = -math.inf
        return logits

    def _choose(
        self, nodes: Sequence[int], logits: Tensor, counts: Sequence[int]
    ) -> list[list[int]]:
        """Tokens of each node's children, in draw order."""
        law = self._context.law
        if self._proposal is Proposal.DETERMINISTIC or (
            self._proposal is Proposal.COUPLED and law.greedy
        ):
            return _top(logits, counts)
        if self._proposal is Proposal.COUPLED:
            depth = len(self._builder.path_tokens(nodes[0]))
            position = len(self._context.token_ids) + depth
            noise = self._context.random.gumbel(position, law.vocab_size)
            noise = noise.to(logits.device)  # it is the target's, which may be elsewhere
            return _top(law.coupled_scores(logits, noise), counts)
        finite = [abs(largest) < math.inf for largest in logits.max(-1).values.tolist()]
        return [
            self._sample(node, q, count if usable else 0)
            for node, q, count, usable in zip(nodes, law.probs(logits), counts, finite, strict=True)
        ]

    def _sample(self, node: int, law: Tensor, count: int) -> list[int]:
        """Draw from q [V], which is recorded as the node's law."""
        if count == 0:
            return []
        self._builder.set_law(node, law)
        random = self._context.random
        if self._proposal is Proposal.RESAMPLED:
            return [random.categorical(law) for _ in range(count)]
        rest, drawn = law.clone(), []
        for _ in range(min(count, int(torch.count_nonzero(law)))):
            drawn.append(random.categorical(rest))
            rest[drawn[-1]] = 0
        return drawn


def _top(ranking: Tensor, counts: Sequence[int]) -> list[list[int]]:
    """The best counts[i] tokens of row i that are not forbidden, best first.

    NaN and infinity rank first, so a row whose best value is not finite is not a law and gives none.
    """
    best = ranking.topk(min(max(counts), ranking.shape[-1]), dim=-1)
    rows = zip(best.indices.tolist(), best.values.tolist(), counts, strict=True)
    return [
        [token for token, value in zip(ids[:count], values, strict=False) if value > -math.inf]
        if abs(values[0]) < math.inf
        else []
        for ids, values, count in rows
    ]
