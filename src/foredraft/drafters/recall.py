"""What the target said after the same tokens before: its own candidates, put into a drafter's law.

Every round the target scores all nodes of a draft, and what it says after those that are not taken is
commonly thrown away. Here its laws are kept by the tokens that they follow, and later drafts that come to
the same tokens draw from a mixture of the drafter's law and the target's earlier one. Token Recycling (arXiv
2408.08696) keeps the target's best tokens likewise, to draft from them alone.

The mixture is the law that drafts are drawn from and that is reported for them. It follows from the text,
earlier drafts and earlier laws, all of them given before the round draws anything: so every verifier that
is exact for the drafter stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.tree import DraftTree, TreeBuilder

PAIR, SINGLE = 0.7, 0.5
"""Shares of a remembered law when nothing else is asked for."""
TOP = 8
"""Tokens kept of a law: the rest of it is left to the drafter."""


@dataclass(frozen=True, slots=True)
class RecallWeights:
    """Shares of a remembered law in the mixture.

    Attributes:
        pair: of one that followed the same two tokens.
        single: of one that followed the same token, where there is none of the pair.

    Raises:
        ConfigError: not from 0 to 1.
    """

    pair: float = PAIR
    single: float = SINGLE

    def __post_init__(self) -> None:
        for name, share in (("pair", self.pair), ("single", self.single)):
            if not 0 <= share <= 1:
                raise ConfigError(f"{name}={share} of a mixture is not allowed; give 0 to 1")


class TargetRecall:
    """The target's laws of one request, by the one or two tokens before them. The latest law counts."""

    def __init__(self, weights: RecallWeights) -> None:
        self._weights = weights
        self._laws: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        self._unread: list[tuple[list[tuple[int, ...]], Tensor]] = []

    @classmethod
    def of(cls, weights: RecallWeights | None) -> TargetRecall | None:
        """An empty memory; None where there is no share for it."""
        return None if weights is None or not (weights.pair or weights.single) else cls(weights)

    def note(self, tree: DraftTree, logits: Tensor, text: Sequence[int]) -> None:
        """Keep the target's logits [N, V] over a tree that follows `text`, to be read at the next draft."""
        self._unread.append((contexts_of(tree, range(len(tree)), text), logits))

    def blend(
        self, logits: Tensor, contexts: Sequence[tuple[int, ...]], column_ids: Tensor | None
    ) -> Tensor:
        """The drafter's logits with remembered laws mixed in.

        Args:
            logits: [F, C] of the drafter.
            contexts: [F] the last one or two tokens before each law; see `contexts_of`.
            column_ids: int64 [C], the token of each column; None where column i is token i. From draft to
                draft columns may be added and none taken away.

        Returns:
            log((1 - w) q + w p), float32 [F, C], p being what the target said after the same tokens and w
            its share; `logits` where nothing is remembered.
        """
        for known, scored in self._unread:
            self._read(known, scored, logits.shape[-1], column_ids)
        self._unread.clear()
        found = [self._find(context) for context in contexts]
        if not any(found):
            return logits
        mixed = logits.float().softmax(-1)
        for row, memory in zip(mixed, found, strict=True):
            if memory is not None:
                share, columns, probs = memory
                row.mul_(1 - share).index_add_(0, columns, share * probs)
        return mixed.log_()

    def _read(
        self,
        contexts: Sequence[tuple[int, ...]],
        logits: Tensor,
        columns: int,
        column_ids: Tensor | None,
    ) -> None:
        """Remember the best of each law, over the columns that the drafter has."""
        if column_ids is not None:  # one that the target lacks is never drafted: any row will do
            logits = logits[:, column_ids.clamp(max=logits.shape[-1] - 1)]
        logits = logits[:, :columns]
        best = logits.topk(min(TOP, logits.shape[-1]), -1)
        probs = (best.values.float() - logits.float().logsumexp(-1, keepdim=True)).exp()
        for context, places, law in zip(contexts, best.indices, probs, strict=True):
            self._laws[context] = self._laws[context[-1:]] = places, law

    def _find(self, context: tuple[int, ...]) -> tuple[float, Tensor, Tensor] | None:
        """The share, columns and probabilities of the law that is remembered for these tokens."""
        for share, key in (
            (self._weights.pair, context[-2:]),
            (self._weights.single, context[-1:]),
        ):
            if share and key in self._laws:
                return share, *self._laws[key]
        return None


def contexts_of(
    tree: DraftTree | TreeBuilder, nodes: Sequence[int], text: Sequence[int]
) -> list[tuple[int, ...]]:
    """[F] the last one or two tokens up to each node, in a tree that follows `text`."""
    tail = text[-2:]
    return [(*tail, *tree.path_tokens(node))[-2:] for node in nodes]
