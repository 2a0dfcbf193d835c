"""What the target said after the same tokens before: its own candidates, put into a drafter's law.

Every round the target scores all nodes of a draft, and what it says after those that are not taken is
commonly thrown away. Here its laws are kept by the tokens that they follow, and later drafts that come to
the same tokens draw from a mixture of the drafter's law and the target's earlier one. Token Recycling (arXiv
2408.08696) keeps the target's best tokens likewise, to draft from them alone. What followed the same tokens
in the text itself, the prompt included, has a share of its own.

The mixture is the law that drafts are drawn from and that is reported for them. It follows from the text,
earlier drafts and earlier laws, all of them given before the round draws anything: so every verifier that
is exact for the drafter stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.tree import DraftTree, TreeBuilder

PAIR, SINGLE, TEXT = 0.7, 0.5, 0.4
"""Shares when nothing else is asked for."""
TOP = 8
"""Tokens kept of a law: the rest of it is left to the drafter."""
MOST_LAWS = 16384
"""Laws kept in a request, about 10 MB of them: thousands of rounds."""

Context = tuple[int, ...]
"""The last one or two tokens before a law."""


@dataclass(frozen=True, slots=True)
class RecallWeights:
    """Shares of what is remembered in the mixture.

    Attributes:
        pair: of the law that the target gave after the same two tokens.
        single: of the law that it gave after the same token, where there is none of the pair.
        text: of the token that followed the same two tokens in the text; the rest of the mixture is
            shared as without it.

    Raises:
        ConfigError: not from 0 to 1.
    """

    pair: float = PAIR
    single: float = SINGLE
    text: float = TEXT

    def __post_init__(self) -> None:
        for share in fields(self):
            value = getattr(self, share.name)
            if not 0 <= value <= 1:
                raise ConfigError(f"{share.name}={value} of a mixture is not allowed; give 0 to 1")


class Recall:
    """What is remembered in one request: of several laws, or tokens, after the same tokens the latest."""

    def __init__(self, weights: RecallWeights) -> None:
        self._weights = weights
        self._laws: dict[Context, tuple[Tensor, Tensor]] = {}
        self._unread: list[tuple[DraftTree, Tensor, tuple[int, ...]]] = []
        self._followers: dict[Context, int] = {}
        self._num_indexed = 0
        self._columns = _Columns()

    @classmethod
    def of(cls, weights: RecallWeights | None) -> Recall | None:
        """An empty memory; None where nothing has a share."""
        if weights is None or not (weights.pair or weights.single or weights.text):
            return None
        return cls(weights)

    def note(self, tree: DraftTree, logits: Tensor, text: Sequence[int]) -> None:
        """Keep the target's logits [N, V] over a tree that follows `text`, to be read at the next draft."""
        if self._weights.pair or self._weights.single:
            self._unread.append((tree, logits, tuple(text[-2:])))

    def index(self, text: Sequence[int]) -> None:
        """Note what follows each two tokens of a text that has only grown since the last call."""
        for end in range(max(self._num_indexed, 2), len(text)):
            self._followers[tuple(text[end - 2 : end])] = text[end]
        self._num_indexed = len(text)

    def blend(self, logits: Tensor, contexts: Sequence[Context], ids: Tensor | None) -> Tensor:
        """The drafter's logits with what is remembered mixed in.

        Args:
            logits: [F, C] of the drafter.
            contexts: [F] of each law; see `contexts_of`.
            ids: int64 [C], the token of each column; None where column i is token i. From draft to draft
                columns may be added and none taken away.

        Returns:
            log((1 - t) ((1 - w) q + w p) + t e), float32 [F, C]: p is what the target said after the same
            tokens and w its share, e the token that followed them in the text and t its share; `logits`
            where nothing is remembered.
        """
        self._read_noted(logits.shape[-1], ids)
        laws = [self._law_after(context) for context in contexts]
        columns = [self._column_after(context, logits.shape[-1], ids) for context in contexts]
        if not any(laws) and all(column is None for column in columns):
            return logits
        mixed = logits.float().softmax(-1)
        for row, law, column in zip(mixed, laws, columns, strict=True):
            if law is not None:
                share, places, probs = law
                places, probs = places.to(row.device), probs.to(row.device)
                row.mul_(1 - share).index_add_(0, places, share * probs)
            if column is not None:
                row.mul_(1 - self._weights.text)[column] += self._weights.text
        return mixed.log_()

    def _read_noted(self, num_columns: int, ids: Tensor | None) -> None:
        """Remember the best of each noted law, over the columns that the drafter has."""
        for tree, logits, tail in self._unread:
            if ids is not None:  # one that the target lacks is never drafted: any row will do
                logits = logits[:, ids.to(logits.device).clamp(max=logits.shape[-1] - 1)]
            logits = logits[:, :num_columns]
            best = logits.topk(min(TOP, logits.shape[-1]), -1)
            probs = (best.values.float() - logits.float().logsumexp(-1, keepdim=True)).exp()
            contexts = contexts_of(tree, range(len(tree)), tail)
            for context, places, law in zip(contexts, best.indices, probs, strict=True):
                self._remember(context, (places, law))
                self._remember(context[-1:], (places, law))
        self._unread.clear()

    def _remember(self, context: Context, law: tuple[Tensor, Tensor]) -> None:
        """Keep a law as the latest; the one that nothing was said about for longest goes, past the limit."""
        self._laws.pop(context, None)
        self._laws[context] = law
        if len(self._laws) > MOST_LAWS:
            del self._laws[next(iter(self._laws))]

    def _law_after(self, context: Context) -> tuple[float, Tensor, Tensor] | None:
        """The share, columns and probabilities of the law that is remembered for these tokens."""
        for share, key in (
            (self._weights.pair, context[-2:]),
            (self._weights.single, context[-1:]),
        ):
            if share and key in self._laws:
                return share, *self._laws[key]
        return None

    def _column_after(self, context: Context, num_columns: int, ids: Tensor | None) -> int | None:
        """The column of the token that followed these in the text."""
        token = self._followers.get(context) if self._weights.text else None
        if token is None:
            return None
        column = token if ids is None else self._columns.of(token, ids)
        return column if column is not None and column < num_columns else None


class _Columns:
    """The columns of tokens, by a list of tokens that may grow."""

    def __init__(self) -> None:
        self._column: dict[int, int] = {}
        self._num_known = 0

    def of(self, token: int, ids: Tensor) -> int | None:
        """The column of `token` in `ids`, if it has one."""
        known, self._num_known = self._num_known, len(ids)
        if known < len(ids):
            self._column.update(zip(ids[known:].tolist(), range(known, len(ids)), strict=True))
        return self._column.get(token)


def contexts_of(
    tree: DraftTree | TreeBuilder, nodes: Sequence[int], text: Sequence[int]
) -> list[Context]:
    """[F] the last one or two tokens up to each node, in a tree that follows `text`."""
    tail = text[-2:]
    return [(*tail, *tree.path_tokens(node))[-2:] for node in nodes]
