"""Drafts copied from the text itself: prompt lookup, several candidates as a tree."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from foredraft.drafters.growth import grow_tree
from foredraft.errors import ConfigError
from foredraft.policies.fixed import FixedPolicy
from foredraft.protocols import DraftContext, PolicyState
from foredraft.tree import DraftTree, Proposal, TreeBuilder

MATCHES_KEPT = 8
"""Latest occurrences remembered of each n-gram: enough candidates for any tree worth its nodes."""
LONGEST_MATCH = 64
"""Of n-grams this long, the index holds a text 64 times over; a longer match finds nothing better."""


class NgramDrafter:
    """Looks up the last n tokens in the prompt and answer so far and copies what followed them.

    The longest match comes first, later occurrences before earlier ones. A copy that reaches the end
    of the text goes on with the tokens it has just drafted, so a loop is drafted to full depth.
    Costs no model pass.

    Args:
        min_match: shortest n-gram looked up.
        max_match: longest n-gram looked up.

    Raises:
        ConfigError: the two do not form a range.
    """

    proposals = frozenset({Proposal.DETERMINISTIC})

    def __init__(self, min_match: int = 2, max_match: int = 5) -> None:
        if not 1 <= min_match <= max_match <= LONGEST_MATCH:
            raise ConfigError(
                f"n-gram lengths {min_match}..{max_match} are not a range; "
                f"give 1 <= min_match <= max_match <= {LONGEST_MATCH}"
            )
        self.min_match, self.max_match = min_match, max_match

    @property
    def default_policy(self) -> FixedPolicy:
        """A chain that, with its root, fills the 8 rows a pass gives nearly free."""
        return FixedPolicy.chain(7)

    def start(self, capacity: int) -> NgramState:
        """An empty index for one request."""
        return NgramState(self.min_match, self.max_match)


class NgramState:
    """The index of one request's n-grams, extended as the text grows."""

    def __init__(self, min_match: int, max_match: int) -> None:
        self._lengths = range(max_match, min_match - 1, -1)
        self._follow: dict[tuple[int, ...], list[int]] = {}  # not deques: each takes 760 bytes
        self._num_indexed = 0

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Index the prompt."""
        self._index(token_ids)

    def draft(self, context: DraftContext, policy: PolicyState) -> DraftTree:
        """Copy what followed the longest matches of the text's end."""
        token_ids = context.token_ids
        self._index(token_ids)
        builder = context.builder()
        positions = {
            node: self._find([*context.known_ids[-LONGEST_MATCH:], root])
            for node, root in enumerate(context.roots)
        }
        return grow_tree(context, policy, builder, _Copies(context, builder, positions))

    def commit(self, path: Sequence[int]) -> None:
        """The next draft indexes what was added."""

    def close(self) -> None:
        """Forget the text."""
        self._follow.clear()

    def _index(self, token_ids: Sequence[int]) -> None:
        """Remember, for each n-gram, the position that follows it (the text's end excepted)."""
        for end in range(self._num_indexed, len(token_ids)):
            for n in self._lengths:
                if n <= end:
                    follow = self._follow.setdefault(tuple(token_ids[end - n : end]), [])
                    follow.append(end)
                    del follow[:-MATCHES_KEPT]
        self._num_indexed = len(token_ids)

    def _find(self, token_ids: Sequence[int]) -> list[int]:
        """Positions to copy from: longest match first, latest first."""
        found: dict[int, None] = {}
        for n in self._lengths:
            if n <= len(token_ids):
                follow = self._follow.get(tuple(token_ids[-n:]), [])
                found.update(dict.fromkeys(reversed(follow)))
        return list(found)


class _Copies:
    """Candidate children: the tokens at the positions being copied, in the order of the matches."""

    column_ids: Tensor | None = None

    def __init__(
        self, context: DraftContext, builder: TreeBuilder, positions: dict[int, list[int]]
    ) -> None:
        self._context, self._builder = context, builder
        self._positions = positions

    def log_probs(self, nodes: Sequence[int]) -> Tensor | None:
        """Copies have no law."""
        return None

    def hidden(self, nodes: Sequence[int]) -> Tensor | None:
        """Copies come of no model."""
        return None

    def drawn_from(self, nodes: Sequence[int]) -> Tensor | None:
        """Copies have no law."""
        return None

    def scores(self, nodes: Sequence[int]) -> list[float] | None:
        """Copies have no law."""
        return None

    def extend(self, nodes: Sequence[int], counts: Sequence[int]) -> list[int]:
        """Children are the first distinct tokens; all positions that agree on one move on with it."""
        new = []
        for node, count in zip(nodes, counts, strict=True):
            for token, positions in list(self._candidates(node).items())[:count]:
                child = self._builder.add(node, token, Proposal.DETERMINISTIC)
                self._positions[child] = positions
                new.append(child)
        return new

    def _candidates(self, node: int) -> dict[int, list[int]]:
        drafted = self._builder.path_tokens(node)
        text = self._context.token_ids
        banned = self._context.law.banned_after(text, drafted)
        candidates: dict[int, list[int]] = {}
        for position in self._positions[node]:
            past = position - len(text)
            token = text[position] if past < 0 else drafted[past]
            if token not in banned:
                candidates.setdefault(token, []).append(position + 1)
        return candidates
