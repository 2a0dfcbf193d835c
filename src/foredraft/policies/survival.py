"""How likely the tokens of a draft are to be accepted: laws, calibrated by what became of earlier drafts.

A drafter's law says how likely it thinks a token. What counts is how often the target takes such tokens,
which differs by drafter, by text and from one passage to the next. A *copy* from the text and a model's law
are two opinions on the same token: the copy is right with its reliability, and where it is not, the model's
law counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.tree import DraftTree

LEAST_Q, MOST_Q = 1e-4, 0.999
"""Probabilities are looked at between these: past them, logs say nothing."""
MOST_SURE = 0.97
"""No drafted token is taken for surer than this."""
NO_COPY = -1


@dataclass(frozen=True, slots=True)
class Calibration:
    """From a law's probabilities to acceptance.

    A child is accepted, given that its parent is, with probability `sigmoid(bias + slope logit(q) + first)`,
    the last term for its parent's most likely child alone; one of a node's children is with probability
    `any_child`. What the rounds of a request teach comes on top (`TrackRecord`).

    Attributes:
        bias, slope, first: fitted on recorded rounds; the defaults are those of an EAGLE-3 head, and change a
            well-trained law little.
        any_child: of the most likely children together, the mean over rounds.
        copy_bias, copy_slope, surest_slope: see `doubted`; fitted likewise.
    """

    bias: float = 0.13
    slope: float = 1.08
    first: float = 0.32
    any_child: float = 0.78
    copy_bias: float = -1.9
    copy_slope: float = 1.2
    surest_slope: float = -0.5

    def child(self, log_q: float, rank: int) -> float:
        """Acceptance of a child, given its parent's."""
        first = self.first if rank == 0 else 0.0
        return _sigmoid(self.bias + self.slope * _logit(math.exp(log_q)) + first)

    def doubted(self, share: float, surest: float) -> float:
        """How likely a copy is right that the model has not among its candidates.

        Args:
            share: what is thought of the copy without the model.
            surest: log q of the model's likeliest candidate.
        """
        doubt = self.copy_slope * _logit(share) + self.surest_slope * _logit(math.exp(surest))
        return _sigmoid(self.copy_bias + doubt)


def _logit(probability: float) -> float:
    bounded = min(max(probability, LEAST_Q), MOST_Q)
    return math.log(bounded / (1 - bounded))


def _sigmoid(odds: float) -> float:
    return 1 / (1 + math.exp(-odds))


class TrackRecord:
    """How a drafter has done in this request, against what its laws promised.

    Where the root's children were accepted more or less often than was promised, all later promises are
    raised or lowered in proportion. Rounds without a draft of the model slowly forget, so that a drafter
    that was given up is tried again.
    """

    RATE = 0.2
    """Weight of the latest round."""
    FORGETS = 0.003
    """Weight of the prior in a round without a draft."""
    FLOOR = 0.05
    """Added to both, so that a factor of 0 is never reached."""

    def __init__(self, calibration: Calibration) -> None:
        self._prior = calibration.any_child
        self._seen = self._expected = self._prior

    @property
    def factor(self) -> float:
        """What promises are to be multiplied by."""
        return (self._seen + self.FLOOR) / (self._expected + self.FLOOR)

    def note(self, expected: float, accepted: bool) -> None:
        """A draft of the model: the promise of the root's children together, and what became of them."""
        self._seen += self.RATE * (accepted - self._seen)
        self._expected += self.RATE * (min(expected, 1.0) - self._expected)

    def note_nothing(self) -> None:
        """A round without a draft of the model."""
        self._seen += self.FORGETS * (self._prior - self._seen)
        self._expected += self.FORGETS * (self._prior - self._expected)


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of a round and how far each can be relied on.

    Attributes:
        tree: of copies, from the round's root.
        shares: [N] acceptance of each node, given its parent's; 1 for the root.
    """

    tree: DraftTree
    shares: tuple[float, ...]

    @classmethod
    def of(cls, tree: DraftTree, scores: Sequence[float]) -> Copies:
        """From the scores of whole paths, [N] logs."""
        parents = tree.parents
        given = (math.exp(scores[n] - scores[parents[n]]) for n in range(1, len(tree)))
        return cls(tree, (1.0, *(min(share, 1.0) for share in given)))


NO_COPIES = Copies(DraftTree.root_only(0), (1.0,))


@dataclass(frozen=True, slots=True)
class Child:
    """A candidate of the model's.

    Attributes:
        node: in the tree that is grown.
        token_id: of it.
        score: log q of its path, as in `Frontier.scores`.
        rank: its place among its siblings, 0 first.
    """

    node: int
    token_id: int
    score: float
    rank: int


class Survivals:
    """How likely each node of a model's tree is to be accepted, the copies' opinion counted in.

    Args:
        calibration: of the model's law.
        copies: of this round.
        factor: of `TrackRecord`.
    """

    def __init__(self, calibration: Calibration, copies: Copies, factor: float) -> None:
        self._calibration, self._copies, self._factor = calibration, copies, factor
        self._shares = list(copies.shares)
        self._of = {0: 1.0}
        self._copy = {0: 0}
        self._scores = {0: 0.0}
        self._told: set[int] = set()  # nodes whose children are known
        self.promised: dict[int, float] = {}
        """What the law promises of each of the root's children, before the factor."""

    def __getitem__(self, node: int) -> float:
        return self._of[node]

    def __contains__(self, node: int) -> bool:
        return node in self._of

    def copy_at(self, node: int) -> int:
        """The copy that stands where this node does; `NO_COPY` without one."""
        return self._copy[node]

    def share(self, copy: int) -> float:
        """How likely a copy is right if the one before it is, as far as the model has been heard."""
        return self._shares[copy]

    def add(self, parent: int, children: Sequence[Child]) -> None:
        """Children of a node that is known; later ones may follow."""
        if parent not in self._told:
            self._doubt_copies(parent, children)
            self._told.add(parent)
        above = self._copy[parent]
        alone = 1 - self._share_after(parent)
        for child in children:
            promised = self._calibration.child(child.score - self._scores[parent], child.rank)
            if parent == 0:
                self.promised[child.node] = promised
            copy = self._copy_of(above, child.token_id)
            share = self._shares[copy] if copy != NO_COPY else 0.0
            given = share + alone * min(promised * self._factor, MOST_SURE)
            self._of[child.node] = self._of[parent] * given
            self._copy[child.node], self._scores[child.node] = copy, child.score

    def next_level(self, node: int) -> float:
        """What a draft pass after this node adds: how likely a child is accepted that is no copy."""
        some = min(self._calibration.any_child * self._factor, MOST_SURE)
        return self._of[node] * (1 - self._share_after(node)) * some

    def _doubt_copies(self, parent: int, children: Sequence[Child]) -> None:
        """Rely less on copies that the model has not among its candidates, the less the surer it is."""
        tokens = {child.token_id for child in children}
        surest = max(child.score for child in children) - self._scores[parent]
        for copy in self._copies_after(self._copy[parent]):
            if self._copies.tree.token_ids[copy] not in tokens:
                doubted = self._calibration.doubted(self._shares[copy], surest)
                self._shares[copy] = min(self._shares[copy], doubted)

    def _share_after(self, node: int) -> float:
        """How likely one of the copies after this node is right."""
        return min(sum(self._shares[c] for c in self._copies_after(self._copy[node])), 1.0)

    def _copies_after(self, copy: int) -> Sequence[int]:
        return () if copy == NO_COPY else self._copies.tree.children[copy]

    def _copy_of(self, above: int, token_id: int) -> int:
        found = (
            copy
            for copy in self._copies_after(above)
            if self._copies.tree.token_ids[copy] == token_id
        )
        return next(found, NO_COPY)
