"""Drafting with an EAGLE head: chains, static trees and EAGLE-2's dynamic trees.

Row i of the head pairs the target's feature of token i with the embedding of token i + 1, and predicts
token i + 2. With n tokens committed in the target and the root as text[n], the row n - 1 thus predicts
the root's children; a node at depth d has the row n - 1 + d, which pairs its parent's output with its
token. A round first adds the rows of the text that is new since the last draft, from true features,
then grows the tree with one pass a level. Rows of the draft are dropped with the round, accepted or
not: they come from guessed features, and the next round makes them anew from true ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from foredraft.backends.own_pass import own_pass
from foredraft.config import MAX_TREE_NODES
from foredraft.drafters.columns import LatestColumns
from foredraft.drafters.eagle.cache import HeadCache
from foredraft.drafters.eagle.head import EagleHead
from foredraft.drafters.eagle.other_rows import OtherRows
from foredraft.drafters.eagle.rotary import RotaryTable
from foredraft.drafters.eagle.shared_head import Rows, SharedHead
from foredraft.drafters.eagle.vocabulary import TextVocabulary
from foredraft.drafters.growth import grow_tree
from foredraft.drafters.law_candidates import LawCandidates
from foredraft.drafters.recall import Recall, RecallWeights
from foredraft.errors import CacheError, ConfigError
from foredraft.policies.dynamic import BudgetPolicy, DynamicTreePolicy
from foredraft.protocols import DraftContext, DrafterState, Policy, PolicyState, TakeFeatures
from foredraft.tree import DraftTree, Proposal, TreeBuilder


class EagleDrafter:
    """Grows chains and trees from an EAGLE head.

    Args:
        head: a trained head of the target. It is put in eval mode.
        proposal: how children are chosen, as in `DraftModelDrafter`.
        window: rows of text that the head attends to; None takes what its rotary embeddings were made
            for (`max_position_embeddings`), so that longer texts work by relative positions.
        recall: as in `DraftModelDrafter`.

    Raises:
        ConfigError: a window below 1.
    """

    def __init__(
        self,
        head: EagleHead,
        proposal: Proposal = Proposal.COUPLED,
        *,
        window: int | None = None,
        recall: RecallWeights | None = None,
    ) -> None:
        if window is not None and window < 1:
            raise ConfigError(f"window={window} is not allowed; give 1 or more rows, or None")
        self.head, self.proposal, self.recall = head.eval(), proposal, recall
        self.window = head.config.max_position_embeddings if window is None else window
        self.proposals = frozenset({proposal})
        self.rotary = RotaryTable(head)
        self.shared = SharedHead(self.head)

    @cached_property
    def others(self) -> OtherRows | None:
        """Rows of tokens that a text can add; see `TextVocabulary`."""
        return OtherRows.of(self.head)

    @property
    def hidden_size(self) -> int | None:
        """Numbers of a hidden state; None of a head that only stands in for one."""
        return getattr(self.head.config, "hidden_size", None)

    @property
    def taps(self) -> tuple[int, ...]:
        """The hidden states of the target that the head reads."""
        return self.head.config.taps

    @property
    def default_policy(self) -> Policy:
        """EAGLE-2's dynamic tree; for sampled children, a budget that is spent before drawing."""
        if self.proposal in (Proposal.SAMPLED, Proposal.RESAMPLED):
            return BudgetPolicy()
        return DynamicTreePolicy()

    def start(self, capacity: int) -> DrafterState:
        """Refused: the head cannot draft without the target's features."""
        raise ConfigError(
            "an EAGLE head reads the target's hidden states; use it in an Engine, or start_reading"
        )

    def start_reading(self, capacity: int, take_features: TakeFeatures) -> EagleState:
        """A head cache for one request."""
        return EagleState(self, capacity, take_features)


@dataclass(slots=True)
class _Level:
    """The nodes of the last pass and what came out of it."""

    place: dict[int, int]
    """Node -> row of `output`."""
    output: Tensor
    """[T, h] before it is recycled, which only the next level asks for."""
    first: int
    """Index of the first of them among the rows of the draft; -1 for the root, whose row is text."""


class EagleState:
    """The head's cache of one request. After every round it holds rows of true features alone."""

    def __init__(self, drafter: EagleDrafter, capacity: int, take_features: TakeFeatures) -> None:
        self._drafter, self._head, self._shared = drafter, drafter.head, drafter.shared
        self._memory = Recall.of(drafter.recall)
        self._take_features = take_features
        head = drafter.head
        self._cache = HeadCache(head.config, drafter.window, capacity, head.device, head.dtype)
        self._vocabulary = TextVocabulary(head, drafter.others)
        self._columns = LatestColumns()
        self._waiting: list[Tensor] = []  # features [n, F] of committed tokens without a row
        self._level: _Level | None = None
        self._read: Tensor | None = (
            None  # [T, h] what the language-model head read in the last pass
        )
        self._device = head.device  # of the target, once a feature was seen

    @property
    def length(self) -> int:
        """Rows of committed text in the head's cache: one for each token but the last two or so."""
        return self._cache.length

    @torch.inference_mode()
    @own_pass()
    def prefill(self, token_ids: Sequence[int]) -> None:
        """Make the rows of the prompt, in chunks; that of its last token waits for the next token."""
        features = self._features()
        self._check(features, len(token_ids))
        self._vocabulary.add(token_ids)
        if len(features) > 1:
            self._add_text(features[:-1], token_ids[1:])
        self._waiting = [
            features[-1:].clone()
        ]  # a slice would keep the features of the whole prompt

    @torch.inference_mode()
    @own_pass()
    def draft(self, context: DraftContext, policy: PolicyState) -> DraftTree:
        """Catch up with the text, then grow level by level, one pass of the head a level."""
        text, known = context.token_ids, context.known_ids
        if not known or context.limits.max_depth < 1:  # the first token has no feature before it
            return context.builder().build()
        self._vocabulary.add(text[self._cache.length + 1 :])
        builder = context.builder()
        source = LawCandidates(
            context,
            builder,
            self._drafter.proposal,
            score=lambda nodes: self._score(nodes, builder, context),
            columns=self._columns.of(self._vocabulary.ids, context.law.vocab_size, self._device),
            recall=self._memory,
            last_hidden=self._last_hidden,
        )
        return grow_tree(context, policy, builder, source)

    def read(self, tree: DraftTree, logits: Tensor, token_ids: Sequence[int]) -> None:
        """Remember what the target said of the draft; see `LawReader`."""
        if self._memory is not None:
            self._memory.note(tree, logits, token_ids)

    def commit(self, path: Sequence[int]) -> None:
        """Drop every row of the draft; the next draft makes those of accepted nodes anew."""
        self._cache.roll_back()
        self._level = self._read = None

    def close(self) -> None:
        """Give the memory back."""
        del self._cache
        self._waiting.clear()

    def _score(self, nodes: Sequence[int], builder: TreeBuilder, context: DraftContext) -> Tensor:
        """Logits [T, Vd + E] after nodes of one level, on the target's device."""
        if self._level is not None:
            output = self._deeper(nodes, builder, self._level)
        elif context.open_roots:
            output = self._open_roots(nodes, context.token_ids, builder)
        else:
            output = self._root(context.token_ids, builder)
        self._read = self._head.final(output)
        logits = self._shared.project(self._read, self._vocabulary.more)
        return logits.to(self._device)

    def _last_hidden(self) -> Tensor | None:
        """What the language-model head read in the last pass, [T, h], on the target's device."""
        return None if self._read is None else self._read.to(self._device)

    def _open_roots(
        self, nodes: Sequence[int], text: Sequence[int], builder: TreeBuilder
    ) -> Tensor:
        """The outputs [T, h] after roots that are no text: each pairs the text's last feature with itself."""
        features = self._features()
        known = self._cache.length
        self._check(features, len(text) - known)
        if len(features) > 1:
            builder.count_pass(len(features) - 1)
            self._add_text(features[:-1], text[known + 1 :])
        self._waiting = [features[-1:]]
        hidden = self._shared.fuse(features[-1:]).expand(len(nodes), -1)
        return self._draft(nodes, builder, hidden, [-1] * len(nodes), first=0)

    def _root(self, text: Sequence[int], builder: TreeBuilder) -> Tensor:
        """The output [1, h] that predicts the root's children; catches up with the text on the way."""
        features = self._features()
        known = self._cache.length
        self._check(features, len(text) - 1 - known)
        builder.count_pass(len(features))
        output = self._add_text(features, text[known + 1 :])
        self._waiting = []
        self._level = _Level({0: 0}, output, -1)
        return output

    def _add_text(self, features: Tensor, token_ids: Sequence[int]) -> Tensor:
        """Commit the rows of features [n, F] and of the tokens after them; the last output, [1, h]."""
        output = features
        for start in range(0, len(features), MAX_TREE_NODES):
            hidden = self._shared.fuse(features[start : start + MAX_TREE_NODES])
            first, stop = self._cache.length, self._cache.length + len(hidden)
            tokens = list(token_ids[start : start + len(hidden)])
            rotary = self._drafter.rotary.rows(first, stop)
            embeds = self._embed(tokens)
            rows = Rows(embeds, hidden[None], rotary, self._cache.attend_to_text)
            output = self._shared.step(rows)[0]
        return output[-1:]

    def _deeper(self, nodes: Sequence[int], builder: TreeBuilder, above: _Level) -> Tensor:
        """The outputs [T, h] after draft nodes."""
        rows = [above.place[builder.parents[node]] for node in nodes]
        is_first = above.first < 0
        first = 0 if is_first else above.first + len(above.place)
        parents = [-1 if is_first else above.first + row for row in rows]
        hidden = self._head.recycle(_rows_of(above.output, rows))
        return self._draft(nodes, builder, hidden, parents, first)

    def _draft(
        self,
        nodes: Sequence[int],
        builder: TreeBuilder,
        hidden: Tensor,
        parents: list[int],
        first: int,
    ) -> Tensor:
        """The outputs [T, h] of rows of the draft, from hidden states [T, h] and their nodes' tokens.

        Args:
            parents: as in `HeadCache.hold`.
            first: index of the first of these rows among those of the draft.
        """
        self._cache.hold(parents)
        depth = len(builder.path_tokens(nodes[0]))
        position = self._cache.length - 1 + depth
        rotary = self._drafter.rotary.rows(position, position + 1)  # of all of the level
        embeds = self._embed([builder.token_ids[node] for node in nodes])
        builder.count_pass(len(nodes))
        rows = Rows(embeds, hidden[None], rotary, self._cache.attend_to_draft)
        output = self._shared.step(rows)[0]
        place = {node: row for row, node in enumerate(nodes)}
        self._level = _Level(place, output, first)
        return output

    def _embed(self, token_ids: list[int]) -> Tensor:
        """[1, T, h]"""
        ids = torch.tensor([token_ids], device=self._head.ends.device)
        return self._head.embed(ids).to(self._head.dtype)

    def _features(self) -> Tensor:
        """Features [n, F] of committed tokens without a row, where the head is and in its dtype."""
        new = self._take_features()
        self._device = new.device
        new = new.to(device=self._head.device, dtype=self._head.dtype)
        self._waiting = [torch.cat([*self._waiting, new])] if self._waiting else [new]
        return self._waiting[0]

    def _check(self, features: Tensor, expected: int) -> None:
        count, size = features.shape
        if size != self._head.config.feature_size:
            raise ConfigError(
                f"the head reads features of {self._head.config.feature_size} numbers and the target gives "
                f"{size}; use the head with the model it was trained for"
            )
        if count != expected:
            raise CacheError(
                f"the target gave features of {count} tokens where {expected} were expected; "
                "its hidden states do not follow the text"
            )


def _rows_of(output: Tensor, rows: list[int]) -> Tensor:
    """[T, h] these rows; without a copy where they lie behind one another."""
    first, stop = rows[0], rows[0] + len(rows)
    return output[first:stop] if rows == list(range(first, stop)) else output[rows]
