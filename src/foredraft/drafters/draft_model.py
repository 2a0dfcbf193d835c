"""An independent draft model: any causal language model with the target's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from foredraft.drafters.columns import LatestColumns
from foredraft.drafters.growth import grow_tree
from foredraft.drafters.law_candidates import LawCandidates
from foredraft.drafters.recall import Recall, RecallWeights
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import (
    DraftContext,
    DraftLimits,
    ModelState,
    PolicyState,
    ShowingState,
    ShowingTarget,
    Target,
)
from foredraft.tree import NO_PARENT, DraftTree, Proposal, TreeBuilder

CATCH_UP_ROWS = 16
"""A gap up to this long is scored together with the root; a longer one is prefilled."""


class DraftModelDrafter:
    """Grows chains and trees from a smaller model.

    Args:
        model: the draft model, as a backend. Its ids must mean the target's tokens; rows that only one
            of the two has (padding) are never proposed. One that cannot score trees drafts chains.
        proposal: how children are chosen. COUPLED ranks by log q + G with the target's own noise,
            DETERMINISTIC takes the top k, SAMPLED draws without and RESAMPLED with replacement.
        target_ids: int64 [Vd] for a model that reads the target's ids and has a reduced head: the token
            of each column of its logits. None takes the model's own `target_ids`, which a `Student` has;
            the columns of a model without them are its tokens.
        recall: shares of the target's earlier laws and of the text in the law that is drafted from; None
            leaves them out.
    """

    def __init__(
        self,
        model: Target,
        proposal: Proposal = Proposal.COUPLED,
        target_ids: Tensor | None = None,
        recall: RecallWeights | None = None,
    ) -> None:
        self.model, self.proposal, self.recall = model, proposal, recall
        if target_ids is None:
            target_ids = getattr(model, "target_ids", None)
        self.target_ids = None if target_ids is None else target_ids.to(model.device)
        self.proposals = frozenset({proposal})

    @property
    def hidden_size(self) -> int | None:
        """Numbers of a hidden state that the model shows; None where nobody can tell before a draft."""
        return getattr(self.model, "hidden_size", None)

    @property
    def default_policy(self) -> FixedPolicy:
        """A chain of 4, the usual length without a measurement of the two models' costs."""
        return FixedPolicy.chain(4)

    def start(self, capacity: int) -> DraftModelState:
        """A draft cache for one request."""
        model = self.model
        showing = model.start_showing(capacity) if isinstance(model, ShowingTarget) else None
        state = showing or model.start(capacity)
        memory = Recall.of(self.recall)
        return DraftModelState(self.model, state, self.proposal, self.target_ids, memory)


class DraftModelState:
    """The draft model's cache of one request. After every round it holds committed text alone."""

    def __init__(
        self,
        model: Target,
        state: ModelState,
        proposal: Proposal,
        target_ids: Tensor | None = None,
        memory: Recall | None = None,
    ) -> None:
        self._model, self._state = model, state
        self._proposal, self._target_ids, self._memory = proposal, target_ids, memory
        self._columns = LatestColumns()
        self._rows: dict[int, int] = {}  # tree node -> pending row, for the nodes already scored
        self._num_caught_up = 0

    @property
    def length(self) -> int:
        """Committed tokens in the draft cache."""
        return self._state.length

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Commit the prompt, unless it leaves no room to draft in the draft model's context."""
        limit = self._model.context_length
        if limit is None or len(token_ids) < limit:
            self._state.prefill(self._known(token_ids))

    def draft(self, context: DraftContext, policy: PolicyState) -> DraftTree:
        """Catch up with the text, then grow level by level, one draft pass a level."""
        context = replace(context, limits=self._own_limits(context))
        if context.limits.max_depth < 1:
            return context.builder().build()
        builder = context.builder()
        source = LawCandidates(
            context,
            builder,
            self._proposal,
            score=lambda nodes: self._score(nodes, builder, context.known_ids),
            columns=self._columns.of(self._target_ids, context.law.vocab_size, self._model.device),
            last_hidden=self._last_hidden,
            recall=self._memory,
        )
        tree = grow_tree(context, policy, builder, source)
        if builder.origins is not None:
            rows = self._rows
            self._rows = {
                node: rows[old] for node, old in enumerate(builder.origins) if old in rows
            }
        return tree

    def read(self, tree: DraftTree, logits: Tensor, token_ids: Sequence[int]) -> None:
        """Remember what the target said of the draft; see `LawReader`."""
        if self._memory is not None:
            self._memory.note(tree, logits, token_ids)

    def commit(self, path: Sequence[int]) -> None:
        """Keep the text caught up with and the accepted nodes that were scored; drop every other row."""
        accepted = [self._rows[node] for node in path if node in self._rows]
        self._state.commit([*range(self._num_caught_up), *accepted])
        self._rows, self._num_caught_up = {}, 0

    def close(self) -> None:
        """Give the cache back."""
        self._state.close()

    def _last_hidden(self) -> Tensor | None:
        """What the head read in the last draft pass; None where the model does not show it."""
        return self._state.last_hidden() if isinstance(self._state, ShowingState) else None

    def _score(self, nodes: Sequence[int], builder: TreeBuilder, text: Sequence[int]) -> Tensor:
        """Logits [F, V] after nodes of one level, in one draft pass; the roots' pass catches up."""
        if not self._rows:
            return self._score_roots(nodes, builder, text)
        first = self._num_caught_up + len(self._rows)
        rows = {node: first + i for i, node in enumerate(nodes)}
        parents = [self._rows[builder.parents[node]] for node in nodes]
        logits = self._state.score([builder.token_ids[node] for node in nodes], parents)
        builder.count_pass(len(nodes))
        self._rows |= rows
        return logits

    def _score_roots(
        self, nodes: Sequence[int], builder: TreeBuilder, text: Sequence[int]
    ) -> Tensor:
        """Logits [F, V] after roots behind `text`, of which the draft model may lack the end."""
        gap = self._known(text[self._state.length :])
        roots = self._known([builder.token_ids[node] for node in nodes])
        builder.count_pass(len(gap) + len(roots))
        if len(gap) + len(roots) > CATCH_UP_ROWS:
            self._state.prefill(gap)
            gap = []
        last = len(gap) - 1
        parents = [*range(NO_PARENT, last), *([last] * len(roots))]
        logits = self._state.score([*gap, *roots], parents)
        self._num_caught_up = len(gap)
        self._rows = {node: row for row, node in enumerate(nodes, len(gap))}
        return logits[len(gap) :]

    def _known(self, token_ids: Sequence[int]) -> list[int]:
        """The tokens; one that the draft model lacks is read as another, and only drafts suffer."""
        if self._target_ids is not None:
            return list(token_ids)
        return [token if token < self._model.vocab_size else 0 for token in token_ids]

    def _own_limits(self, context: DraftContext) -> DraftLimits:
        """The round's limits, as far as the draft model's own context and masks allow them."""
        room, limit = context.limits.max_depth, self._model.context_length
        if limit is not None:  # the last level is drawn but not scored
            room = min(room, limit - len(context.known_ids))
        chains_only = context.limits.chains_only or not self._model.scores_trees
        return replace(context.limits, max_depth=room, chains_only=chains_only)
