"""The draft that pays most: in every round the tree with the most expected tokens for its time.

Time has a price: a second spent on this round is one in which the rest of the answer would have given
`rate` tokens. So the best draft maximises `expected tokens - rate * seconds`, which is what maximises tokens
per second over a whole answer (Dinkelbach's rule for ratios). The rate is that of the request so far.

In a batch the passes are shared: rows are priced behind those of the others, and the rate is that of all.

A node is worth the probability that it is accepted (`survival`); a draft of n nodes costs a target pass of
n + 1 rows, and each level of a model's draft a pass of its own (`prices`). Growth stops where the next level
is expected to cost more than it gives, down to no draft at all; then the nodes worth their rows are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from foredraft.errors import ConfigError
from foredraft.policies.dynamic import scores_of
from foredraft.policies.prices import Correction, LivePrices, Prices
from foredraft.policies.survival import (
    NO_COPIES,
    NO_COPY,
    Calibration,
    Child,
    Copies,
    Survivals,
    TrackRecord,
)
from foredraft.protocols import (
    Candidates,
    Company,
    DraftLimits,
    Frontier,
    PolicyKind,
    PolicyState,
    RoundOutcome,
)
from foredraft.tree import DraftTree

FIRST_ROUNDS = 3
FIRST_SPEEDUP = 1.5
"""The rate at the start of a request is that of so many rounds, so much faster than plain decoding."""
LIKELY_WIDTH = 8
"""Rows about which an added row is priced while the draft's size is not known yet."""
ROWS_A_NODE = 2
"""Rows of the target's pass that a draft pass after one node is expected to add."""


class AdaptivePolicy:
    """Maximises expected tokens per second, from measured costs and calibrated survival.

    Args:
        prices: of this target and drafter on this machine.
        calibration: of the drafter's laws.
        nodes: draft tokens at most.
        depth: levels of the model's draft at most.
        top_k: children looked at of each node, and nodes of a level that get children, at most.
        copies: length of the branch of copies at most.
        refine: correct prices by the times of all requests' rounds; False gives equal texts equal drafts.

    Raises:
        ConfigError: a number below 1.
    """

    kind = PolicyKind.SELECTS
    branches = True

    def __init__(
        self,
        prices: Prices,
        calibration: Calibration | None = None,
        *,
        nodes: int = 48,
        depth: int = 8,
        top_k: int = 5,
        copies: int = 32,
        refine: bool = True,
    ) -> None:
        for name, value in (
            ("nodes", nodes),
            ("depth", depth),
            ("top_k", top_k),
            ("copies", copies),
        ):
            if type(value) is not int or value < 1:
                raise ConfigError(
                    f"{name}={value!r} is not allowed; give a whole number of 1 or more"
                )
        self.prices, self.calibration = prices, calibration or Calibration()
        self.max_nodes, self.depth, self.top_k, self.copies = nodes, depth, top_k, copies
        self.correction = Correction() if refine else None

    def priced(self, prices: Prices) -> AdaptivePolicy:
        """The same policy with other prices."""
        return AdaptivePolicy(
            prices,
            self.calibration,
            nodes=self.max_nodes,
            depth=self.depth,
            top_k=self.top_k,
            copies=self.copies,
            refine=self.correction is not None,
        )

    def start(self) -> AdaptiveState | AdaptiveCopiesState:
        """State for one request: of a model with copies, or of copies alone where drafts cost no pass."""
        return AdaptiveState(self) if self.prices.level is not None else AdaptiveCopiesState(self)


class _Market:
    """What a token and a second are worth in this request."""

    def __init__(self, policy: AdaptivePolicy) -> None:
        self.prices = LivePrices(policy.prices, policy.correction)
        self._tokens = FIRST_ROUNDS * FIRST_SPEEDUP
        self._seconds = 0.0

    def open(self, context: int) -> None:
        """A new round behind so many cached tokens."""
        self.prices.at(context)
        if not self._seconds:
            self._seconds = FIRST_ROUNDS * self.prices.round_s(1, (), drafted=False)

    def join(self, company: Company) -> None:
        """The next round's passes are shared with these."""
        if (
            company.members != self.prices.company.members
        ):  # the rate of another company says little
            self._tokens, self._seconds = FIRST_ROUNDS * FIRST_SPEEDUP, 0.0
            self._tokens += FIRST_ROUNDS * company.tokens
        self.prices.company = company

    @property
    def rate(self) -> float:
        """Tokens per second so far, of all who share passes."""
        return self._tokens / self._seconds

    @property
    def row(self) -> float:
        """What one more row in the target's pass costs, in tokens."""
        prices = self.prices
        added_s = prices.pass_s(2 * LIKELY_WIDTH) - prices.pass_s(LIKELY_WIDTH)
        return self.rate * max(added_s, 0.0) / LIKELY_WIDTH

    def best_size(self, survivals: Sequence[float]) -> int:
        """How many of these nodes, the likeliest first, a draft is to have."""
        best, size, tokens = -math.inf, 0, 1.0
        for count in range(len(survivals) + 1):
            tokens += survivals[count - 1] if count else 0.0
            value = tokens - self.rate * self.prices.pass_s(count + 1)
            if value > best:
                best, size = value, count
        return size

    def best_rows(self, gains: Sequence[float], missed: int) -> int:
        """How many nodes, the most promising first, the next draft pass is to have; 0 where none pays.

        Args:
            gains: tokens that a pass after each is expected to give.
            missed: rows of text that the pass has to make too.
        """
        best, rows, tokens = 0.0, 0, 0.0
        for count, gain in enumerate(gains, 1):
            tokens += gain
            seconds = self.prices.level_s(count + missed)
            value = tokens - self.rate * seconds - count * ROWS_A_NODE * self.row
            if value > best:
                best, rows = value, count
        return rows

    def close(self, outcome: RoundOutcome) -> None:
        """Count the round's tokens and its price, and learn what it took."""
        tree = outcome.tree
        self._tokens += outcome.num_accepted + 1 + self.prices.company.tokens
        self._seconds += self.prices.round_s(
            len(tree), tree.draft_rows, drafted=tree.num_drafted > 0
        )
        self.prices.learn(outcome)


class _CopyBranch:
    """Grows one branch of copies as long as it may pay for its rows."""

    def __init__(self, policy: AdaptivePolicy, market: _Market) -> None:
        self._policy, self._market = policy, market

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        """No longer than the policy's branch; a new round begins."""
        self._market.open(len(text) - 1)
        depth = min(limits.max_depth, self._policy.copies)
        return DraftLimits(depth, limits.max_nodes, limits.chains_only)

    def grow(self, frontier: Frontier) -> Sequence[int]:
        """One child, the latest copy of the longest match, of a node that may be worth its row."""
        least = self._market.row
        return [int(math.exp(score) > least) for score in scores_of(frontier, self._policy)]

    def observe(self, outcome: RoundOutcome) -> None:
        """Whoever owns the market closes the round."""


class AdaptiveCopiesState(_CopyBranch):
    """One request of a drafter that copies, and makes no pass: see `SelectingState`."""

    def __init__(self, policy: AdaptivePolicy) -> None:
        super().__init__(policy, _Market(policy))
        self.max_candidates = policy.copies

    def select(self, candidates: Candidates, max_nodes: int) -> Sequence[int]:
        """The copies that are worth their rows."""
        order = sorted(range(1, len(candidates)), key=lambda node: -candidates.scores[node])
        likely = [math.exp(candidates.scores[node]) for node in order[:max_nodes]]
        return order[: self._market.best_size(likely)]

    def join(self, company: Company) -> None:
        """See `CompanyState`."""
        self._market.join(company)

    def observe(self, outcome: RoundOutcome) -> None:
        """Count the round."""
        self._market.close(outcome)


class AdaptiveState:
    """One request of a model's drafts with a branch of copies: see `SelectingState` and `MergingState`."""

    def __init__(self, policy: AdaptivePolicy) -> None:
        self._policy = policy
        self._market = _Market(policy)
        self._record = TrackRecord(policy.calibration)
        self.copies: PolicyState = _CopyBranch(policy, self._market)
        self.max_candidates = policy.top_k + policy.top_k**2 * (policy.depth - 1)
        self._offered, self._room = NO_COPIES, policy.max_nodes
        self._begin()

    def _begin(self) -> None:
        policy = self._policy
        self._survivals = Survivals(policy.calibration, self._offered, self._record.factor)
        self._kept_copies: tuple[int, ...] | None = None
        self._promise: dict[
            int, float
        ] = {}  # token after the root -> what the model promised of it

    def offer(self, copies: DraftTree, scores: Sequence[float]) -> None:
        """The round's copies, before the model drafts."""
        self._offered = Copies.of(copies, scores)
        self._begin()

    def plan(self, limits: DraftLimits, text: Sequence[int]) -> DraftLimits:
        """No deeper than the policy's levels."""
        self._market.open(len(text) - 1)
        self._room = min(limits.max_nodes, self._policy.max_nodes)
        return DraftLimits(
            min(limits.max_depth, self._policy.depth), self._room, limits.chains_only
        )

    def grow(self, frontier: Frontier) -> Sequence[int]:
        """`top_k` children for the nodes that a draft pass is expected to pay for."""
        if frontier.depth > 0:
            self._hear(frontier)
        gains = [self._survivals.next_level(node) for node in frontier.nodes]
        order = sorted(range(len(gains)), key=lambda place: -gains[place])[: self._policy.top_k]
        missed = 2 if frontier.depth == 0 else 0
        rows = self._market.best_rows([gains[place] for place in order], missed)
        chosen = set(order[:rows])
        return [self._policy.top_k if place in chosen else 0 for place in range(len(gains))]

    def select(self, candidates: Candidates, max_nodes: int) -> Sequence[int]:
        """The nodes worth their rows, of the model's tree; copies compete with them."""
        survivals = self._completed(candidates)
        own = [(survivals[node], node, NO_COPY) for node in range(1, len(candidates))]
        worth = sorted([*own, *self._copies_beyond(candidates)], key=lambda each: -each[0])
        size = self._market.best_size([likely for likely, _, _ in worth[:max_nodes]])
        kept = worth[:size]
        nodes = [node for _, node, copy in kept if copy == NO_COPY]
        self._kept_copies = tuple(sorted(copy for _, _, copy in kept if copy != NO_COPY))
        self._promise = {
            candidates.token_ids[node]: promised for node, promised in survivals.promised.items()
        }
        return nodes

    def keep_copies(self, drafted: DraftTree) -> Sequence[int]:
        """The copies that were found worth their rows, with those that they follow."""
        if self._kept_copies is None:  # the model had no room to draft, so nothing was selected
            self.select(Candidates(drafted.token_ids[:1], drafted.parents[:1], (0.0,)), self._room)
        assert self._kept_copies is not None
        tree = self._offered.tree
        return sorted({node for copy in self._kept_copies for node in tree.path(copy)[1:]})

    def join(self, company: Company) -> None:
        """See `CompanyState`."""
        self._market.join(company)

    def observe(self, outcome: RoundOutcome) -> None:
        """Count the round, and what became of the model's promises."""
        self._market.close(outcome)
        if self._promise:
            expected = sum(self._promise.values())
            self._record.note(expected, outcome.token_ids[0] in self._promise)
        else:
            self._record.note_nothing()
        self._offered = NO_COPIES
        self._begin()

    def _hear(self, frontier: Frontier) -> None:
        """Note the level that was drafted last."""
        scores = scores_of(frontier, self._policy)
        level: dict[int, list[Child]] = {}
        for place, parent in enumerate(frontier.parents):
            node, token, rank = (
                values[place] for values in (frontier.nodes, frontier.token_ids, frontier.ranks)
            )
            level.setdefault(parent, []).append(Child(node, token, scores[place], rank))
        for parent, children in level.items():
            self._survivals.add(parent, children)

    def _completed(self, candidates: Candidates) -> Survivals:
        """The survival of every node, those that no frontier has shown included."""
        survivals = self._survivals
        families: dict[int, list[Child]] = {}
        for node in range(1, len(candidates)):
            siblings = families.setdefault(candidates.parents[node], [])
            token, score = candidates.token_ids[node], candidates.scores[node]
            siblings.append(Child(node, token, score, len(siblings)))
        for parent, children in families.items():
            unheard = [child for child in children if child.node not in survivals]
            if unheard:
                survivals.add(parent, unheard)
        return survivals

    def _copies_beyond(self, candidates: Candidates) -> list[tuple[float, int, int]]:
        """Survival of each copy that is none of the model's candidates: (survival, 0, copy)."""
        survivals, copies = self._survivals, self._offered
        reach = {survivals.copy_at(node): survivals[node] for node in range(len(candidates))}
        beyond = []
        for copy in range(1, len(copies.tree)):
            if copy not in reach:
                reach[copy] = reach[copies.tree.parents[copy]] * survivals.share(copy)
                beyond.append((reach[copy], 0, copy))
        return beyond
