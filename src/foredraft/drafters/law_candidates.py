"""Children of a node, taken from a model's laws in any of the four ways."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from foredraft.drafters.columns import Columns
from foredraft.drafters.path_scores import PathScores
from foredraft.drafters.recall import Recall, contexts_of
from foredraft.protocols import DraftContext
from foredraft.sampling.transfer import to_host
from foredraft.tree import NO_PARENT, Proposal, TreeBuilder

Score = Callable[[Sequence[int]], Tensor]
"""Logits [F, V'] after nodes of one level, in one draft pass. Called once a level."""
LastHidden = Callable[[], Tensor | None]
"""Hidden states of the last draft pass; those of the nodes that were scored, [F, H], are its last rows."""


class LawCandidates:
    """A `CandidateSource` for drafters that have laws.

    Candidates are ranked and drawn in the columns of the drafter's logits: with a reduced vocabulary
    only its own tokens are looked at, and [F, V] exists nowhere but in the laws of sampled children.

    Args:
        context: the round's context.
        builder: the tree being grown.
        proposal: how children are chosen.
        score: the draft pass.
        columns: the tokens of a reduced vocabulary; None where column i is token i. Tokens that the target
            lacks are left out.
        recall: the target's earlier laws and the text, to be mixed into the drafter's law.
        last_hidden: of drafters that show their hidden states.
    """

    def __init__(
        self,
        context: DraftContext,
        builder: TreeBuilder,
        proposal: Proposal,
        score: Score,
        columns: Columns | None = None,
        recall: Recall | None = None,
        last_hidden: LastHidden = lambda: None,
    ) -> None:
        self._recall, self._columns = recall, columns
        if recall is not None:
            recall.index(context.token_ids)
        self._context, self._builder = context, builder
        self._proposal, self._score, self._last_hidden = proposal, score, last_hidden
        self._nodes: tuple[int, ...] = ()
        self._logits: Tensor | None = None
        self._above: tuple[tuple[int, ...], Tensor] | None = None  # nodes and logits one level up
        self._paths = PathScores(builder)
        self.column_ids = None if columns is None else columns.ids

    def log_probs(self, nodes: Sequence[int]) -> Tensor:
        """log q after each node, before temperature and filters, [F, C]."""
        return self._logits_after(nodes).float().log_softmax(-1)

    def hidden(self, nodes: Sequence[int]) -> Tensor | None:
        """The last hidden state after each node, [F, H]; None from drafters that show none."""
        self._logits_after(nodes)
        states = self._last_hidden()
        if states is None:
            return None
        states = states[-len(self._nodes) :]
        return states if tuple(nodes) == self._nodes else states[self._rows_of(nodes)]

    def drawn_from(self, nodes: Sequence[int]) -> Tensor | None:
        """The log-law that each of these nodes was drawn from, [F, C]; None for roots."""
        parents = [self._builder.parents[node] for node in nodes]
        if NO_PARENT in parents or self._logits is None:
            return None
        level = (self._nodes, self._logits)
        if not set(parents) <= set(self._nodes):  # their children's laws were read since
            assert self._above is not None
            level = self._above
        row_of = {node: row for row, node in enumerate(level[0])}
        return level[1][[row_of[parent] for parent in parents]].float().log_softmax(-1)

    def scores(self, nodes: Sequence[int]) -> list[float]:
        """The log-probability of the path to each node, see `Frontier.scores`."""
        return self._paths.of(nodes)

    def extend(self, nodes: Sequence[int], counts: Sequence[int]) -> list[int]:
        """Choose and add children. A node whose law is not finite (NaN) gets none."""
        raw = self._logits_after(nodes)
        logits = raw if self.column_ids is not None else self._context.law.align(raw)
        allowed = self._allowed(logits, nodes)
        ranking = self._ranking(allowed, nodes[0])
        drawn = self._draw(nodes, allowed, counts) if ranking is None else _top(ranking, counts)
        if ranking is not None and self._proposal is Proposal.SAMPLED:
            self._set_point_masses(nodes, drawn, allowed)
        tokens = self._tokens(drawn)
        new = [
            self._builder.add(node, token, self._proposal)
            for node, children in zip(nodes, tokens, strict=True)
            for token in children
        ]
        believed = raw if ranking is None or ranking is allowed else ranking
        self._paths.add(believed, drawn, first=len(self._builder) - len(new))
        return new

    def _logits_after(self, nodes: Sequence[int]) -> Tensor:
        """The draft pass of a level, made once however often its laws are read, [F, C]."""
        nodes = tuple(nodes)
        if self._logits is None or not set(nodes) <= set(self._nodes):
            if self._logits is not None:
                self._above = (self._nodes, self._logits)
            logits = self._score(nodes)
            if self._recall is not None:
                contexts = contexts_of(self._builder, nodes, self._context.token_ids)
                ids = None if self._columns is None else self._columns.all_ids
                logits = self._recall.blend(logits, contexts, ids)
            known = None if self._columns is None else self._columns.known
            self._nodes = nodes
            self._logits = logits if known is None else logits[:, known]
        if nodes == self._nodes:
            return self._logits
        return self._logits[self._rows_of(nodes)]

    def _rows_of(self, nodes: Sequence[int]) -> list[int]:
        """The rows of these nodes in the level's pass."""
        row_of = {node: row for row, node in enumerate(self._nodes)}
        return [row_of[node] for node in nodes]

    def _allowed(self, logits: Tensor, nodes: Sequence[int]) -> Tensor:
        """The logits with banned tokens at -inf; the same tensor when nothing is banned."""
        text, law = self._context.token_ids, self._context.law
        banned = [law.banned_after(text, self._builder.path_tokens(node)) for node in nodes]
        if not any(banned):
            return logits
        logits = logits.clone()
        for row, ids in zip(logits, banned, strict=True):
            if self.column_ids is None:
                row[list(ids)] = -math.inf
            elif ids:
                named = torch.tensor(list(ids), device=row.device)
                row[torch.isin(self.column_ids, named)] = -math.inf
        return logits

    def _ranking(self, logits: Tensor, node: int) -> Tensor | None:
        """What the best children are the best of, [F, C]; None where children are drawn at random.

        At temperature 0 the first draw without replacement is the best token, and nothing is left for the
        next ones: they are the next best, each a point mass of its own (see `verifiers.laws.draws`).
        """
        law = self._context.law
        if self._proposal is Proposal.RESAMPLED or (
            self._proposal is Proposal.SAMPLED and not law.greedy
        ):
            return None
        if self._proposal is Proposal.DETERMINISTIC or law.greedy:
            return logits
        return law.coupled_scores(logits, self._noise_after(node, logits))

    def _draw(self, nodes: Sequence[int], logits: Tensor, counts: Sequence[int]) -> list[list[int]]:
        """Columns of each node's children at random, in draw order."""
        law = self._context.law
        finite = [abs(largest) < math.inf for largest in logits.max(-1).values.tolist()]
        return [
            self._sample(node, q, count if usable else 0)
            for node, q, count, usable in zip(nodes, law.probs(logits), counts, finite, strict=True)
        ]

    def _noise_after(self, node: int, logits: Tensor) -> Tensor:
        """The noise that will choose the target's token there, for each column [C]."""
        context = self._context
        position = len(context.token_ids) + len(self._builder.path_tokens(node))
        noise = context.random.gumbel(position, context.law.vocab_size)
        noise = noise.to(logits.device)  # it is the target's, which may be elsewhere
        return noise if self.column_ids is None else noise[self.column_ids]

    def _sample(self, node: int, law: Tensor, count: int) -> list[int]:
        """Draw from q [C], which is recorded as the node's law over the target's vocabulary."""
        if count == 0:
            return []
        self._builder.set_law(node, self._over_targets(law))
        random = self._context.random
        if self._proposal is Proposal.RESAMPLED:
            return [random.categorical(law) for _ in range(count)]
        rest, drawn = law.clone(), []
        for _ in range(min(count, int(torch.count_nonzero(law)))):
            drawn.append(random.categorical(rest))
            rest[drawn[-1]] = 0
        return drawn

    def _set_point_masses(
        self, nodes: Sequence[int], drawn: list[list[int]], logits: Tensor
    ) -> None:
        """Record each node's law at temperature 0, at whose first child all its mass is."""
        for node, columns in zip(nodes, drawn, strict=True):
            if columns:
                law = torch.zeros(logits.shape[-1], dtype=torch.float64, device=logits.device)
                law[columns[0]] = 1.0
                self._builder.set_law(node, self._over_targets(law))

    def _over_targets(self, law: Tensor) -> Tensor:
        """q [C] as a law over the target's tokens, [V]."""
        if self.column_ids is None:
            return law
        return law.new_zeros(self._context.law.vocab_size).index_copy_(0, self.column_ids, law)

    def _tokens(self, drawn: list[list[int]]) -> list[list[int]]:
        """The tokens of drawn columns."""
        if self._columns is None:
            return drawn
        tokens = iter(self._columns.tokens([c for row in drawn for c in row]))
        return [[next(tokens) for _ in row] for row in drawn]


def _top(ranking: Tensor, counts: Sequence[int]) -> list[list[int]]:
    """The best counts[i] columns of row i that are not forbidden, best first.

    NaN and infinity rank first, so a row whose best value is not finite is not a law and gives none.
    """
    count = min(max(counts), ranking.shape[-1])
    best = ranking.max(-1, keepdim=True) if count == 1 else ranking.topk(count, dim=-1)
    rows = zip(*to_host(best.indices, best.values), counts, strict=True)
    return [
        [column for column, value in zip(ids[:count], values, strict=False) if value > -math.inf]
        if abs(values[0]) < math.inf
        else []
        for ids, values, count in rows
    ]
