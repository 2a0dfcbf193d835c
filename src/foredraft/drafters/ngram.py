"""Drafts copied from the text itself: prompt lookup, several candidates as a tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from foredraft.drafters.growth import grow_tree
from foredraft.drafters.reliability import PROMPT_WEIGHT, Reliability, agreement
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

    Scores are logs of how likely copies are right, by how much of the text agrees with their source and by
    how copies have done in the text (`Reliability`).

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
        self._reliability = Reliability()

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Index the prompt."""
        self._index(token_ids, PROMPT_WEIGHT)

    def draft(self, context: DraftContext, policy: PolicyState) -> DraftTree:
        """Copy what followed the longest matches of the text's end."""
        builder = context.builder()
        return grow_tree(context, policy, builder, self._copies(context, builder))

    def draft_scored(
        self, context: DraftContext, policy: PolicyState
    ) -> tuple[DraftTree, tuple[float, ...]]:
        """As `draft`; with it, for each node, log of how likely its path is thought to be, [N]."""
        builder = context.builder()
        copies = self._copies(context, builder)
        tree = grow_tree(context, policy, builder, copies)
        grown = range(len(tree)) if builder.origins is None else builder.origins
        return tree, tuple(copies.scores(grown))

    def _copies(self, context: DraftContext, builder: TreeBuilder) -> _Copies:
        """What can be copied behind the text, which is indexed first."""
        token_ids = context.token_ids
        self._index(token_ids)
        positions = {
            node: self._find([*context.known_ids[-LONGEST_MATCH:], root])
            for node, root in enumerate(context.roots)
        }
        return _Copies(context, builder, positions, self._reliability)

    def commit(self, path: Sequence[int]) -> None:
        """The next draft indexes what was added."""

    def close(self) -> None:
        """Forget the text."""
        self._follow.clear()

    def _index(self, token_ids: Sequence[int], weight: float = 1.0) -> None:
        """Remember, for each n-gram, the position that follows it (the text's end excepted).

        Each token that is added is compared with the copy that would have been made of it, which counts
        `weight`.
        """
        for end in range(self._num_indexed, len(token_ids)):
            source = None
            for n in self._lengths:
                if n <= end:
                    follow = self._follow.setdefault(tuple(token_ids[end - n : end]), [])
                    if source is None and follow:
                        source = follow[-1]
                    follow.append(end)
                    del follow[:-MATCHES_KEPT]
            if source is not None:
                length = agreement(token_ids, source, end)
                self._reliability.note(length, token_ids[source] == token_ids[end], weight)
        self._num_indexed = len(token_ids)

    def _find(self, token_ids: Sequence[int]) -> list[int]:
        """Positions to copy from: longest match first, latest first."""
        found: dict[int, None] = {}
        for n in self._lengths:
            if n <= len(token_ids):
                follow = self._follow.get(tuple(token_ids[-n:]), [])
                found.update(dict.fromkeys(reversed(follow)))
        return list(found)


@dataclass(frozen=True, slots=True)
class _Siblings:
    """Copies behind one node whose scores nobody has asked for yet."""

    parent: int
    first: int
    """The first of them; the others follow it."""
    num_drafted: int
    """Tokens from the text's end to them, which their sources repeat."""
    starts: list[int]
    """[n] where the source of each stood at the text's end."""


class _Copies:
    """Candidate children: the tokens at the positions being copied, in the order of the matches."""

    column_ids: Tensor | None = None

    def __init__(
        self,
        context: DraftContext,
        builder: TreeBuilder,
        positions: dict[int, list[int]],
        reliability: Reliability,
    ) -> None:
        self._context, self._builder = context, builder
        self._positions, self._reliability = positions, reliability
        self._scores = dict.fromkeys(positions, 0.0)
        self._unscored: list[_Siblings] = []

    def log_probs(self, nodes: Sequence[int]) -> Tensor | None:
        """Copies have no law."""
        return None

    def hidden(self, nodes: Sequence[int]) -> Tensor | None:
        """Copies come of no model."""
        return None

    def drawn_from(self, nodes: Sequence[int]) -> Tensor | None:
        """Copies have no law."""
        return None

    def scores(self, nodes: Sequence[int]) -> list[float]:
        """log of how likely the path to each node is right; worked out when it is asked for."""
        for siblings in self._unscored:
            self._score(siblings)
        self._unscored.clear()
        return [self._scores[node] for node in nodes]

    def extend(self, nodes: Sequence[int], counts: Sequence[int]) -> list[int]:
        """Children are the first distinct tokens; all positions that agree on one move on with it."""
        new = []
        for node, count in zip(nodes, counts, strict=True):
            drafted = self._builder.path_tokens(node)
            candidates = list(self._candidates(node, drafted).items())[:count]
            first = len(self._builder)
            for token, positions in candidates:
                child = self._builder.add(node, token, Proposal.DETERMINISTIC)
                self._positions[child] = positions
                new.append(child)
            starts = [positions[0] - 1 - len(drafted) for _, positions in candidates]
            self._unscored.append(_Siblings(node, first, len(drafted), starts))
        return new

    def _score(self, siblings: _Siblings) -> None:
        """Each sibling has its share of what those before it leave."""
        text, left = self._context.token_ids, 1.0
        for rank, start in enumerate(siblings.starts):
            length = agreement(text, start, len(text)) + siblings.num_drafted
            right = self._reliability(length, rank)
            above = self._scores[siblings.parent]
            self._scores[siblings.first + rank] = above + math.log(left * right)
            left *= 1 - right

    def _candidates(self, node: int, drafted: Sequence[int]) -> dict[int, list[int]]:
        text = self._context.token_ids
        banned = self._context.law.banned_after(text, drafted)
        candidates: dict[int, list[int]] = {}
        for position in self._positions[node]:
            past = position - len(text)
            token = text[position] if past < 0 else drafted[past]
            if token not in banned:
                candidates.setdefault(token, []).append(position + 1)
        return candidates
